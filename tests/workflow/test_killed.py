"""A job ends with the pipeline that started it, and the pipeline with its command, even where these are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from multicard.core.files import write_json

pytestmark = pytest.mark.slow

LIMIT_S = 300
# A script that waits, as does a child that detaches from it. It notes their ids.
WAITS = """
import os, signal, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)
part = Path(__file__).with_name("part")
part.write_text(f"{os.getpid()} {child.pid}")
part.rename(part.with_name("waiting"))
time.sleep(600)
"""


def configuration(folder: Path) -> Path:
    """Write a configuration of one run, of a script that waits."""
    (folder / "waits.py").write_text(WAITS)
    scenario = {
        "question": "Does it end?", "fixed": {"workload": "script", "command": ["waits.py"], "device": "cpu"},
        "figures": ["step_times"],
    }  # fmt: skip
    config = folder / "config.yaml"
    write_json(config, {"fixed": {"profiler": "none"}, "scenarios": {"waits": scenario}})
    return config


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[list[psutil.Process]]:
    """`multicard run` and all that it has started, parents first, when the script waits."""
    command = [sys.executable, "-m", "multicard", "run", str(configuration(tmp_path))]
    with (tmp_path / "output").open("w") as output:
        # Away from this session, as by `setsid nohup`.
        started = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    processes: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < deadline and started.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.1)
        root = psutil.Process(started.pid)
        processes += [root, *root.children(recursive=True)]
        yield processes
    finally:
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        started.wait()


def named(processes: list[psutil.Process], words: str) -> psutil.Process:
    return next(each for each in processes if words in " ".join(each.cmdline()))


def survivors(processes: list[psutil.Process], limit_s: float) -> list[str]:
    """Command lines of the processes that are still there after so many seconds."""
    deadline = time.monotonic() + limit_s
    while True:
        left = []
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@pytest.mark.parametrize(
    "killed", ["-m multicard run", "launch_run.py", pytest.param("-m snakemake", marks=pytest.mark.rare)]
)
def test_all_of_a_pipeline_ends_when_a_part_of_it_is_killed(
    killed: str, pipeline: list[psutil.Process], tmp_path: Path
) -> None:
    script, child = map(int, (tmp_path / "waiting").read_text().split())
    assert {script, child} <= {each.pid for each in pipeline}
    # Snakemake reports a job that failed, and does not end because of it.
    stays = ("multicard run", "snakemake") if killed == "launch_run.py" else ()
    doomed = [each for each in pipeline if not any(word in " ".join(each.cmdline()) for word in stays)]
    assert len(doomed) >= 4
    named(pipeline, killed).kill()
    assert survivors(doomed, LIMIT_S) == []
    assert not list((tmp_path / "results" / "runs").glob("*/run.json"))  # so that the same command continues


def test_a_pipeline_outlives_the_shell_that_started_it(tmp_path: Path) -> None:
    command = f"nohup {sys.executable} -m multicard run {configuration(tmp_path)} > output 2>&1 & echo $!"
    shell = subprocess.run(["setsid", "bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    root = psutil.Process(int(shell.stdout))
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        processes = [root, *root.children(recursive=True)]
        time.sleep(3)
        assert len(survivors(processes, 0)) == len(processes)
    finally:
        os.kill(root.pid, signal.SIGTERM)
    assert survivors(processes, LIMIT_S) == []
