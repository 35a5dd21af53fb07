"""End a pipeline that is told to end, with all that it has started."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import psutil

from multicard.core.pipeline import PARENT_PIPE
from multicard.workflow.submission import stop_submitting

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ON_SLURM = (
    "Cancelling the Slurm jobs. Snakemake ends after its next look at the queue, in at most three minutes; until then "
    "this directory stays locked."
)


def end_as_by_ctrl_c(submits_from: Path | None = None) -> threading.Event:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, to this process and to its descendants in its session.

    Snakemake ends its jobs on Ctrl-C only: on SIGTERM it waits for them, possibly for hours, and on SIGHUP it leaves
    them running. The death of a command that started the pipeline (`PARENT_PIPE`) counts as SIGTERM. A signal that is
    ignored (`nohup`) stays ignored. A second signal would interrupt the cleaning up, and leave jobs queued: it only
    says how to stop at once.

    `submits_from`: folder that jobs are submitted from to Slurm: submit no more, and say what takes so long.

    Returns
    -------
    threading.Event
        Set when the pipeline is told to end.
    """
    ending = threading.Event()
    # A shell that runs a script has what it starts in the background ignore SIGINT, and so all of its descendants.
    told = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT

    def end(number: int, _frame: FrameType | None) -> None:
        if ending.is_set():
            if number == signal.SIGINT:
                os.write(2, f"Still ending. To stop at once, and leave jobs behind: kill -9 {os.getpid()}\n".encode())
            return
        ending.set()
        if submits_from:
            stop_submitting(submits_from)
            print(ON_SLURM, file=sys.stderr, flush=True)
        if number != signal.SIGINT:  # which a terminal sends to all of them
            session = os.getsid(0)
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if os.getsid(process.pid) == session:
                        process.send_signal(told)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    _end_with_parent()
    return ending


def _end_with_parent() -> None:
    """Get SIGTERM when the process that started this pipeline has ended, if it left a pipe to tell by."""
    descriptor, _, inode = os.environ.pop(PARENT_PIPE, "").partition(":")
    try:
        # A process that inherits the variable without the pipe, such as a job of Slurm, may have another file there.
        is_there = os.fstat(int(descriptor)).st_ino == int(inode)
    except (ValueError, OSError):
        return

    def watch() -> None:
        os.read(int(descriptor), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if is_there:
        threading.Thread(target=watch, daemon=True).start()
