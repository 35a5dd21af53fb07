"""Have Python observe the script: Python runs this file as it starts. See `multicard.observe`.

The script's Python runs it, so any Python 3 must be able to: it has no f-strings, and newer types are in quotes.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # in place of `typing.TYPE_CHECKING`, because importing `typing` would take time
if TYPE_CHECKING:  # an old Python may lack these names
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = Path(__file__).parent
# A process that Python's multiprocessing starts, such as a worker of a DataLoader, has one of these in its arguments.
HELPERS = ("--multiprocessing-fork", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
# Variables in which a launcher gives a process its rank; see `multicard.observe.ranks`.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LONGEST_MESSAGE = 300  # characters of an error that process.json has
# Facts that `note_process` was given, by the process id: a process that forks passes its facts on to the new one, whose
# they are not.
NOTED = {}  # type: dict[int, dict[str, object]]
JOB = os.environ.get("MULTICARD_OBSERVE", "")  # read now, because the script may clear its environment


def note_process(**facts: object) -> None:
    """Write process.json of this process: its general facts, `facts`, and the facts of earlier calls.

    `facts` replace earlier and general ones of the same name.
    """
    noted = NOTED.setdefault(os.getpid(), {})
    noted.update(facts)
    job = os.environ.get("MULTICARD_OBSERVE", JOB)
    scratch = json.loads(Path(job).read_text(encoding="utf-8"))["scratch"]
    torch = sys.modules.get("torch")
    record = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "python": sys.version.split()[0],
        "torch": str(getattr(torch, "__version__", "")) or None,
        "program": program(),
        "told": launcher_variable(),
        "rank": launcher_rank(),
        "steps": False,
        "error": None,
    }
    record.update(noted)
    file = Path(scratch) / "process.json.{}".format(os.getpid())  # noqa: UP032
    part = file.with_suffix(file.suffix + ".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(file)


def launcher_rank() -> "int | None":
    """Return the rank that a launcher gave this process, or None."""
    variable = launcher_variable()
    return None if variable is None else int(variable.partition("=")[2])


def launcher_variable() -> "str | None":
    """Return the variable in which a launcher gave this process its rank, with its value ("RANK=0"); None if unset."""
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return "=".join((name, value))
    return None


def program() -> str:
    """Return the file or module that this process runs; "" if there is none, or Python is older than 3.10.

    For code on the command line it is only "-c", because the code may be secret.
    """
    arguments = iter(getattr(sys, "orig_argv", [])[1:])
    for argument in arguments:
        if argument == "-c" or not argument.startswith("-"):
            return argument
        if argument in ("-m", "-W", "-X"):
            value = next(arguments, "")
            if argument == "-m":
                return value
    return ""


class EmptyInput(io.TextIOWrapper):
    """Standard input of a job, which is empty.

    A script that reads it might go on with nothing, so the first read prints a warning.
    """

    has_warned = False

    def read(self, size: "int | None" = -1) -> str:
        """Warn at the first read, and return nothing."""
        self.warn_once()
        return super().read(size)

    # Python's own type is called here with a size or without one, by `input` and by iteration.
    def readline(self, size: int = -1) -> str:  # type: ignore[override]  # typeshed names the argument otherwise
        """Warn at the first read, and return nothing."""
        self.warn_once()
        return super().readline(size)

    def warn_once(self) -> None:
        """Print once that there is nothing to read; of several ranks, only rank 0 prints."""
        if not self.has_warned and launcher_rank() in (None, 0):
            self.has_warned = True
            what = "the script reads its standard input, which is empty: give it arguments or a file instead"
            print("multicard:   " + what, file=sys.stderr, flush=True)


def watch_input() -> None:
    """Have a warning printed when the script reads its standard input, if that is the null device."""
    null = Path(os.devnull).stat()
    stdin = os.fstat(0)
    is_empty = (null.st_dev, null.st_ino) == (stdin.st_dev, stdin.st_ino)
    if sys.stdin is not None and sys.stdin.fileno() == 0 and is_empty:
        sys.stdin = EmptyInput(sys.stdin.buffer, sys.stdin.encoding, sys.stdin.errors)


class TorchFinder(importlib.abc.MetaPathFinder):
    """Has the observer watch PyTorch as soon as the script has imported it."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of `torch` that Python finds, with a loader that also starts the observer.

        None for any other module, so that Python's other finders find it.
        """
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # otherwise `importlib.util.find_spec` would call this method again
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            # A script may look for torch without importing it, and import it later.
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                guarded(watch)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - of this loader only, not of its class
        return spec


def watch() -> None:
    """Have the observer hook into PyTorch, which has just been imported."""
    sys.path.insert(0, str(HERE))  # the script's environment may have another multicard
    try:
        from multicard.observe import hooks
    finally:
        sys.path.remove(str(HERE))

    if not is_helper():
        note_process()
    hooks.install(note_process, JOB)


def guarded(function: "Callable[[], None]") -> None:
    """Call a function of the observer. If it raises, print the error, because it must not end the script."""
    try:
        function()
    except Exception as error:
        message = "{}: {}".format(type(error).__name__, error)  # noqa: UP032
        print("multicard: cannot observe this process:", message, file=sys.stderr)


def is_helper() -> bool:
    """Return True if Python's multiprocessing started this process. It may be a rank nevertheless."""
    return any(helper in argument for argument in getattr(sys, "orig_argv", []) for helper in HELPERS)


def note_error() -> None:
    """Write the error that ends this process to process.json. If it has imported torch, the observer does so."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, Exception) and "multicard.observe.hooks" not in sys.modules:
        message = "{}: {}".format(type(error).__name__, " ".join(str(error).split()))
        if len(message) > LONGEST_MESSAGE:
            message = message[:LONGEST_MESSAGE].rpartition(" ")[0] + " …"
        reason = {"code": "error", "message": message}  # type: dict[str, object]
        rank = launcher_rank()
        if rank is not None:
            reason["rank"] = rank
        note_process(error={"outcome": "failed", "reason": reason})


def run_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    other_folders = [folder for folder in sys.path if Path(folder or ".").resolve() != HERE.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", other_folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def begin() -> None:
    """Note this process, and wait for it to import torch."""
    if not is_helper():
        note_process()
        atexit.register(guarded, note_error)
        guarded(watch_input)
    if sys.version_info >= (3, 10):  # noqa: UP036 - it is the script's Python
        sys.meta_path.insert(0, TorchFinder())


if JOB:
    guarded(begin)
run_next()
