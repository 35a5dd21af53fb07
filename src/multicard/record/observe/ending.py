"""How the observer of a process comes to leave its record: at the end of its steps, of the process, or by an error."""

import contextlib
import sys
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import torch.distributed as dist

from multicard.record.observe.process import error_of_exit, leave_now


class EndingProcess:
    """The part of `Observer` that is there when the process ends."""

    def _leave_at_exit(self) -> None:
        Finalize(None, self.leave, exitpriority=100)

    def _leave_at_errors(self) -> None:
        """Leave a record as soon as an error ends the process, whose exit may wait for other ranks.

        One of multicard's own that has a process group does without Python's end, at which NCCL may wait for ever.
        """
        plain = sys.excepthook

        def leave(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            plain(kind, error, traceback)
            self.leave()
            if dist.is_available() and dist.is_initialized() and not self._read_job()["observe"]["is_user_program"]:
                leave_now(1)

        sys.excepthook = leave

    def _force_exit(self) -> None:
        if self._ended and self._recording is not None:
            leave_now(0)  # the script was asked to end, and goes on

    def _give_up(self, error: Exception) -> NoReturn:
        """End the script because of an error of the observer, or of ranks that do not agree.

        If another rank has left, and all measured steps were made, only the trace is lost.
        """
        from multicard.record.capture import RankLeft

        self._ended = True
        has_numbers = isinstance(error, RankLeft) and self._recording is not None and self._recording.has_measured
        if not has_numbers:
            print(f"multicard: cannot go on observing: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # the disk may be full
            self._leave_early(error)
        raise SystemExit(0 if has_numbers else 1) from error

    def leave(self) -> None:
        """The process exits: leave a record of what there is, unless it is written."""
        self._look_for_update()
        error = error_of_exit()
        if not (self._ended or self._is_beside or isinstance(error, KeyboardInterrupt)):
            self._leave_early(error)

    def _leave_early(self, error: BaseException | None) -> None:
        from multicard.record.observe.leaving import leave_early, write_failure

        if self._recording is not None:
            self._ended = True
            leave_early(self._recording, error)
        elif error is not None:
            write_failure(error, self._note_process, self._read_job())
