"""What is installed on a cluster is what the lock says, whichever way it comes there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from conftest import ROOT, ran
from machine.faked_programs import put
from multicard import __version__
from multicard.profilers.nsys import WITH_CUDA, older_than_cuda

DEFINITION = (ROOT / "envs" / "apptainer.def").read_text(encoding="utf-8")
INSTALL_NSYS = (ROOT / "envs" / "install-nsys.sh").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", DEFINITION, re.M | re.S))


def test_the_lock_of_torchtune_holds_the_versions_that_work_together() -> None:
    lock = (ROOT / "envs" / "torchtune.lock").read_text(encoding="utf-8")
    for pin in ("torch==2.11.0", "torchvision==0.26.0", "torchao==0.15.0", "torchtune==0.6.1", "torchdata==0.11.0"):
        assert f"\n{pin} " in lock


def test_citation_and_changelog_are_of_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert (citation["version"], str(citation["date-released"])) == released[0]
    assert citation["version"] == __version__


def test_the_container_is_made_of_tracked_files_by_the_lock_and_has_what_the_package_looks_for() -> None:
    known = {"setup", "files", "environment", "post", "runscript", "startscript", "test", "labels", "help"}
    assert set(SECTIONS) <= known  # as Apptainer's user guide lists them
    copied = dict(reversed(line.split()) for line in SECTIONS["files"].splitlines() if line.strip())
    tracked = ran("git", "ls-files", cwd=ROOT).stdout
    if tracked:
        assert all(re.search(rf"^{re.escape(here)}(/|$)", tracked, re.M) for here in copied.values())
    for script in ("make-venv.sh", "install-nsys.sh --nvidia"):
        assert script in SECTIONS["post"]
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    read = re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', pyproject, re.M)
    assert len(read) == 2 and {"pyproject.toml", "hatch_build.py", "envs", *read} <= set(copied.values())
    pipeline = ("src", "workflow", "profiles", "resources")
    assert {f"/opt/multicard/{part}": part for part in pipeline}.items() <= copied.items()


def test_the_container_states_no_version_of_a_package_and_the_debian_of_nsys() -> None:
    [debian] = re.findall(r"^From: debian:(\d+)$", DEFINITION, re.M)
    assert re.search(r'VERSION_ID="(\d+)"', INSTALL_NSYS)[1] == debian
    stated = DEFINITION.replace(f"debian:{debian}", "")
    assert not re.search(r"==|\d+\.\d+|\bpython3\.\d", stated)


@pytest.mark.rare
@pytest.mark.skipif(shutil.which("apptainer") is None, reason="needs Apptainer")
def test_the_container_is_built_and_runs(tmp_path: Path) -> None:
    image = str(tmp_path / "multicard.sif")
    subprocess.run(["apptainer", "build", image, "envs/apptainer.def"], cwd=ROOT, check=True)
    command = ["apptainer", "exec", image, "multicard", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == f"multicard {__version__}\n"


def test_nsys_is_as_new_as_the_cuda_of_torch_and_documented() -> None:
    [version] = re.findall(r"^of_cuda=([\d.]+)", INSTALL_NSYS, re.M)
    assert older_than_cuda(version, torch.version.cuda) is None
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    cuda_row, nsys_row = (
        re.search(rf"^\| {head} \| (.*) \|$", page, re.M)[1] for head in ("CUDA of torch", "nsys, at least")
    )
    rows = [(cuda.split(",")[0], nsys) for cuda, nsys in zip(cuda_row.split(" | "), nsys_row.split(" | "), strict=True)]
    assert {tuple(map(int, cuda.split("."))): tuple(map(int, nsys.split("."))) for cuda, nsys in rows} == WITH_CUDA


SYSTEM = Path("/etc/os-release")
DEBIAN_12 = SYSTEM.exists() and 'VERSION_ID="12"' in SYSTEM.read_text(encoding="utf-8")


@pytest.mark.skipif(not DEBIAN_12, reason="the script is for Debian 12")
def test_nvidias_nsys_is_installed_from_nvidias_repository(tmp_path: Path) -> None:
    # No program that it calls is the real one: they write down what they are asked to do.
    for name in ("apt-get", "curl", "dpkg", "ln", "nsys", "id"):
        answer = {"id": "echo 0", "dpkg": "case $1 in --print*) echo amd64 ;; esac"}.get(name, "")
        put(tmp_path, name, f'echo {name} "$@" >> {tmp_path}/log\n{answer}')
    path = f"{tmp_path}:/usr/bin:/bin"
    script = ROOT / "envs" / "install-nsys.sh"
    subprocess.run(["sh", script, "--nvidia"], env={"PATH": path}, check=True, capture_output=True)
    asked = (tmp_path / "log").read_text()
    assert "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring" in asked
    assert asked.index("dpkg -i") < asked.index("apt-get install -q -y --no-install-recommends nsight-systems-2025.6.3")
    assert "trixie" not in asked


def test_the_sections_are_shell_scripts() -> None:
    for name in ("post", "test", "environment", "runscript"):
        subprocess.run(["sh", "-n"], input=SECTIONS[name], capture_output=True, text=True, check=True)
