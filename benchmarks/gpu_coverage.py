"""Which lines under a `cuda` branch the emulated tests execute: `python benchmarks/gpu_coverage.py --out FILE.md`.

Needs coverage.py (`pip install coverage`, 7.10 or later), g++ and ten minutes. A line counts as under a `cuda` branch
if it

- is in a branch that is only taken where the device is a GPU, or after one that leaves the function where it is none,
- calls `torch.cuda` or NVML itself, or
- is in a function or class with "cuda" or "gpu" in its name,

in the parts of the library that run beside a GPU (`PARTS`). Lines are executed if a process of the emulated Python
executed them, its CPU parts included; those of the tests' own Python do not count.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "src" / "multicard"
PARTS = ("record", "workloads", "profilers", "launch", "machine", "experiment")

GPU_NAMES = {"gpu", "gpus", "on_gpu", "cuda_graphs"}
OF_GPUS = re.compile(r"cuda|gpu", re.IGNORECASE)
CALLS = re.compile(r"torch\.cuda\.(?!is_available$)\w+|(py)?nvml\.\w+|.*\.nvml[A-Z]\w+")

# The emulated environment of this run starts coverage.py in each of its processes, and no other Python does.
START = """
import sys
sys.path.append({packages!r})
import coverage
coverage.Coverage(config_file={settings!r}, auto_data=True).start()
"""
SETTINGS = """
[run]
source = {library}
data_file = {data}
parallel = true
patch = _exit, fork
sigterm = true
disable_warnings = no-data-collected, module-not-measured
"""
HEAD = """# Lines for GPUs that emulated ones execute

Counted by `benchmarks/gpu_coverage.py` on {day}, commit {commit}. A line, the first one of a statement, is for GPUs
if it

- is in a branch that is only taken where the device is a GPU, or after one that leaves the function where it is none,
- calls `torch.cuda` or NVML itself, or
- is in a function or class with "cuda" or "gpu" in its name,

in {parts} of the library. It is executed if a process of the emulated Python
(`tests/emulated_gpu`) executed it in one of the tests marked `emulated`; a process that is killed does not tell.

Before there were [emulated GPUs](emulated.md), **0 of {total}** such lines had been executed with a GPU, emulated or
real (tests with fakes of PyTorch, NVML and nvidia-smi, which execute some on a CPU, are not counted). Now **{done}**
have been, {share}.

| File | Lines | Before | Now |
|---|---|---|---|"""


def main() -> None:
    """Run the emulated tests, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Markdown file")
    parser.add_argument("--data", type=Path, help="folder for the coverage data; where it has some, no tests are run")
    parser.add_argument("tests", nargs="*", default=["tests/emulated"], help="tests to run")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = chosen.data or Path(scratch)
        if not list(data.glob("lines.*")):
            data.mkdir(parents=True, exist_ok=True)
            run_tests(data.absolute(), chosen.tests)
        chosen.out.write_text(table(executed(data)), encoding="utf-8")
    print(chosen.out)


def run_tests(data: Path, tests: list[str]) -> None:
    """Run the tests, each of whose emulated processes leaves its lines in the folder."""
    settings = data / "settings.ini"
    settings.write_text(SETTINGS.format(library=LIBRARY, data=data / "lines"))
    emulated = data / "emulated"
    subprocess.run([sys.executable, ROOT / "tests/emulated_gpu/build.py", "--folder", emulated], check=True)
    [packages] = emulated.glob("*/venv/lib/python*/site-packages")
    start = START.format(packages=str(Path(coverage.__file__).parents[1]), settings=str(settings))
    (packages / "start_coverage.py").write_text(start)
    (packages / "start_coverage.pth").write_text("import start_coverage\n")  # read after emulation_hook.pth
    environment = os.environ | {"MULTICARD_EMULATED": str(emulated)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "emulated", *tests]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def executed(data: Path) -> dict[Path, set[int]]:
    """The lines of each file that any process executed."""
    found = coverage.CoverageData(str(data.absolute() / "combined"))
    for part in data.glob("lines.*"):
        other = coverage.CoverageData(str(part.absolute()))
        other.read()
        found.update(other)
    return {Path(name): set(found.lines(name) or ()) for name in found.measured_files()}


def table(lines: dict[Path, set[int]]) -> str:
    """Say how many of the lines were executed, by file, and list the others; a Markdown page."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    rows, never, total, done = [], [], 0, 0
    for path in sorted(path for part in PARTS for path in (LIBRARY / part).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        under = lines_of_gpus(source)
        if not under:
            continue
        hit = under & lines.get(path, set())
        name, text = path.relative_to(LIBRARY), source.splitlines()
        rows.append(f"| `{name}` | {len(under)} | 0 | {len(hit)} |")
        owner = functions(source)
        never += [f"- `{name}` {owner.get(line, '')} `` {text[line - 1].strip()} ``" for line in sorted(under - hit)]
        total, done = total + len(under), done + len(hit)
    head = HEAD.format(
        day=date.today().isoformat(), commit=commit, parts=", ".join(f"`{part}`" for part in PARTS),
        total=total, done=done, share=f"{done / total:.0%}",
    )  # fmt: skip
    return "\n".join([head, *rows, "", "## Never executed", "", *never, ""])


def functions(source: str) -> dict[int, str]:
    """The innermost function or class that each line is in, by name: line numbers would soon be others'."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):  # the inner ones come later
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), f"`{node.name}`")
    return found


def lines_of_gpus(source: str) -> set[int]:
    """First lines of the statements under a `cuda` branch."""
    return {line for node in ast.parse(source).body for line in _lines(node, False)}


def _lines(node: ast.stmt, on_gpu: bool) -> Iterator[int]:
    """Lines of a statement and of those in it; `on_gpu`: whether it is under a `cuda` branch."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        yield from _block(body, on_gpu or bool(OF_GPUS.search(node.name)))
        return
    compound = isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match)
    if not isinstance(node, ast.Import | ast.ImportFrom) and (
        on_gpu or (not compound and any(_is_cuda(part) for part in ast.walk(node)))
    ):
        yield node.lineno
    if isinstance(node, ast.If):
        yield from _block(node.body, on_gpu or _means_gpu(node.test, True))
        yield from _block(node.orelse, on_gpu or _means_gpu(node.test, False))
        return
    for name in ("body", "orelse", "finalbody"):
        yield from _block(getattr(node, name, []), on_gpu)
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield from _block(part.body, on_gpu)


def _is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and CALLS.fullmatch(ast.unparse(node)) is not None


def _block(statements: list[ast.stmt], on_gpu: bool) -> Iterator[int]:
    for node in statements:
        yield from _lines(node, on_gpu)
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
        if leaves and not node.orelse and _means_gpu(node.test, False):
            on_gpu = True


def _means_gpu(test: ast.expr, outcome: bool) -> bool:
    """Whether a condition with this outcome means that the device is a GPU."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return _means_gpu(operand, not outcome)
        case ast.BoolOp(operator, values):
            enough = any if isinstance(operator, ast.And) == outcome else all
            return enough(_means_gpu(value, outcome) for value in values)
        case ast.Compare(_, [ast.Eq() | ast.NotEq() as operator], [ast.Constant("cuda" | "cpu" as device)]):
            return (isinstance(operator, ast.Eq) == (device == "cuda")) == outcome
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else None
    return outcome and (name in GPU_NAMES or ast.unparse(test) == "torch.cuda.is_available()")


if __name__ == "__main__":
    main()
