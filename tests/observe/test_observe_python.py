"""What runs inside a training process needs Python 3.10, PyTorch and the standard library, and knows its rank."""

import ast
import sys
from pathlib import Path

import pytest

import multicard
from multicard.observe import OBSERVER_SITE
from multicard.observe.ranks import RANK_VARIABLES, SIZE_VARIABLES, rank_of_process, world_size
from multicard.profilers import PROFILERS

PACKAGE = Path(multicard.__file__).parent
OBSERVER = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.glob("observe/**/[!_]*.py")]
BEGIN = ("marks", *OBSERVER, *(f"profilers.{name}" for name in PROFILERS))
# Modules and names that came with Python 3.11 or later (docs.python.org, "What's New").
NEWER = {
    "tomllib", "UTC", "StrEnum", "ReprEnum", "Self", "LiteralString", "Never", "assert_never", "assert_type",
    "reveal_type", "NotRequired", "Required", "TypeVarTuple", "Unpack", "dataclass_transform", "override",
    "ExceptionGroup", "BaseExceptionGroup", "add_note", "file_digest", "TaskGroup", "Runner", "verify",
    "nonmember", "cbrt", "exp2", "batched", "getLevelNamesMapping", "getmembers_static", "exception", "walk",
    "with_segments", "last_exc", "setprofile_all_threads", "is_junction", "process_cpu_count", "from_uri",
}  # fmt: skip


def modules_of_the_observer() -> dict[str, Path]:
    """Modules of this package that are imported in the process of a script or of a rank, by name."""
    found: dict[str, Path] = {}
    waiting = [f"multicard.{name}" for name in BEGIN]
    while waiting:
        name = waiting.pop()
        place = PACKAGE.joinpath(*name.split(".")[1:])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if name in found or not file.exists():  # a name that is imported from a module
            continue
        found[name] = file
        parts = name.split(".")
        waiting += [".".join(parts[:length]) for length in range(2, len(parts))]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("multicard."):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


MODULES = modules_of_the_observer()


def test_the_observer_imports_what_it_is_known_to() -> None:
    assert {"multicard.observe.hooks", "multicard.observe.record.recorder", "multicard.core.files"} <= set(MODULES)
    packages = {name.split(".")[1] for name in MODULES if name.count(".")}
    assert packages == {"core", "marks", "profilers", "observe"}


@pytest.mark.parametrize("name", MODULES)
def test_the_observer_is_python_3_10_and_needs_pytorch_alone(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"), feature_version=(3, 10))
    imported: set[str] = set()
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            named.add(node.attr)
        elif isinstance(node, ast.Name):
            named.add(node.id)
    assert not named & NEWER
    roots = {module.split(".")[0] for module in imported}
    if name == "multicard.core.units":  # for tables, which no script makes
        roots.discard("numpy")
    assert roots <= sys.stdlib_module_names | {"torch", "multicard"}
    assert not roots & NEWER


def test_both_parts_of_the_observer_ask_for_the_rank_in_the_same_variables() -> None:
    told = {
        node.targets[0].id: node.value
        for node in ast.parse(OBSERVER_SITE.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(told["RANK_VARIABLES"]) == RANK_VARIABLES


@pytest.mark.parametrize(
    ("told", "rank", "size"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 3, 4),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, 5, 6),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "1"}, 1, 2),  # torchrun on each node of an MPI
        ({"RANK": "", "SLURM_PROCID": "-1"}, 0, 1),
    ],
)
def test_without_a_process_group_ranks_are_those_that_the_launcher_told(
    told: dict[str, str], rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables by the manuals of Open MPI (mpirun), MPICH (PMI) and Slurm (srun)."""
    for name in (*RANK_VARIABLES, *SIZE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert (rank_of_process(), world_size()) == (rank, size)
