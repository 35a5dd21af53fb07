"""End a pipeline that gets a signal, with all that it has started."""

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
    """Let SIGTERM and SIGHUP do what Ctrl-C does, to this process and to its descendants in its session.

    Snakemake ends its jobs on Ctrl-C only: on SIGTERM it waits for them, possibly for hours, and on SIGHUP it leaves
    them running. The death of a command that started the pipeline (`PARENT_PIPE`) counts as SIGTERM. A signal that is
    ignored (`nohup`) stays ignored. A second signal would interrupt the cleaning up, and leave jobs queued: it only
    prints how to stop at once.

    `submits_from`: folder that jobs are submitted from to Slurm: submit no more, and print what takes so long.

    Returns
    -------
    threading.Event
        Set when the pipeline is to end.
    """
    ending = threading.Event()
    # A shell that runs a script has what it starts in the background ignore SIGINT, and so all of its descendants.
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
    """Answer another Ctrl-C while the pipeline ends; without `print`, which the signal may have interrupted."""
    if number == signal.SIGINT:
        os.write(2, f"Still ending. To stop at once, and leave jobs behind: kill -9 {os.getpid()}\n".encode())


def _end_with_parent() -> None:
    """Get SIGTERM when the process that started this pipeline has ended, if it left a pipe to notice that by."""
    descriptor, _, inode = os.environ.pop(PARENT_PIPE, "").partition(":")
    try:
        # A process that inherits the variable without the pipe, such as a job of Slurm, may have another file there.
        has_pipe = os.fstat(int(descriptor)).st_ino == int(inode)
    except (ValueError, OSError):
        return

    def watch() -> None:
        os.read(int(descriptor), 1)  # returns when the other end closes
        os.kill(os.getpid(), signal.SIGTERM)

    if has_pipe:
        threading.Thread(target=watch, daemon=True).start()
