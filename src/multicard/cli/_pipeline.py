"""Run the pipeline with Snakemake in the current folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.config.load import read_profile
from multicard.core.pipeline import PARENT_PIPE, pipeline_folder
from multicard.core.signals import DeferredSignals


def run_pipeline(
    config: Path,
    profile: Path | None = None,
    options: Sequence[str] = (),
    targets: Sequence[str] = (),
    console: str = "errors",
    began: float = 0.0,
    earlier_runs: int = 0,
) -> bool:
    """Run a configuration file with Snakemake in the current folder; return True if Snakemake made all targets.

    Parameters
    ----------
    profile
        Profile of Snakemake; None for the shipped one for this machine.
    options
        Further options of Snakemake. With options, Snakemake prints its own output instead of that of
        `snakemake_logger_plugin_multicard`.
    targets
        Files to make; by default all files are made, the report included.
    console
        What is printed while targets are made: `errors` alone or the `runs`, too.
    began
        When the command began that the runs are part of, by `time.monotonic`; 0 if it begins with this pipeline. The
        results say how long it took.
    earlier_runs
        Number of runs that this command made before.
    """
    pipeline = pipeline_folder()
    if options:
        console = "full"
    elif not targets:
        console = "results"
    # With -P Python does not import modules from the current folder, where a file may have the name of a module.
    command = [sys.executable, "-P", "-m", "snakemake", "--configfile", str(config)]
    command += ["--snakefile", str(pipeline / "workflow/Snakefile")]
    command += ["--profile", str(profile)] if profile else _local_options(pipeline / "profiles/local")
    command += ["--logger", "multicard", "--logger-multicard-console", console]
    if began:
        command += [f"--logger-multicard-began={began}", f"--logger-multicard-earlier-runs={earlier_runs}"]
    command += [*options, *targets]
    return _run(command) == 0


def _local_options(profile: Path) -> list[str]:
    """Return the options that the shipped profile for this machine states, as on a command line.

    Given the profile itself, Snakemake would begin by printing that it uses it, which says nothing to the user. It gets
    the profile if this was edited and states anything but plain options.
    """
    options = ["--profile", "none"]
    for name, value in read_profile(profile).items():
        if value is True:
            options.append(f"--{name}")
        elif isinstance(value, str | int | float) and value is not False:
            options.append(f"--{name}={value}")
        else:
            return ["--profile", str(profile)]
    return options


def _run(command: Sequence[str]) -> int:
    """Run Snakemake and return its exit code; raise `KeyboardInterrupt` if this process was asked to end meanwhile.

    If this process gets SIGINT (Ctrl-C), SIGTERM or SIGHUP, or if it is killed, Snakemake ends with all processes and
    jobs that it started.
    """

    def end_snakemake(_number: int) -> None:
        process.send_signal(signal.SIGTERM)

    signals = DeferredSignals(repeat=end_snakemake)
    # Snakemake watches the reading end of the pipe. The writing end closes when this process ends, even if it is
    # killed.
    watched, held = os.pipe()
    environment = os.environ | {PARENT_PIPE: f"{watched}:{os.fstat(watched).st_ino}"}
    try:
        # In a session of its own Snakemake does not get Ctrl-C from the terminal. It gets only the SIGTERM that
        # `end_snakemake` sends, on which it also ends its jobs.
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
