"""Running the pipeline by Snakemake in the current folder."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from multicard.core.layout import PROGRESS
from multicard.core.pipeline import pipeline_folder

INTERRUPTED = "interrupted; the same command continues where it stopped"
SHOWN_OF_A_FAILURE = 30  # lines of Snakemake's output


def run_pipeline(
    config: Path, profile: Path | None = None, options: Sequence[str] = (), targets: Sequence[str] = ()
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
        other = _print_progress(process, runs=profile is not None, quiet=bool(targets))
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


def _print_progress(process: subprocess.Popen, runs: bool, quiet: bool = False) -> list[str]:
    """Print a line for each step of Snakemake, with the share of the work that is done; give the other lines.

    `runs`: whether runs are steps to tell of, since their own lines are not seen, as on a cluster. `quiet`: print no
    lines.
    """
    assert process.stdout is not None
    progress = re.compile(rf"(?:{re.escape(PROGRESS)}|Job \d+: {'' if runs else '(?!run )'})(.*)")
    done, other = 0, []
    for line in map(str.rstrip, process.stdout):
        if share := re.fullmatch(r"\d+ of \d+ steps \((\d+)%\) done", line):
            done = int(share[1])
        elif step := progress.fullmatch(line):
            if not quiet:
                print(f"[{done:3d}%] {step[1]}", flush=True)
        else:
            other.append(line)
    return other
