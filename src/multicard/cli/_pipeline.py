"""Running the pipeline by Snakemake in the current folder."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from multicard.core.errors import UserError
from multicard.core.layout import OUTCOMES, PROGRESS
from multicard.core.pipeline import pipeline_folder
from multicard.launch.signals import ON_SLURM

INTERRUPTED = "interrupted; the same command continues where it stopped"
OF_QUEUE = ("Slurm job ", ON_SLURM)  # what lines begin with that say why a job, or the end, is waited for
SHOWN_OF_A_FAILURE = 30  # lines of Snakemake's output


def run_pipeline(
    config: Path,
    profile: Path | None = None,
    options: Sequence[str] = (),
    targets: Sequence[str] = (),
    why_stop: Callable[[str], str | None] = lambda _run: None,
) -> bool:
    """Run a configuration file by Snakemake in the current folder; whether all that was to be made was.

    Parameters
    ----------
    profile
        Snakemake's profile; by default the shipped one for this machine.
    options
        Further options of Snakemake. With some its output is its own, else a line for each step.
    targets
        Files to make, of which nothing is printed unless it fails; by default all, the report included.
    why_stop
        Is told of each run that has ended on this machine; gives a reason to stop all, or None.

    Raises
    ------
    UserError
        If it was stopped: the reason.
    """
    pipeline = pipeline_folder()
    # -P: a file of the current folder must not take the place of a module that Snakemake imports.
    command = [sys.executable, "-P", "-m", "snakemake", "--configfile", str(config)]
    command += ["--snakefile", str(pipeline / "Snakefile"), "--profile", str(profile or pipeline / "profiles/local")]
    if options:
        with _snakemake([*command, *options]) as process:
            return process.wait() == 0
    command += targets
    with _snakemake(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        other, stopped = _print_progress(process, profile is not None, bool(targets), why_stop)
    if stopped:
        raise UserError(stopped)
    if process.returncode:
        print(*other[-SHOWN_OF_A_FAILURE:], sep="\n", file=sys.stderr)
    return process.returncode == 0


@contextmanager
def _snakemake(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Start Snakemake, which ends with all that it started when this process is told to end, by Ctrl-C or otherwise."""
    received: list[int] = []
    started: list[subprocess.Popen] = []

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for process in started:
            process.send_signal(signal.SIGTERM)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        # In a session of its own: Ctrl-C is to reach it once, as the signal on which it ends its jobs too.
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            started.append(process)
            if received:  # while it started
                process.send_signal(signal.SIGTERM)
            yield process
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt(INTERRUPTED)


def _print_progress(
    process: subprocess.Popen, on_cluster: bool, quiet: bool, why_stop: Callable[[str], str | None]
) -> tuple[list[str], str | None]:
    """Print a line for each step of Snakemake, with the number of runs that are done.

    Returns the other lines, and why the pipeline was stopped.

    `on_cluster`: the lines of the runs themselves are not seen. `quiet`: print only what is said of Slurm's queue.
    """
    assert process.stdout is not None
    shown = re.compile(rf"(?:{re.escape(PROGRESS)}|Job \d+: {'' if on_cluster else '(?!run )'})(.*)")
    ended = re.compile(rf"(\S+): (?:{'|'.join(OUTCOMES)})\b")
    runs, done, other, stopped = 0, 0, [], None
    for line in map(str.rstrip, process.stdout):
        if planned := re.fullmatch(r"launch_run +(\d+)", line):
            runs = int(planned[1])
        elif step := shown.fullmatch(line):
            run = ended.match(step[1]) if line.startswith(PROGRESS) else None
            done += bool(run)
            if not quiet:
                print(f"[{done}/{runs} runs] {step[1]}" if runs else step[1], flush=True)
            if run and not stopped and (stopped := why_stop(run[1])):
                process.send_signal(signal.SIGTERM)
        elif line.startswith(OF_QUEUE):
            print(line, flush=True)
        elif not re.fullmatch(r"\d+ of \d+ steps \(\d+%\) done", line):
            done += on_cluster and line.startswith("Finished jobid: ") and line.endswith("(Rule: launch_run)")
            other.append(line)
    return other, stopped
