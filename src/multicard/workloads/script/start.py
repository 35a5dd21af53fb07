"""Start a script: its command, its interpreter, its environment, and why it cannot start on this machine."""

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

# The oldest versions of Python and torch with which a script can be observed.
LEAST_PYTHON = "3.10"
LEAST_TORCH = "2.5"
LONGEST_ANSWER = 160  # characters of an interpreter's output in a message; the rest is cut off
# Seconds after which an interpreter that has not answered is killed. Environments on network disks are slow at first.
INTERPRETER_LIMIT_S = 60.0
# The constants PRINT_… are programs that the script's interpreter runs. This one prints the version of Python, then
# that of torch or "none". It does not import torch, because that takes seconds.
PRINT_VERSIONS = (
    "import sys, importlib.metadata as m, importlib.util as u; print(*sys.version_info[:2], sep='.'); "
    "print(m.version('torch') if u.find_spec('torch') else 'none')"
)
# Prints a line with FAULT_MARK and the reason if the interpreter cannot compile a file. The mark is needed because a
# sitecustomize of the user may print, too.
FAULT_MARK = "does not compile: "
PRINT_FAULT = f"""import sys, warnings
warnings.simplefilter("ignore")
path = sys.argv[1]
try:
    compile(open(path, "rb").read(), path, "exec", dont_inherit=True)
except SyntaxError as error:
    print(f"{FAULT_MARK}line {{error.lineno}}: {{error.msg}}")
except ValueError as error:
    print("{FAULT_MARK}", error)
"""
# Prints True if a package is installed. A folder of that name without __init__.py is none: it has no origin.
PRINT_HAS_PACKAGE = "import importlib.util as u; s = u.find_spec({!r}); print(bool(s and s.origin))"


