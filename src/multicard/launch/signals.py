"""End a pipeline that is told to end, with all that it has begun."""

import contextlib
import os
import signal
import threading
from types import FrameType

import psutil


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, to this process and to its descendants in its session.

    Snakemake ends its jobs on Ctrl-C alone: told by SIGTERM it waits for them, for hours maybe, and by SIGHUP it leaves
    them to themselves. What is ignored (`nohup`) stays ignored, and the second time counts for nothing.
    """
    told = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if told.is_set():
            return
        told.set()
        session = os.getsid(0)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == session:
                    process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
