"""The shape of the package: packages import only packages before them, and no machine's paths are in the sources."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

# A package imports only packages before it; those with a set import only these.
PACKAGES: dict[str, set[str] | None] = {
    "core": set(),
    "profilers": {"core"},
    "record": {"core", "profilers"},  # runs inside the user's training process
    "experiment": {"core", "profilers"},
    "launch": {"core", "profilers", "experiment"},
    "workloads": {"core", "record", "experiment"},
    "trace": {"core", "profilers"},
    "analysis": {"core", "experiment", "trace"},
    "figures": {"core", "experiment", "workloads", "analysis"},
    "archive": {"core", "profilers", "experiment", "trace", "analysis"},
    "adopt": {"core", "profilers", "experiment", "trace", "analysis", "archive"},
    "limits": {"core", "record", "experiment", "launch", "workloads", "trace", "analysis", "figures"},
    "search": {"core", "experiment", "analysis", "archive", "limits"},
    "doctor": None,
    "report": None,
    "api": None,
    "cli": None,
}
PACKAGE = ROOT / "src" / "multicard"
HEAVY = ("torch", "matplotlib", "optuna", "pandas", "pyarrow", "rich")


def imported_packages(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "multicard" else {module}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    own = {name.split(".")[1] for name in found if name.startswith("multicard.")}
    return {"api" if name in ("read_trace", "read_results") else name for name in own} - {"__version__"}


def test_a_package_imports_only_itself_and_packages_before_it() -> None:
    before: set[str] = set()
    for package, stated in PACKAGES.items():
        allowed = before if stated is None else stated
        assert allowed <= before
        for file in (PACKAGE / package).rglob("*.py"):
            assert imported_packages(file) <= allowed | {package}, file
        before.add(package)


def test_every_module_is_in_a_known_package() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(PACKAGES)
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py", "marks.py"]
    assert imported_packages(PACKAGE / "marks.py") == set()
    assert imported_packages(PACKAGE / "__init__.py") == {"api"}
    assert imported_packages(PACKAGE / "__main__.py") == {"cli"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import multicard", HEAVY),
        ("import multicard.cli; list(multicard.cli.COMMANDS)", HEAVY),
        (
            "from multicard.experiment import figures, load, runs; list(figures.FIGURES); "
            "runs.expand(load.read_experiment(Path('config/config.yaml')))",
            ("torch", "matplotlib", "pandas", "pyarrow"),
        ),
    ],
)
def test_what_starts_often_starts_fast(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys; from pathlib import Path; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()) & set(absent) == set()


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