def start_command(p: ScriptParameters, run_dir: str, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return the command that starts the script's ranks on this node.

    `run_dir`: folder in which the script may write; `rendezvous`: the index of this node and the address of the first
    one, None for a job on one node.
    """
    return LAUNCHERS[p.launched_by].command(interpreter(p), p.arguments(run_dir), p, rendezvous)


def interpreter(p: ScriptParameters) -> str:
    """Return the absolute path of the script's interpreter; the stated name if it is not on the PATH."""
    if p.python is None:
        return sys.executable
    if os.sep in p.python:
        # A link is not resolved, because Python finds a virtual environment by the folder of the link.
        return os.path.abspath(p.python)  # noqa: PTH100
    return shutil.which(p.python) or p.python


def script_file(p: ScriptParameters) -> Path | None:
    """Return the file that the command's first word names, or that of the module after `-m`; None if there is none."""
    first, *arguments = p.arguments("")
    if first == "-m" and arguments:
        module = Path(p.folder, *arguments[0].split("."))
        candidates = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        candidates = [Path(p.folder, first)]
    return next((path for path in candidates if path.is_file()), None)


def environment(p: ScriptParameters, scratch: Path, rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Return the variables that the launcher needs, the PATH, and CUDA_VISIBLE_DEVICES with the run's GPUs only."""
    return {
        **LAUNCHERS[p.launched_by].environment(rendezvous),
        "PATH": _path(p),
        "CUDA_VISIBLE_DEVICES": _gpus(p),
    }


def _gpus(p: ScriptParameters) -> str:
    """Return the run's value of CUDA_VISIBLE_DEVICES: as many GPUs as it has on this node; empty for a run on CPUs.

    They are the first of this process's own CUDA_VISIBLE_DEVICES; where that is not set, 0, 1, ….

    Other GPUs are hidden because many scripts use all GPUs that they see (nn.DataParallel, `mp.spawn`, Lightning). A
    run on CPUs sees none because many scripts use a GPU wherever they see one.
    """
    devices = p.devices_per_node if p.device == "cuda" else 0
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(number) for number in range(devices)] if selected is None else selected.split(",")
    return ",".join(gpus[:devices])


def _path(p: ScriptParameters) -> str:
    """Return the PATH with the programs of the interpreter's environment first."""
    folders = (str(Path(interpreter(p)).parent), os.environ.get("PATH"))
    return os.pathsep.join(filter(None, folders))


def secret_stated(p: ScriptParameters) -> str | None:
    """Return which parameter holds what looks like a secret, and what to do; None if none does."""
    named = next(filter(is_named_as_secret, p.environment), None)
    if named:
        return f"environment: {named} looks like a secret, which would be recorded; have the script read it from a file"
    if any(map(STANDALONE_TOKEN.search, p.arguments(""))):
        return (
            "command: it holds what looks like a secret, which would be recorded; have the script read it from a file"
        )
    return None


def refusal(p: ScriptParameters, source: Mapping[str, str] = os.environ) -> Reason | None:
    """Return why the script cannot start on this machine; None if it can. `source`: environment variables."""
    python = interpreter(p)
    if problem := _missing(p, source):
        return _cannot_run(problem)
    if problem := _interpreter_problem(python):
        return Reason("no_torch", message=problem)
    script = script_file(p)
    if script and script.suffix == ".py":
        fault = _syntax_fault(python, script.absolute())
        if fault:
            return _cannot_run(f"command: {script} {fault}")
    launcher = LAUNCHERS[p.launched_by]
    if launcher.package and not _has_package(python, launcher.package):
        install = shlex.join([python, "-m", "pip", "install", launcher.package])
        return _cannot_run(f"launcher: {launcher.name} is not installed for {python}; install it: {install}")
    return None


def _cannot_run(message: str) -> Reason:
    return Reason("cannot_run", node=socket.gethostname(), message=message)


def _missing(p: ScriptParameters, source: Mapping[str, str]) -> str | None:
    """Return which file, program or variable keeps the script from starting; None if none does. Runs no program."""
    folder = Path(p.folder)
    if not folder.is_dir():
        return f"folder: no such folder: {folder.absolute()}"
    first_word = p.arguments("")[0]
    if first_word.endswith(".py") and script_file(p) is None:
        return f"command: no such file: {first_word} (in {folder.absolute()})"
    program = start_command(p, "")[0]
    if program != interpreter(p) and not _is_program(program, p):
        return f"launcher: {p.launched_by} needs the program {program}, which is not on the PATH"
    if problem := LAUNCHERS[p.launched_by].refusal(source):
        return problem
    for name in p.environment:
        if STANDALONE_TOKEN.search(source.get(name, "")):
            return f"environment: the value of {name} looks like a secret, which a profiler's report would hold"
    return None


def _is_program(program: str, p: ScriptParameters) -> bool:
    """Return True if a program is on the script's PATH, or is the path of an executable, relative to its folder."""
    if shutil.which(program, path=_path(p)) is not None:
        return True
    return os.sep in program and os.access(Path(p.folder, program), os.X_OK)


# Cached because many runs of a scenario have the same interpreter, which takes long to start.
@cache
def _interpreter_problem(python: str) -> str | None:
    """Return why an interpreter cannot run the observer; None if it can."""
    if shutil.which(python) is None:
        return f"python: no such interpreter: {python}"
    # `ask` raises nothing: if the interpreter cannot run, fails or does not end, `problem` says so.
    answer = ask([python, "-c", PRINT_VERSIONS], INTERPRETER_LIMIT_S)
    if answer.problem or len(answer.lines) < 2:
        problem = answer.problem or f"{python} does not answer as Python does"
        return f"python: {printable(problem, LONGEST_ANSWER)}"
    version, torch = answer.lines[-2:]  # a sitecustomize of the user may print, too
    if _is_older(version, LEAST_PYTHON):
        return f"python: {python} is Python {version}, at least {LEAST_PYTHON} is needed"
    if torch == "none":
        return f"python: {python} has no torch"
    if _is_older(torch, LEAST_TORCH):
        return f"python: {python} has torch {torch}, at least {LEAST_TORCH} is needed"
    return None


def _is_older(version: str, least: str) -> bool:
    """Return True if a version is older than another one, or is no version.

    >>> _is_older("2.10.0+cu128", "2.5"), _is_older("2.4.1", "2.5"), _is_older("?", "2.5")
    (False, True, True)
    """
    return (version_of(version) or ()) < (version_of(least) or ())


@cache
def _syntax_fault(python: str, script: Path) -> str | None:
    """Return why an interpreter cannot compile a script, such as "does not compile: line 3: …"; None if it can."""
    # With -I the interpreter imports no warnings.py or other module of the current folder.
    lines = ask([python, "-I", "-c", PRINT_FAULT, str(script)], INTERPRETER_LIMIT_S).lines
    fault = next((line for line in lines if line.startswith(FAULT_MARK)), None)
    return printable(fault, LONGEST_ANSWER) if fault else None


@cache
def _has_package(python: str, package: str) -> bool:
    """Return True if a package is installed for an interpreter."""
    return ask([python, "-c", PRINT_HAS_PACKAGE.format(package)], INTERPRETER_LIMIT_S).lines[-1:] == ["True"]
