"""What is installed on a cluster is what the lock says, whichever way it comes there."""

import re
import subprocess

import pytest

from conftest import ROOT

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
    assert {"pyproject.toml", "src", *read} <= set(copied().values())
    assert len(read) == 2


def test_the_definition_states_no_version_of_a_package() -> None:
    stated = DEFINITION.replace("debian:12", "").replace("Debian 12", "")
    assert not re.search(r"==|\d+\.\d+|\bpython3\.\d", stated)


def test_the_container_is_of_the_debian_for_which_nsys_is_installed() -> None:
    script = (ROOT / "envs" / "install-nsys.sh").read_text(encoding="utf-8")
    assert re.search(r'VERSION_ID="(\d+)"', script)[1] == re.search(r"^From: debian:(\d+)$", DEFINITION, re.M)[1]


@pytest.mark.parametrize("name", ["post", "test", "environment", "runscript"])
def test_the_sections_are_shell_scripts(name: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=section(name), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
