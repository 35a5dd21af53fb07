"""Running the pipeline by Snakemake in the current folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.core.pipeline import PARENT_PIPE, pipeline_folder
from multicard.core.signals import DeferredSignals


def run_pipeline(
    config: Path, profile: Path | None = None, options: Sequence[str] = (), targets: Sequence[str] = ()
) -> bool:
    """Run a configuration file by Snakemake in the current folder; return True if all that was asked for was made.

    `profile`: Snakemake's; by default the shipped one for this machine. `options`: further ones of Snakemake, with
    which all output is its own, not that of `snakemake_logger_plugin_multicard`.
    `targets`: files to make, of which only errors are printed; by default all, the report included.
    """
    pipeline = pipeline_folder()
    if options:
        console = "full"
    elif targets:
        console = "errors"
    else:
        console = "results"
    # -P: a file of the current folder must not take the place of a module that Snakemake imports.
    command = [sys.executable, "-P", "-m", "snakemake", "--configfile", str(config)]
    command += ["--snakefile", str(pipeline / "workflow/Snakefile")]
    command += ["--profile", str(profile or pipeline / "profiles/local")]
    command += ["--logger", "multicard", "--logger-multicard-console", console]
    command += [*options, *targets]
    return _run(command) == 0


def _run(command: Sequence[str]) -> int:
    """Return the exit code of Snakemake.

    Snakemake ends, with all that it started, when this process gets a signal to end, by Ctrl-C or not, and when this
    process is killed.
    """

    def end_snakemake(_number: int) -> None:
        process.send_signal(signal.SIGTERM)

    signals = DeferredSignals(repeat=end_snakemake)
    # Snakemake watches one end; the other one closes when this process ends in whatever way.
    watched, held = os.pipe()
    environment = os.environ | {PARENT_PIPE: f"{watched}:{os.fstat(watched).st_ino}"}
    try:
        # Snakemake gets a session of its own: Ctrl-C is to reach it once, as the signal on which it ends its jobs too.
        with (
            signals.installed(),
            subprocess.Popen(command, env=environment, pass_fds=[watched], start_new_session=True) as process,
            signals.delivered(end_snakemake),
        ):
            code = process.wait()
    finally:
        os.close(watched)
        os.close(held)
    if signals.first is not None:
        raise KeyboardInterrupt("interrupted; the same command continues where it stopped")
    return code
