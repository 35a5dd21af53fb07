"""What is installed holds the whole pipeline, which `multicard run` and `multicard scale` start."""

import os
import shutil
import subprocess
import venv
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest
from hatchling.build import build_editable, build_wheel

from conftest import ROOT
from multicard.core.pipeline import pipeline_folder
from script.equipment import SCRIPTS, lend_packages

PARTS = ["Snakefile", "workflow", "profiles", "resources"]
LIMIT_S = 900


def tracked() -> set[str]:
    command = ["git", "ls-files", "-z", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
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
    assert tracked() <= held
    assert not differ


@pytest.mark.rare
def test_from_the_wheel_a_script_is_measured_in_a_folder_that_has_nothing_else(wheel: Path, tmp_path: Path) -> None:
    environment, folder = tmp_path / "venv", tmp_path / "mine"
    venv.create(environment, symlinks=True, with_pip=True)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    plain["PATH"] = f"{environment / 'bin'}{os.pathsep}{plain['PATH']}"

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=folder, env=plain, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    folder.mkdir()
    shutil.copy(SCRIPTS / "ddp.py", folder / "train.py")
    run("python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    lend_packages(environment)
    origin = run("python", "-P", "-c", "import multicard.core.pipeline as p; print(p.pipeline_folder())")
    assert Path(origin.strip()).is_relative_to(environment)

    said = run("multicard", "scale", "--device", "cpu", "--devices", "1", "--steps", "4", "--", "train.py")
    assert said.splitlines()[-2] == "report: results/report.html"
    assert {path.name for path in folder.iterdir()} == {".snakemake", "multicard.yaml", "results", "train.py"}
    assert "train.py" in (folder / "results/report.html").read_text(encoding="utf-8")
    measured = {path: path.stat().st_mtime_ns for path in folder.glob("results/runs/*/run.json")}
    assert len(measured) == 1

    assert run("multicard", "run", "multicard.yaml").splitlines()[-2:] == said.splitlines()[-2:]
    assert {path: path.stat().st_mtime_ns for path in measured} == measured
