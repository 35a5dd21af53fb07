"""How a script is started: its command, its interpreter, its environment, and what of them is not here."""

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.secrets import STANDALONE_TOKEN, is_named_as_secret
from multicard.core.system import ask, version_of
from multicard.core.text import printable
from multicard.workloads.script.launchers import LAUNCHERS
from multicard.workloads.script.parameters import ScriptParameters

LEAST_PYTHON, LEAST_TORCH = "3.10", "2.5"
LONGEST_ANSWER = 160  # characters
INTERPRETER_LIMIT_S = 60.0  # to answer; environments on a network's disks are slow at first
# Without importing torch, which takes seconds.
QUESTION = (
    "import sys, importlib.metadata as m, importlib.util as u; print(*sys.version_info[:2], sep='.'); "
    "print(m.version('torch') if u.find_spec('torch') else 'none')"
)
# Prints why an interpreter cannot compile a file. The mark tells that from what a sitecustomize prints.
FAULT_MARK = "does not compile: "
FAULT = f"""import sys, warnings
warnings.simplefilter("ignore")
path = sys.argv[1]
try:
    compile(open(path, "rb").read(), path, "exec", dont_inherit=True)
except SyntaxError as error:
    print(f"{FAULT_MARK}line {{error.lineno}}: {{error.msg}}")
except ValueError as error:
    print("{FAULT_MARK}", error)
"""
# A folder of that name in the script's is no package without an __init__.py.
HAS_PACKAGE = "import importlib.util as u; s = u.find_spec({!r}); print(bool(s and s.origin))"


def start_command(p: ScriptParameters, run_dir: str, rendezvous: Rendezvous | None = None) -> list[str]:
    """Command that starts the script's ranks on this node; `run_dir`: the folder in which the script may write."""
    return LAUNCHERS[p.launched_by].command(interpreter(p), p.arguments(run_dir), p, rendezvous)


def interpreter(p: ScriptParameters) -> str:
    """Path of the interpreter: a link is not followed, since by its place Python finds its environment."""
    if p.python is None:
        return sys.executable
    return os.path.abspath(p.python) if os.sep in p.python else shutil.which(p.python) or p.python  # noqa: PTH100


def script_file(p: ScriptParameters) -> Path | None:
    """The file that the command names: its first word, or the module after `-m`; None where there is no such file."""
    first, *others = p.arguments("")
    if first == "-m" and others:
        module = Path(p.folder, *others[0].split("."))
        candidates = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        candidates = [Path(p.folder, first)]
    return next((path for path in candidates if path.is_file()), None)


def environment(p: ScriptParameters, scratch: Path, rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Variables that the script's launcher needs, and by which the script sees its GPUs alone."""
    return {
        **LAUNCHERS[p.launched_by].environment(rendezvous),
        "PATH": _path(p),
        "CUDA_VISIBLE_DEVICES": _gpus(p),
    }


def _gpus(p: ScriptParameters) -> str:
    """As many GPUs as the run has devices, of those that are selected; none for a run on CPUs.

    Scripts take all that they see (nn.DataParallel, `mp.spawn`, Lightning), or one wherever they see one.
    """
    devices = p.devices_per_node if p.device == "cuda" else 0
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = map(str, range(devices)) if selected is None else selected.split(",")
    return ",".join(list(gpus)[:devices])


def _path(p: ScriptParameters) -> str:
    """The PATH with the programs of the interpreter's environment first."""
    return os.pathsep.join(filter(None, (str(Path(interpreter(p)).parent), os.environ.get("PATH"))))


def secret_stated(p: ScriptParameters) -> str | None:
    """What of the parameters looks like a secret, which records and a profiler's report would hold; None where none."""
    named = next(filter(is_named_as_secret, p.environment), None)
    if named:
        return f"environment: {named} looks like a secret, which would be recorded; have the script read it from a file"
    if any(map(STANDALONE_TOKEN.search, p.arguments(""))):
        return (
            "command: it holds what looks like a secret, which would be recorded; have the script read it from a file"
        )
    return None


def refusal(p: ScriptParameters, source: Mapping[str, str] = os.environ) -> Reason | None:
    """Why the script cannot start here; None where it can."""
    if problem := _missing(p, source):
        return Reason("cannot_run", node=socket.gethostname(), message=problem)
    if problem := _interpreter_problem(interpreter(p)):
        return Reason("no_torch", message=problem)
    script = script_file(p)
    if script and script.suffix == ".py" and (fault := _syntax_fault(interpreter(p), script.absolute())):
        return Reason("cannot_run", node=socket.gethostname(), message=f"command: {script} {fault}")
    launcher = LAUNCHERS[p.launched_by]
    if launcher.package and not _has_package(interpreter(p), launcher.package):
        problem = f"launcher: {launcher.name} is not installed for {interpreter(p)}; install it: "
        problem += shlex.join([interpreter(p), "-m", "pip", "install", launcher.package])
        return Reason("cannot_run", node=socket.gethostname(), message=problem)
    return None


@cache
def _has_package(python: str, package: str) -> bool:
    """Whether an interpreter that answers finds a package."""
    return ask([python, "-c", HAS_PACKAGE.format(package)], INTERPRETER_LIMIT_S).lines[-1:] == ["True"]


@cache
def _syntax_fault(python: str, script: Path) -> str | None:
    """Why an interpreter cannot compile a script, such as "does not compile: line 3: …"; None where it can."""
    # -I: the current folder may hold a warnings.py of its own.
    lines = ask([python, "-I", "-c", FAULT, str(script)], INTERPRETER_LIMIT_S).lines
    fault = next((line for line in lines if line.startswith(FAULT_MARK)), None)
    return printable(fault, LONGEST_ANSWER) if fault else None


def _missing(p: ScriptParameters, source: Mapping[str, str]) -> str | None:
    if not Path(p.folder).is_dir():
        return f"folder: no such folder: {Path(p.folder).absolute()}"
    first = p.arguments("")[0]
    if first.endswith(".py") and script_file(p) is None:
        return f"command: no such file: {first} (in {Path(p.folder).absolute()})"
    program = start_command(p, "")[0]
    if program != interpreter(p) and shutil.which(program, path=_path(p)) is None:
        own = Path(p.folder, program) if os.sep in program else None
        if own is None or not os.access(own, os.X_OK):
            return f"launcher: {p.launched_by} needs the program {program}, which is not on the PATH"
    if problem := LAUNCHERS[p.launched_by].refusal(source):
        return problem
    for name in p.environment:
        if STANDALONE_TOKEN.search(source.get(name, "")):
            return f"environment: the value of {name} looks like a secret, which a profiler's report would hold"
    return None


@cache
def _interpreter_problem(python: str) -> str | None:
    """What is wrong with an interpreter, asked once, before a job starts."""
    if shutil.which(python) is None:
        return f"python: no such interpreter: {python}"
    answer = ask([python, "-c", QUESTION], INTERPRETER_LIMIT_S)
    if answer.problem or len(answer.lines) < 2:
        return f"python: {printable(answer.problem or f'{python} does not answer as Python does', LONGEST_ANSWER)}"
    version, torch = answer.lines[-2:]  # a sitecustomize of the user may print, too
    if (version_of(version) or ()) < version_of(LEAST_PYTHON):
        return f"python: {python} is Python {version}, at least {LEAST_PYTHON} is needed"
    if torch == "none":
        return f"python: {python} has no torch"
    if (version_of(torch) or ()) < version_of(LEAST_TORCH):
        return f"python: {python} has torch {torch}, at least {LEAST_TORCH} is needed"
    return None
