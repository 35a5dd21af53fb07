"""Messages on stderr about a job: that it starts, what it prints about its progress, and its outcome."""

import contextlib
import sys
from collections.abc import Sequence

from multicard.core.layout import PROGRESS
from multicard.core.reasons import describe_reason
from multicard.core.text import counted, printable
from multicard.core.units import SECONDS, with_unit
from multicard.launch.attempts import Attempt
from multicard.launch.judge import MeasuredSteps
from multicard.launch.supervise import Ended
from multicard.runs.record import RunRecord


def announce(attempt: Attempt, secrets: Sequence[str]) -> None:
    """Print that the job starts, the profiler that it runs under, and the variables that are withheld from it."""
    profiler = attempt.profiler
    is_as_configured = profiler.name == attempt.parameters.profiler and profiler.caveat is None
    remark = "" if is_as_configured else f" ({profiler.why})"
    print_progress(attempt.name, f"starting, profiler {profiler.name}{remark}")
    if secrets:
        withheld = f"{counted(len(secrets), 'variable')} withheld that may be secret"
        print_progress(attempt.name, f"{withheld}: {', '.join(secrets)}")


def report_outcome(attempt: Attempt, record: RunRecord, ended: Ended, measured: MeasuredSteps | None) -> None:
    """Print the outcome of the job, the time of a step if it completed, and the reason if it did not."""
    details: list[str] = [record.outcome]
    if measured is not None and record.completed:
        details.append(f"{with_unit(measured.step_s, SECONDS)} per step")
    text = ", ".join(filter(None, (*details, describe_reason(record.reason))))
    if record.outcome == "failed" and record.reason is not None and record.reason.message is None:
        text += f"; see {attempt.log}"
    print_progress(attempt.name, f"{text} ({ended.wall_time_s:.0f} s)")


def follow_progress(line: str) -> None:
    """Print the progress message in a line that the job printed; print nothing for a line without one.

    The message begins with `PROGRESS` and two blanks. Text before it is dropped, such as a script's progress bar.
    """
    _, prefix, progress = line.rpartition(f"{PROGRESS}  ")
    if prefix:
        _print(prefix + progress)


def print_progress(run: str, message: str) -> None:
    """Print a message about a run, by its id, as a line about progress."""
    _print(f"{PROGRESS}{run}: {message}")


def _print(line: str) -> None:
    # A closed terminal must not end the run.
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
