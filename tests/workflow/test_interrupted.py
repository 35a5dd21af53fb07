"""Pipelines that are interrupted, or started twice, end cleanly, and the next start does only what is missing.

Their runs replay a finished one; tests/launch/test_resume.py ends and resumes real training.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from project_copy import CONFIG, environment, planned, project, snakemake
from replayed_rank import DIVERGES, replaying

from conftest import TINY, add_digits

pytestmark = pytest.mark.slow

SNAKEMAKE = [str(Path(sys.prefix) / "bin" / "snakemake"), "--profile", "profiles/local", "--configfile", CONFIG]
EXPERIMENT: dict[str, Any] = {
    "results": "results",
    "fixed": TINY | {"profiler": "none"},
    "scenarios": {
        "seeds": {"question": "Which seed?", "vary": {"seed": [0, 1]}, "figures": ["step_times"]},
        "fast": {"question": "Too fast?", "fixed": {"learning_rate": DIVERGES}, "figures": ["step_times"]},
    },
}
LIMIT_S = 300
LAUNCHERS = "results/logs/launch_run"
ENDED = re.compile(r"^multicard: .*: (?:completed|diverged).* \(\d+ s\)$", re.M)


def started(folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a pipeline in a session of its own, as a terminal would, without what launchers said before."""
    shutil.rmtree(folder / LAUNCHERS, ignore_errors=True)
    return subprocess.Popen(
        SNAKEMAKE, cwd=folder, env=environment() | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # were it under nohup
    )  # fmt: skip


def wait_for(pipeline: subprocess.Popen[str], folder: Path, text: str, ended: int = 0) -> None:
    """Wait until a run that is at work has said it, and so many have ended."""
    while pipeline.poll() is None:
        said = [log.read_text() for log in folder.glob(f"{LAUNCHERS}/*.txt")]
        working = [log for log in said if not ENDED.search(log)]
        if len(said) - len(working) >= ended and any(text in log for log in working):
            return
        time.sleep(0.05)
    pytest.fail(f"no run said {text!r}")


def at_work(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder, or that run in it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            named = any(str(folder) in argument for argument in process.cmdline())
            if (named or process.cwd() == str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def nobody_left(folder: Path) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while at_work(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not at_work(folder)


def hidden(folder: Path) -> list[Path]:
    """What is written beside, and would be renamed when whole."""
    stays = (".snakemake_timestamp", ".lock", ".outcome")
    return [path for path in (folder / "results").rglob(".*") if path.name not in stays]


def end_by(number: signal.Signals, pipeline: subprocess.Popen[str]) -> None:
    """As a terminal does by Ctrl-C, a machine that shuts down (Snakemake alone), or a login shell that is closed."""
    if number == signal.SIGINT:
        os.killpg(pipeline.pid, number)
    elif number == signal.SIGTERM:
        os.kill(pipeline.pid, number)
    else:  # all processes of the session
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == pipeline.pid:
                    process.send_signal(number)


def test_a_pipeline_ended_by_ctrl_c_hangup_sigterm_or_a_kill_goes_on_where_it_was(
    extracted_run: Path, digits: Path, tmp_path: Path
) -> None:
    folder, ends = project(tmp_path / "my project", EXPERIMENT), tmp_path / "ends"
    add_digits(folder, digits)
    variables = replaying(tmp_path / "replayed", extracted_run, ends)
    runs = folder / "results" / "runs"
    ends.write_text("0")
    endings = {signal.SIGINT: "checkpoint after", signal.SIGHUP: "checkpoint after", signal.SIGTERM: "resuming after"}
    for number, when in endings.items():
        pipeline = started(folder, variables)
        wait_for(pipeline, folder, f"{when} epoch")
        if number == signal.SIGINT:  # meanwhile another one is refused
            second = snakemake(folder)
            assert second.returncode != 0
            assert second.stderr.count("Directory cannot be locked.") == 1 and "Traceback" not in second.stderr
        end_by(number, pipeline)
        pipeline.communicate(timeout=LIMIT_S)
        assert pipeline.returncode != 0
        assert nobody_left(folder), at_work(folder)
        assert not list(runs.glob("*/run.json"))
        assert not hidden(folder)
        # Snakemake removes what it declared of an interrupted job; this it does not know. Which run it starts with, it
        # chooses again each time.
        assert list(runs.glob("*/checkpoint.pt"))

    # The kernel's kill, in the middle of the run after a whole one.
    ends.write_text("1")
    pipeline = started(folder, variables)
    wait_for(pipeline, folder, "checkpoint after epoch", ended=1)
    os.killpg(pipeline.pid, signal.SIGKILL)
    pipeline.communicate(timeout=LIMIT_S)
    assert nobody_left(folder), at_work(folder)
    [whole] = runs.glob("*/run.json")
    written = whole.stat().st_mtime_ns
    # Snakemake cannot tell a killed pipeline from one that is running.
    refused = snakemake(folder)
    assert refused.returncode != 0
    assert "--unlock" in refused.stdout + refused.stderr
    assert snakemake(folder, "--unlock").returncode == 0
    assert len([line for line in planned(folder) if line.startswith("run ")]) == 2

    ends.write_text("3")
    shutil.rmtree(folder / LAUNCHERS)
    done = snakemake(folder, variables=variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert len([log for log in folder.glob(f"{LAUNCHERS}/*.txt") if ENDED.search(log.read_text())]) == 2
    assert (folder / "results/report.html").exists()
    assert not hidden(folder)
    records = [json.loads(path.read_text()) for path in runs.glob("*/run.json")]
    assert sorted(record["outcome"] for record in records) == ["completed", "completed", "diverged"]
    assert any(record["resumed"] for record in records)
    assert whole.stat().st_mtime_ns == written
    assert not list(runs.glob("*/checkpoint.pt"))
    assert planned(folder) == []

    # A run whose folder was deleted runs again.
    [diverged] = [path for path in runs.iterdir() if "lr1" in path.name or "1e" in path.name]
    diverged.rename(folder / "away")
    assert f"run {diverged.name}" in planned(folder)
