"""End a pipeline that gets a signal, together with all processes that it has started."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import psutil

from multicard.core.pipeline import PARENT_PIPE
from multicard.core.signals import DeferredSignals
from multicard.workflow.submission import stop_submitting

CANCELLING_SLURM_JOBS = (
    "Cancelling the Slurm jobs. Snakemake ends after its next look at the queue, in at most three minutes; until then "
    "this directory stays locked."
)


def end_as_by_ctrl_c(submits_from: Path | None = None) -> threading.Event:
    """Let SIGTERM and SIGHUP do what Ctrl-C does to this process and to its descendants in its session.

    Snakemake ends its jobs only on Ctrl-C. On SIGTERM it waits for them, possibly for hours, and on SIGHUP it leaves
    them running. If the command that started the pipeline ends (see `PARENT_PIPE`), this process gets SIGTERM. A signal
    that is ignored, as under `nohup`, stays ignored. Only the first signal ends the pipeline: another one would
    interrupt the cleanup, and leave jobs queued. Another Ctrl-C prints how to stop at once; other signals do nothing
    more.

    `submits_from`: the folder from which the pipeline submits jobs to Slurm, or None. If it is given, the first signal
    also stops submissions from it, and prints a message on why ending takes long.

    Returns
    -------
    threading.Event
        Set when the first signal comes, that is, when the pipeline is to end.
    """
    ending = threading.Event()
    # A shell that runs a script lets the processes that it starts in the background ignore SIGINT, and their
    # descendants inherit that. Such descendants get SIGTERM instead.
    ignores_ctrl_c = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    for_descendants = signal.SIGTERM if ignores_ctrl_c else signal.SIGINT

    def end(number: int) -> None:
        ending.set()
        if submits_from:
            stop_submitting(submits_from)
            print(CANCELLING_SLURM_JOBS, file=sys.stderr, flush=True)
        # Ctrl-C in a terminal has reached the descendants already.
        if number != signal.SIGINT:
            _signal_descendants(for_descendants)
        raise KeyboardInterrupt

    signals = DeferredSignals(repeat=_explain_how_to_stop)
    signals.install()
    signals.deliver(end)
    _end_with_parent()
    return ending


def _signal_descendants(number: signal.Signals) -> None:
    """Send a signal to the descendants of this process that are in its session."""
    session = os.getsid(0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session:
                process.send_signal(number)


def _explain_how_to_stop(number: int) -> None:
    """Print how to stop at once if another Ctrl-C comes while the pipeline ends; do nothing on other signals.

    `print` cannot be used, because the signal may have interrupted a `print`.
    """
    if number == signal.SIGINT:
        os.write(2, f"Still ending. To stop at once, and leave jobs behind: kill -9 {os.getpid()}\n".encode())


def _end_with_parent() -> None:
    """Let this process get SIGTERM when the process that started the pipeline has ended.

    The pipe that `PARENT_PIPE` names shows that. Do nothing if the variable is not set, or the pipe is not there.
    """
    descriptor, _, inode = os.environ.pop(PARENT_PIPE, "").partition(":")
    try:
        # A process that inherits the variable but not the pipe, such as a job of Slurm, may have opened another file
        # under this descriptor. The inode shows that.
        has_pipe = os.fstat(int(descriptor)).st_ino == int(inode)
    except (ValueError, OSError):
        return

    def watch() -> None:
        # Nothing is ever written to the pipe, so this returns when the other end closes.
        os.read(int(descriptor), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if has_pipe:
        threading.Thread(target=watch, daemon=True).start()
