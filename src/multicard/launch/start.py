"""Start the ranks of a job: the launcher's command, their environment, and why they cannot start on this machine."""

import os
import shlex
import shutil
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from multicard.core.job_file import JobPaths
from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.secrets import STANDALONE_TOKEN
from multicard.core.system import ask, version_of
from multicard.core.text import printable
from multicard.launchers import LAUNCHERS
from multicard.programs import PROGRAMS
from multicard.programs.program import RankCommand
from multicard.runs.parameters import JobParameters

# The oldest versions of Python and torch with which a script can be observed.
LEAST_PYTHON = "3.10"
LEAST_TORCH = "2.4"
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


def rank_command(p: JobParameters, paths: JobPaths | None = None) -> RankCommand:
    """Return the command of one rank of a job; `paths`: those of the job, None before it has any."""
    return PROGRAMS[p.workload].command(p, paths or JobPaths())


def tasks_per_node(p: JobParameters) -> int:
    """Return the number of Slurm's tasks on each node of a job: 1 that starts all ranks there, or one for each rank."""
    return LAUNCHERS[p.launched_by].tasks_per_node(p)


def start_command(p: JobParameters, command: RankCommand, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return the command that starts the ranks of this node.

    `command`: that of one rank. `rendezvous`: the index of this node and the address of the first one; None for a job
    on one node.
    """
    return LAUNCHERS[p.launched_by].command(command.python, list(command.words), p, rendezvous)


def environment(p: JobParameters, command: RankCommand, rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Return the variables that the launcher needs, and those by which the ranks find their programs and GPUs."""
    variables = {**LAUNCHERS[p.launched_by].environment(rendezvous), "PATH": _path(command)}
    if command.folder is None:
        # A module of multicard imports nothing from the folder that multicard runs in, which may have a random.py. It
        # chooses its GPUs by the number of its rank.
        return {**variables, "PYTHONSAFEPATH": "1"}
    return {**variables, "CUDA_VISIBLE_DEVICES": _gpus(p)}


def _gpus(p: JobParameters) -> str:
    """Return the run's value of CUDA_VISIBLE_DEVICES: as many GPUs as it has on this node; empty for a run on CPUs.

    They are the first of this process's own CUDA_VISIBLE_DEVICES; where that is not set, 0, 1, ….

    Other GPUs are hidden because many scripts use all GPUs that they see (nn.DataParallel, `mp.spawn`, Lightning). A
    run on CPUs sees none because many scripts use a GPU wherever they see one.
    """
    devices = p.devices_per_node if p.device == "cuda" else 0
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(number) for number in range(devices)] if selected is None else selected.split(",")
    return ",".join(gpus[:devices])


def _path(command: RankCommand) -> str:
    """Return the PATH with the programs of the interpreter's environment first."""
    folders = (str(Path(command.python).parent), os.environ.get("PATH"))
    return os.pathsep.join(filter(None, folders))


def refusal(p: JobParameters, command: RankCommand, source: Mapping[str, str] = os.environ) -> Reason | None:
    """Return why a job cannot start on this machine; None if it can.

    `command`: that of one rank. `source`: environment variables.
    """
    if problem := _missing(p, command, source):
        return _cannot_run(problem)
    # A module of multicard is run by an interpreter that planning has checked.
    problem = _interpreter_problem(command.python) if command.folder else None
    if problem:
        return Reason("no_torch", message=problem)
    script = command.script
    if script and script.suffix == ".py":
        fault = _syntax_fault(command.python, script.absolute())
        if fault:
            return _cannot_run(f"command: {script} {fault}")
    launcher = LAUNCHERS[p.launched_by]
    if launcher.package and not _has_package(command.python, launcher.package):
        install = shlex.join([command.python, "-m", "pip", "install", launcher.package])
        return _cannot_run(f"launcher: {launcher.name} is not installed for {command.python}; install it: {install}")
    return None


def _cannot_run(message: str) -> Reason:
    return Reason("cannot_run", node=socket.gethostname(), message=message)


def _missing(p: JobParameters, command: RankCommand, source: Mapping[str, str]) -> str | None:
    """Return which file, program or variable keeps a job from starting; None if none does. Runs no program."""
    folder = command.folder
    if folder is not None and not folder.is_dir():
        return f"folder: no such folder: {folder.absolute()}"
    first_word = command.words[0]
    if folder is not None and first_word.endswith(".py") and command.script is None:
        return f"command: no such file: {first_word} (in {folder.absolute()})"
    program = start_command(p, command)[0]
    if program != command.python and not _is_program(program, command):
        return f"launcher: {p.launched_by} needs the program {program}, which is not on the PATH"
    if problem := LAUNCHERS[p.launched_by].refusal(source):
        return problem
    for name in command.passed_variables:
        if STANDALONE_TOKEN.search(source.get(name, "")):
            return f"environment: the value of {name} looks like a secret, which a profiler's report would hold"
    return None


def _is_program(program: str, command: RankCommand) -> bool:
    """Return True if a program is on the PATH of the ranks, or is the path of an executable in their folder."""
    if shutil.which(program, path=_path(command)) is not None:
        return True
    return os.sep in program and os.access((command.folder or Path()) / program, os.X_OK)


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

    >>> _is_older("2.10.0+cu128", "2.4"), _is_older("2.3.1", "2.4"), _is_older("?", "2.4")
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
