"""What is installed holds the whole pipeline, which `multicard run` and `multicard scale` start."""

import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from hatchling.build import build_editable, build_wheel

from conftest import ROOT, ran
from multicard import __version__
from multicard.core.pipeline import full_version, pipeline_folder
from script.equipment import SCRIPTS
from synthetic import nsys_export

PARTS = ["workflow", "profiles", "resources"]
LIMIT_S = 900


def git(*arguments: str) -> str:
    return ran("git", *arguments, cwd=ROOT).stdout


def tracked() -> set[str]:
    listed = git("ls-files", "-z", *PARTS)
    if not listed:
        pytest.skip("not a git checkout")
    return set(listed.split("\0")[:-1])


def test_an_editable_install_has_the_pipeline_of_the_clone_alone(tmp_path: Path) -> None:
    assert pipeline_folder() == ROOT
    with chdir(ROOT):
        made = build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / made) as archive:
        [path, *others] = sorted(archive.namelist(), key=lambda name: not name.endswith(".pth"))
        assert archive.read(path).decode().split() == [str(ROOT / "src")]
    assert all(".dist-info/" in name for name in others)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with chdir(ROOT):
        return folder / build_wheel(str(folder))


@pytest.mark.rare
def test_the_wheel_holds_every_file_of_the_pipeline(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("multicard/pipeline/") for name in archive.namelist()}
        assert "snakemake_logger_plugin_multicard/__init__.py" in held, "which the profiles name"
        differ = [
            name
            for name in tracked() & held
            if archive.read(f"multicard/pipeline/{name}") != (ROOT / name).read_bytes()
        ]
        commit = archive.read("multicard/pipeline/commit.txt").decode().strip()
    assert tracked() <= held
    assert not differ
    assert git("rev-parse", "HEAD").startswith(commit) and len(commit) == 12
    assert full_version() == f"{__version__}+g{commit}"  # of this clone, as runs record it
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]


