"""The shape of the package: packages import only packages before them, and no machine's paths are in the sources."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

PACKAGES = ["core", "profilers", "record", "experiment", "launch", "workloads", "trace", "analysis", "figures"]
PACKAGES += ["archive", "doctor", "report"]
PACKAGE = ROOT / "src" / "multicard"


def imported_packages(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("multicard.")}
    return found & set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_itself_and_packages_before_it(package: str) -> None:
    allowed = set(PACKAGES[: PACKAGES.index(package) + 1])
    for file in (PACKAGE / package).rglob("*.py"):
        assert imported_packages(file) <= allowed, file


def test_every_folder_of_the_package_is_a_known_package() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(PACKAGES)


def test_the_library_never_imports_snakemake() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) snakemake", file.read_text(encoding="utf-8"), re.M), file


def test_tracked_files_hold_no_path_of_a_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    if tracked == [""]:
        pytest.skip("not a git checkout")
    machine_path = re.compile(rb"(?<![\w.$}])/(?:home|root|work|Users)/[a-z]")
    for name in filter(None, tracked):
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            assert not machine_path.search(path.read_bytes()), name


def test_the_lock_holds_the_versions_that_work_together() -> None:
    lock = (ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8")
    for pin in ("torch==2.11.0", "torchvision==0.26.0", "torchao==0.15.0", "torchtune==0.6.1", "torchdata==0.11.0"):
        assert f"\n{pin} " in lock


def test_the_conda_environment_is_the_lock() -> None:
    envs = ROOT / "envs"
    namespace = runpy.run_path(str(envs / "conda_from_lock.py"))
    expected = namespace["conda_environment"]((envs / "requirements.lock").read_text(encoding="utf-8"))
    assert (envs / "conda.yaml").read_text(encoding="utf-8") == expected
    pinned = re.findall(r"^([a-z0-9.-]+==[^ \n]+)", (envs / "requirements.lock").read_text(encoding="utf-8"), re.M)
    assert re.findall(r'^ +- "([a-z0-9.-]+==[^" ]+)', expected, re.M) == pinned
