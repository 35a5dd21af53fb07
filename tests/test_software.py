"""What is installed on a cluster is what the lock says, whichever way it comes there."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from multicard.profilers.nsys import WITH_CUDA, older_than_cuda

DEFINITION = (ROOT / "envs" / "apptainer.def").read_text(encoding="utf-8")
# Sections of a definition file, as Apptainer's user guide lists them.
SECTIONS = {"setup", "files", "environment", "post", "runscript", "startscript", "test", "labels", "help"}


def section(name: str) -> str:
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.M | re.S)
    assert found, name
    return found[1]


def copied() -> dict[str, str]:
    """Sources of the copied files and folders, by their place in the container."""
    return {there: here for here, there in (line.split() for line in section("files").splitlines() if line.strip())}


def test_the_container_is_defined_by_sections_that_apptainer_knows() -> None:
    assert set(re.findall(r"^%(\w+)", DEFINITION, re.M)) <= SECTIONS
    assert re.findall(r"^(Bootstrap|From): (\S+)$", DEFINITION, re.M) == [
        ("Bootstrap", "docker"),
        ("From", "debian:12"),
    ]


def test_what_goes_into_the_container_exists_and_is_tracked() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not tracked:
        pytest.skip("not a git checkout")
    for here in copied().values():
        assert re.search(rf"^{re.escape(here)}(/|$)", tracked, re.M), here


@pytest.mark.parametrize("name", ["envs/requirements.lock", "envs/make-venv.sh", "envs/install-nsys.sh"])
def test_the_container_is_made_of_the_lock_by_the_scripts_that_make_any_environment(name: str) -> None:
    inside = {there: here for there, here in copied().items() if name.startswith(here)}
    assert inside
    if name.endswith(".sh"):
        [(there, here)] = inside.items()
        assert f"{there}{name.removeprefix(here)}" in section("post")


def test_the_container_has_what_building_the_package_reads() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    read = re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', pyproject, re.M)
    assert {"pyproject.toml", "hatch_build.py", "src", *read} <= set(copied().values())
    assert len(read) == 2


def test_the_container_has_the_pipeline_where_the_package_looks_for_it() -> None:
    pipeline = ("src", "Snakefile", "workflow", "profiles", "resources")
    assert {f"/opt/multicard/{part}": part for part in pipeline}.items() <= copied().items()


def test_the_definition_states_no_version_of_a_package() -> None:
    stated = DEFINITION.replace("debian:12", "").replace("Debian 12", "")
    assert not re.search(r"==|\d+\.\d+|\bpython3\.\d", stated)


def test_the_container_is_of_the_debian_for_which_nsys_is_installed() -> None:
    script = (ROOT / "envs" / "install-nsys.sh").read_text(encoding="utf-8")
    assert re.search(r'VERSION_ID="(\d+)"', script)[1] == re.search(r"^From: debian:(\d+)$", DEFINITION, re.M)[1]


def test_the_container_has_an_nsys_as_new_as_the_cuda_of_torch() -> None:
    script = (ROOT / "envs" / "install-nsys.sh").read_text(encoding="utf-8")
    [version] = re.findall(r"^of_cuda=([\d.]+)", script, re.M)
    assert older_than_cuda(version, torch.version.cuda) is None
    assert "install-nsys.sh --nvidia" in section("post")


def test_the_documented_versions_of_nsys_are_those_that_are_asked_for() -> None:
    page = (ROOT / "docs" / "software.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+\.\d+)[\d., ]* \| (\d+\.\d+\.\d+) \|", page, re.M)
    assert {tuple(map(int, cuda.split("."))): tuple(map(int, nsys.split("."))) for cuda, nsys in rows} == WITH_CUDA


SYSTEM = Path("/etc/os-release")
DEBIAN_12 = SYSTEM.exists() and 'VERSION_ID="12"' in SYSTEM.read_text(encoding="utf-8")


@pytest.mark.skipif(not DEBIAN_12, reason="the script is for Debian 12")
def test_nvidias_nsys_is_installed_from_nvidias_repository(tmp_path: Path) -> None:
    # No program that it calls is the real one: they write down what they are asked to do.
    for name in ("apt-get", "curl", "dpkg", "ln", "nsys", "id"):
        answer = {"id": "echo 0", "dpkg": "case $1 in --print*) echo amd64 ;; esac"}.get(name, "")
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/log\n{answer}\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    script = ROOT / "envs" / "install-nsys.sh"
    subprocess.run(["sh", script, "--nvidia"], env={"PATH": path}, check=True, capture_output=True)
    asked = (tmp_path / "log").read_text()
    assert "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring" in asked
    assert asked.index("dpkg -i") < asked.index("apt-get install -q -y --no-install-recommends nsight-systems-2025.3.2")
    assert "trixie" not in asked


@pytest.mark.parametrize("name", ["post", "test", "environment", "runscript"])
def test_the_sections_are_shell_scripts(name: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=section(name), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
