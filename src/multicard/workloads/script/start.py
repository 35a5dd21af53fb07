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

LEAST_PYTHON = "3.10"
LEAST_TORCH = "2.5"
LONGEST_ANSWER = 160  # characters
# An interpreter may take so long to answer: environments on a network's disks are slow at first.
INTERPRETER_LIMIT_S = 60.0
# Programs that the script's interpreter runs. This one prints the versions of Python and torch, which it does not
# import: that takes seconds.
PRINT_VERSIONS = (
    "import sys, importlib.metadata as m, importlib.util as u; print(*sys.version_info[:2], sep='.'); "
    "print(m.version('torch') if u.find_spec('torch') else 'none')"
)
# Prints why an interpreter cannot compile a file, behind a mark since a sitecustomize may print, too.
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
# Prints whether a package is installed. A folder of that name beside the script is none without an __init__.py.
PRINT_HAS_PACKAGE = "import importlib.util as u; s = u.find_spec({!r}); print(bool(s and s.origin))"


def start_command(p: ScriptParameters, run_dir: str, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return the command that starts the script's ranks on this node.

    `run_dir`: folder in which the script may write; `rendezvous`: of a job on several nodes, where this one stands.
    """
    return LAUNCHERS[p.launched_by].command(interpreter(p), p.arguments(run_dir), p, rendezvous)


def interpreter(p: ScriptParameters) -> str:
    """Return the path of the interpreter, or its name if it is not on the PATH."""
    if p.python is None:
        return sys.executable
    if os.sep in p.python:
        # A link is not followed: by the folder of the link, Python finds its environment.
        return os.path.abspath(p.python)  # noqa: PTH100
    return shutil.which(p.python) or p.python


def script_file(p: ScriptParameters) -> Path | None:
    """Return the file that the command names by its first word or by the module after `-m`; None if there is none."""
    first, *arguments = p.arguments("")
    if first == "-m" and arguments:
        module = Path(p.folder, *arguments[0].split("."))
        candidates = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        candidates = [Path(p.folder, first)]
    return next((path for path in candidates if path.is_file()), None)


def environment(p: ScriptParameters, scratch: Path, rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Return the variables that the script's launcher needs, and by which the script sees its GPUs alone."""
    return {
        **LAUNCHERS[p.launched_by].environment(rendezvous),
        "PATH": _path(p),
        "CUDA_VISIBLE_DEVICES": _gpus(p),
    }


def _gpus(p: ScriptParameters) -> str:
    """Return as many GPUs as the run has devices, of those that are selected; none for a run on CPUs.

    Scripts use all that they see (nn.DataParallel, `mp.spawn`, Lightning), or one wherever they see one.
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
    """Return where the parameters hold what looks like a secret, which records would hold, too; None if they do not."""
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
    """Return which file, program or variable keeps the script from starting, without running anything."""
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
    """Return True if a program is on the script's PATH, or a path from its folder."""
    if shutil.which(program, path=_path(p)) is not None:
        return True
    return os.sep in program and os.access(Path(p.folder, program), os.X_OK)


# Cached, since many runs of one scenario have the same interpreter, which takes long to start.
@cache
def _interpreter_problem(python: str) -> str | None:
    """Return why an interpreter cannot run the observer; None if it can."""
    if shutil.which(python) is None:
        return f"python: no such interpreter: {python}"
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
    # -I: the current folder may hold a warnings.py of its own.
    lines = ask([python, "-I", "-c", PRINT_FAULT, str(script)], INTERPRETER_LIMIT_S).lines
    fault = next((line for line in lines if line.startswith(FAULT_MARK)), None)
    return printable(fault, LONGEST_ANSWER) if fault else None


@cache
def _has_package(python: str, package: str) -> bool:
    """Return True if a package is installed for an interpreter."""
    return ask([python, "-c", PRINT_HAS_PACKAGE.format(package)], INTERPRETER_LIMIT_S).lines[-1:] == ["True"]
