"""Running the pipeline by Snakemake in the current folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from multicard.core.pipeline import PARENT_PIPE, pipeline_folder


def run_pipeline(
    config: Path, profile: Path | None = None, options: Sequence[str] = (), targets: Sequence[str] = ()
) -> bool:
    """Run a configuration file by Snakemake in the current folder; whether all that was to be made was.

    `profile`: Snakemake's; by default the shipped one for this machine. `options`: further ones of Snakemake, with
    which all output is its own, not that of `snakemake_logger_plugin_multicard`.
    `targets`: files to make, of which only errors are printed; by default all, the report included.
    """
    pipeline = pipeline_folder()
    # -P: a file of the current folder must not take the place of a module that Snakemake imports.
    command = [sys.executable, "-P", "-m", "snakemake", "--configfile", str(config)]
    command += ["--snakefile", str(pipeline / "workflow/Snakefile")]
    command += ["--profile", str(profile or pipeline / "profiles/local")]
    shown = "full" if options else "errors" if targets else "results"
    command += ["--logger", "multicard", "--logger-multicard-console", shown, *options, *targets]
    return _run(command) == 0


def _run(command: Sequence[str]) -> int:
    """Return the exit code of Snakemake.

    It ends with all that it started when this process is told to, by Ctrl-C or not, and when this process is killed.
    """
    received: list[int] = []
    started: list[subprocess.Popen] = []

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for process in started:
            process.send_signal(signal.SIGTERM)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    watched, held = os.pipe()
    try:
        # In a session of its own: Ctrl-C is to reach it once, as the signal on which it ends its jobs too.
        environment = os.environ | {PARENT_PIPE: f"{watched}:{os.fstat(watched).st_ino}"}
        with subprocess.Popen(command, env=environment, pass_fds=[watched], start_new_session=True) as process:
            started.append(process)
            if received:  # while it started
                process.send_signal(signal.SIGTERM)
            code = process.wait()
    finally:
        os.close(watched)
        os.close(held)
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt("interrupted; the same command continues where it stopped")
    return code
