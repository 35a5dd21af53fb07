"""Python runs this file as it starts, before the script. See `multicard.record.observe`; any Python 3 can read it."""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Arguments of processes that Python's multiprocessing starts, such as the workers of a DataLoader.
HELPERS = ("--multiprocessing-fork", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
# Variables in which a launcher tells a process its rank; see `multicard.record.observe.ranks`.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LONGEST_MESSAGE = 300  # characters
JOB = os.environ.get("MULTICARD_OBSERVE")  # the script may clear its environment


def note_process(**facts):
    """Write process.json of this process, with what is known of it."""
    job = os.environ.get("MULTICARD_OBSERVE", JOB)
    scratch = json.loads(Path(job).read_text(encoding="utf-8"))["scratch"]
    torch = sys.modules.get("torch")
    record = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "python": sys.version.split()[0],
        "torch": str(getattr(torch, "__version__", "")) or None,
        "program": program(),
        "told": told_variable(),
        "rank": told_rank(),
        "steps": False,
        "error": None,
    }
    record.update(facts)
    file = Path(scratch) / "process.json.{}".format(os.getpid())  # noqa: UP032
    part = file.with_suffix(file.suffix + ".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(file)


def told_rank():
    """Rank that a launcher told this process, or None."""
    told = told_variable()
    return told and int(told.partition("=")[2])


def told_variable():
    """The variable by which it did so and its value, such as RANK=0; or None."""
    stated = [(name, os.environ.get(name, "")) for name in RANKS]
    return next(("=".join(each) for each in stated if each[1].isdigit()), None)


def program():
    """File or module that this process runs; `-c` for code on its command line, which may hold anything."""
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
    """Standard input of a job, which is empty. A script that reads it might go on with nothing, so it says so once."""

    is_told = False

    def read(self, *arguments):
        """Read nothing."""
        self.tell_once()
        return super().read(*arguments)

    def readline(self, *arguments):
        """Read nothing; `input` and iteration call this, too."""
        self.tell_once()
        return super().readline(*arguments)

    def tell_once(self):
        """Print that there is nothing to read, unless another rank does."""
        if not self.is_told and told_rank() in (None, 0):
            self.is_told = True
            what = "the script reads its standard input, which is empty: give it arguments or a file instead"
            print("multicard:   " + what, file=sys.stderr, flush=True)


def watch_input():
    """Have a script told that its standard input is empty, if it is."""
    null, own = Path(os.devnull).stat(), os.fstat(0)
    if sys.stdin is not None and sys.stdin.fileno() == 0 and (null.st_dev, null.st_ino) == (own.st_dev, own.st_ino):
        sys.stdin = EmptyInput(sys.stdin.buffer, sys.stdin.encoding, sys.stdin.errors)


class TorchFinder(importlib.abc.MetaPathFinder):
    """Has the observer watch PyTorch as soon as the script has imported it."""

    def find_spec(self, name, path=None, target=None):
        """Find `torch` as Python does, and give it a loader that goes on to the observer; nothing else."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # not to be asked again meanwhile
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)  # to ask whether torch is there is not to import it
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                guarded(watch)

            spec.loader.exec_module = exec_module
        return spec


def watch():
    """Hook into PyTorch."""
    sys.path.insert(0, str(HERE))  # the script's environment may have another multicard
    try:
        from multicard.record.observe import hooks
    finally:
        sys.path.remove(str(HERE))

    if not is_helper():
        note_process()
    hooks.install(note_process, JOB)


def guarded(function):
    """Run a function of the observer, whose failure must not be one of the script."""
    try:
        function()
    except Exception as error:
        message = "{}: {}".format(type(error).__name__, error)  # noqa: UP032
        print("multicard: cannot observe this process:", message, file=sys.stderr)


def is_helper():
    """Whether Python's multiprocessing started this process; a rank may be one too."""
    return any(helper in argument for argument in getattr(sys, "orig_argv", []) for helper in HELPERS)


def note_error():
    """Note the error that ends this process, unless it has imported torch: then the observer does."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, Exception) and "multicard.record.observe.hooks" not in sys.modules:
        message = "{}: {}".format(type(error).__name__, " ".join(str(error).split()))
        if len(message) > LONGEST_MESSAGE:
            message = message[:LONGEST_MESSAGE].rpartition(" ")[0] + " …"
        reason = {"code": "error", "message": message}
        if told_rank() is not None:
            reason["rank"] = told_rank()
        note_process(error={"outcome": "failed", "reason": reason})


def run_next():
    """Run the sitecustomize that this one hides, if there is one."""
    others = [folder for folder in sys.path if Path(folder or ".").resolve() != HERE.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def begin():
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