def newest_python() -> str:
    """The newest interpreter of this machine; pyenv has some that are not on the PATH."""
    places = [*os.get_exec_path(), *map(str, Path(os.environ.get("PYENV_ROOT", "/none")).glob("versions/*/bin"))]
    found = {path for minor in range(12, 20) for place in places for path in Path(place).glob(f"python3.{minor}")}
    works = [
        path for path in found if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    return str(max(works, key=lambda path: int(path.name.split(".")[1]), default=sys.executable))


@pytest.mark.rare
@pytest.mark.parametrize(("python", "versions"), [(sys.executable, "lowest-direct"), (newest_python(), "highest")])
def test_from_the_wheel_without_torch_a_script_of_another_environment_is_measured(
    wheel: Path, tmp_path: Path, python: str, versions: str
) -> None:
    environment, folder = tmp_path / "venv", tmp_path / "mine"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    plain["PATH"] = f"{environment / 'bin'}{os.pathsep}{plain['PATH']}"

    def run(*command: str) -> str:
        done = ran(*command, cwd=folder, env=plain, limit_s=LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    folder.mkdir()
    shutil.copy(SCRIPTS / "ddp.py", folder / "train.py")
    install_base(environment, python, versions)
    run(*UV, "--python", str(environment / "bin/python"), "--no-deps", "--offline", str(wheel))
    origin = "import importlib.util as u, multicard as m; print(u.find_spec('torch'), m.__file__)"
    torch, package = run("python", "-P", "-c", origin).split()
    assert torch == "None" and Path(package).is_relative_to(environment)

    asked = "multicard scale --device cpu --devices 1 --steps 4 --python"
    said = run(*asked.split(), sys.executable, "--", "train.py")
    assert said.splitlines()[-2] == "report: results/report.html"
    assert {path.name for path in folder.iterdir()} == {".snakemake", "multicard.yaml", "results", "train.py"}
    assert "train.py" in (folder / "results/report.html").read_text(encoding="utf-8")
    [record] = folder.glob("results/runs/*/run.json")
    measured = record.stat().st_mtime_ns

    assert run("multicard", "run", "multicard.yaml").splitlines()[-2:] == said.splitlines()[-2:]
    assert record.stat().st_mtime_ns == measured
    assert "1 of 1 configuration cannot be judged" in run("multicard", "compare", "results", "results")

    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    check = release["jobs"]["wheel"]["steps"][-1]["run"]
    (tmp_path / "empty").mkdir()
    for tag, accepted in (("v0.9", False), (f"v{__version__}", True)):
        checked = ran(
            "bash", "-eo", "pipefail", "-c", check, cwd=tmp_path / "empty", env=plain | {"GITHUB_REF_NAME": tag}
        )
        assert (checked.returncode == 0) is accepted, checked.stderr


# A network of its own, in which nothing can be reached.
OFFLINE = ["unshare", "--map-root-user", "--net"]
NO_NAMESPACES = subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode != 0


@pytest.mark.rare
@pytest.mark.skipif(NO_NAMESPACES, reason="needs unshare, and the right to make namespaces")
def test_a_bundle_for_another_python_is_installed_without_a_network(tmp_path: Path) -> None:
    python, bundle, venv = newest_python(), tmp_path / "bundle", tmp_path / "venv"
    version = Path(python).name.removeprefix("python")
    made = ran(ROOT / "envs/make-bundle.sh", bundle, version, "vision", "torch,torchvision", limit_s=LIMIT_S)
    if "Failed to fetch" in made.stderr or "Network" in made.stderr:
        pytest.skip("no index of packages can be reached")
    assert made.returncode == 0, made.stderr
    names = {path.name.split("-")[0] for path in (bundle / "wheels").iterdir()}
    assert {"multicard", "snakemake", "scikit_learn"} <= names
    assert not any(name.startswith(("torch", "triton", "nvidia_c")) for name in names)

    def offline(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return ran(*OFFLINE, *command, cwd=tmp_path, limit_s=LIMIT_S)

    other = offline("sh", bundle / "install.sh", tmp_path / "other", sys.executable)
    if sys.version_info[:2] != tuple(map(int, version.split("."))):
        assert other.returncode == 1 and f"this bundle is for Python {version}" in other.stderr
    installed = offline("sh", bundle / "install.sh", venv, python)
    assert installed.stdout == f"multicard {__version__}\n", installed.stderr
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    seen = offline(venv / "bin/python", "-c", "import sys; print(*sys.path, sep='\\n')").stdout.splitlines()
    assert offline(python, "-c", purelib).stdout.strip() in seen, "where torch would be"
    nsys_export(tmp_path / "report.sqlite")
    read = offline(venv / "bin/multicard", "analyze", "report.sqlite")
    assert read.returncode == 0 and "kernels" in read.stdout, read.stdout + read.stderr

    next((bundle / "wheels").iterdir()).write_bytes(b"")
    cut = offline("sh", bundle / "install.sh", venv)
    assert cut.returncode != 0 and "FAILED" in cut.stdout + cut.stderr


UV = (shutil.which("uv") or str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet")


def install_base(environment: Path, python: str, versions: str) -> None:
    """Make an environment with what the package itself needs, from the index that pip uses."""
    venv = [UV[0], "venv", "--quiet", "--python", python, str(environment)]
    subprocess.run(venv, check=True, timeout=LIMIT_S)
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    install = (*UV, "--python", environment / "bin/python", "--resolution", versions, "-r", ROOT / "pyproject.toml")
    done = ran(*install, env=os.environ | ({"UV_DEFAULT_INDEX": index} if index else {}), limit_s=LIMIT_S)
    if "error sending request" in done.stderr or "Network connectivity is disabled" in done.stderr:
        pytest.skip("no index of packages can be reached")
    assert done.returncode == 0, done.stderr
