"""What goes wrong on a cluster: a profiler hangs or is killed, a disk is full. The run is kept, or ends with one line.

Time limits, memory, divergence and lost ranks are in test_job.py and test_failing_rank.py; whole pipelines that are
interrupted in tests/workflow/test_interrupted.py.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import ROOT, TINY, path_without_nsys, ran
from forked_ranks import run_program
from multicard.config.read_run import read_run
from multicard.core.errors import TraceError
from multicard.core.files import write_json
from multicard.core.system import ask
from multicard.launch import job as job_module
from multicard.launch import node_ranks
from multicard.launch.job import run_job
from multicard.launch.node_ranks import run_ranks
from multicard.launch.watch import Limits
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.profilers import nsys
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import RunRecord
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

pytestmark = pytest.mark.slow

# A fake nsys: it runs the job that it is given, as far as a case wants, and leaves what a case wants.
FAKE = """#!/usr/bin/env python3
import subprocess, sys, time
from pathlib import Path
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version 0.0-fake"); sys.exit()
[report] = [a.partition("=")[2] for a in sys.argv if a.startswith("--output=")]
command = sys.argv[sys.argv.index(f"--output={report}") + 1 :]
open(Path(__file__).with_name("starts"), "a").write("x")
"""


def limit(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    """Have jobs run under these limits, waiting for no signal after they failed."""
    limited = partial(run_ranks, limits=Limits(signal_s=0.0, **limits))
    monkeypatch.setattr(job_module, "run_ranks", limited)


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a fake nsys first on the PATH; give the file in which each of its starts is an x."""
    limit(monkeypatch)

    def put(program: str, head: str = FAKE) -> Path:
        folder = tmp_path / "fake"
        folder.mkdir(exist_ok=True)
        (folder / "nsys").write_text(head + program)
        (folder / "nsys").chmod(0o755)
        places = [str(folder), str(Path(sys.executable).parent), path_without_nsys()]
        monkeypatch.setenv("PATH", os.pathsep.join(places))
        return folder / "starts"

    return put


def watched(digits: Path, folder: Path, limit: float = 600, **changes: Any) -> RunRecord:
    return run_job(VisionParameters(**(TINY | {"profiler": "nsys"} | changes)), digits, folder, limit)


def tables_of(folder: Path) -> dict[str, Any]:
    """The activity tables of a run, which say why they are absent."""
    export_run(folder)
    extract_run(folder, read_run(folder).ranks)
    return json.loads((folder / "activity" / "tables.json").read_text())["tables"]


def test_an_export_that_hangs_is_killed_and_leaves_no_database(
    fake_nsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "ask", lambda command, _limit_s: ask(command, 1.0))
    fake_nsys("#!/bin/sh\nsleep 1000\n", head="")
    with pytest.raises(TraceError, match=r"nsys export of r\.nsys-rep took more than 1 s"):
        nsys.PROFILER.export(tmp_path / "r.nsys-rep", tmp_path, limit_s=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["fake"]


def test_an_nsys_that_never_exits_after_its_job_is_killed_and_the_run_is_kept(
    digits: Path, fake_nsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, finish_s=1.0)
    fake_nsys("subprocess.run(command)\ntime.sleep(1000)\n")
    record = watched(digits, tmp_path / "run")
    reason = record.profiler.trace_missing
    assert record.outcome == "completed"
    assert reason == "nsys left no report: it did not exit within 1 s after the job, and was killed"
    assert len((tmp_path / "run" / "steps.csv").read_text().splitlines()) == 1 + 8 + 1 + LEAST_SETTLING + 3
    assert {table["absent"] for table in tables_of(tmp_path / "run").values()} == {reason}


# Printed by nsys 2023.4 on a busy machine, in 1 of 120 starts; file and line stand for its own.
NO_AGENT = (
    "/build/ClientProxy.cpp(389): Throw in function Endpoint ClientProxy::GetLocalEndpoint() const\n"
    "std::exception::what: RuntimeException\n[tag_message*] = Local Endpoint is not available.\n"
)
# Printed when its agent was killed; it exits with 0.
LOST = (
    "Connection to Agent lost. This is most likely a bug. Internal reason: 'End of file'.\n"
    "Please refer to the troubleshooting section of the docs:\n"
    "https://docs.nvidia.com/nsight-systems/UserGuide/index.html#troubleshooting\n"
)


def test_an_nsys_that_does_not_reach_its_agent_is_started_again_and_its_truncated_report_named(
    digits: Path, fake_nsys: Any, tmp_path: Path
) -> None:
    third = f"if Path(__file__).with_name('starts').stat().st_size < 3: sys.exit({NO_AGENT!r})\n"
    starts = fake_nsys(third + "subprocess.run(command)\nPath(report).write_bytes(b'half of a report')\n")
    record = watched(digits, tmp_path / "run")
    assert (record.outcome, record.profiler.trace_missing) == ("completed", None)
    assert starts.read_text() == "x" * 3
    [reason] = {table["absent"] for table in tables_of(tmp_path / "run").values()}
    # Without nsys on the PATH it cannot be exported.
    assert reason.startswith(("nsys export of report.nsys-rep ended with 1", "cannot export report.nsys-rep"))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (NO_AGENT, NO_AGENT.splitlines()[0]),
        ("Agent launcher failed.\n", "Agent launcher failed."),
        ("End of file\n", "End of file"),  # by which nothing tells that nsys printed it
        ("", None),
    ],
    ids=["no agent", "no launcher", "lost", "nothing"],
)
def test_an_nsys_that_never_starts_its_job_is_started_again_and_then_the_reason(
    output: str, says: str | None, digits: Path, fake_nsys: Any, tmp_path: Path
) -> None:
    started = fake_nsys(f"print({output!r}, end=''); sys.exit(1)\n")
    record = watched(digits, tmp_path / "run")
    assert record.reason.code == "profiler_failed"
    said = ["nsys: it exited with 1 before it had started the job", *filter(None, [says])]
    assert record.reason.message.startswith("; ".join(said)[:200])
    assert len(started.read_text()) == node_ranks.STARTS
    assert (tmp_path / "run" / "log.txt").read_text() == output


# Stands for a real nsys that dies and takes the job along, which waits in place of training, some time later.
DIES = """
import os, signal
dies = Path(__file__).with_name("starts").stat().st_size <= {times}
job = subprocess.Popen(command[:6] + ["sleep", "600"] if dies else command)  # as `in_profiler` begins it
while not Path(report).with_name("first_process").exists():
    time.sleep(0.01)
if dies:
    if os.fork() == 0:
        time.sleep(8)
        os.kill(job.pid, signal.SIGKILL)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(job.wait())
"""


@pytest.mark.parametrize(("times", "outcome"), [(1, "completed"), (2, "failed")])
def test_a_job_whose_nsys_dies_is_started_once_more(
    times: int, outcome: str, digits: Path, fake_nsys: Any, tmp_path: Path
) -> None:
    started = fake_nsys(DIES.format(times=times))
    record = watched(digits, tmp_path / "run")
    assert (record.outcome, len(started.read_text())) == (outcome, 2)
    failure = "nsys: it was killed by SIGKILL while the job ran"
    if outcome == "completed":
        assert failure in record.profiler.why
    else:
        assert record.reason.code == "profiler_failed"
        assert record.reason.message.startswith(failure)


@pytest.mark.nsys
@pytest.mark.rare
def test_a_real_nsys_that_is_killed_as_it_starts_is_started_again(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch)
    killed: list[int] = []

    def kill_first() -> None:
        while not killed:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[:2] == ["nsys", "profile"] and "--trace=nvtx" in process.cmdline():
                        process.kill()
                        killed.append(process.pid)
            time.sleep(0.005)

    watcher = threading.Thread(target=kill_first, daemon=True)
    watcher.start()
    record = watched(digits, tmp_path / "run")
    watcher.join()
    assert (record.outcome, record.profiler.trace_missing) == ("completed", None)
    # It takes half a second from its start to the job's.
    assert "the job was started again: nsys: it was killed by SIGKILL before it had started" in record.profiler.why


def test_an_nsys_that_goes_on_without_its_job_is_ended(
    digits: Path, fake_nsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, unused_s=1.0)
    started = fake_nsys("time.sleep(1000)\n")
    record = watched(digits, tmp_path / "run")
    assert record.reason.code == "profiler_failed" and len(started.read_text()) == 2
    assert record.reason.message.startswith("nsys: it did not start the job")


def test_an_nsys_that_loses_its_agent_is_the_reason(digits: Path, fake_nsys: Any, tmp_path: Path) -> None:
    for exit_code in (0, 137):
        job = "subprocess.run(command[:6] + ['true'])\n"
        fake_nsys(f"{job}print('an error of a step is 0.1')\nprint({LOST!r})\nsys.exit({exit_code})")
        reason = watched(digits, tmp_path / "run").reason
        assert reason.code == "profiler_failed"
        assert reason.message.startswith(f"nsys: {LOST.splitlines()[0]}")
    # And one that never starts its job costs no more than the time limit.
    fake_nsys("time.sleep(1000)\n")
    record = watched(digits, tmp_path / "run", limit=2)
    assert record.outcome == "timed_out" and record.wall_time_s < 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB that is really full when it is."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = ran("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", folder)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Leave that many bytes of a file system free."""
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * (shutil.disk_usage(folder).free - leave))
    return ballast


def program(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run one of the workflow's programs."""
    return run_program(ROOT / "workflow" / "scripts" / f"{name}.py", *arguments)


def complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a program that cannot go on exits."""
    assert ended.returncode == 1, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith("multicard: ")]
    return line


def test_a_run_on_a_full_disk_ends_with_one_line_and_completes_when_there_is_space(
    digits: Path, small_disk: Path
) -> None:
    run = small_disk / "run"
    arguments = ["--parameters", json.dumps(TINY | {"profiler": "kineto", "epochs": 2}), "--data", digits, "--out", run]
    for leave in (0, 8192, 1 << 18):  # the last is space for a part of the observer
        ballast = fill(small_disk, leave)
        output = complaint(program("launch_run", *arguments))
        assert output.startswith(str(run)) and output.endswith("free space and start again")
        # No record, and no half of one: at most what the job printed.
        left = {path.name for path in run.rglob("*") if path.is_file()} if run.exists() else set()
        assert left <= {".lock", "log.txt", "captured.json", "steps.csv", "epochs.csv"}
        ballast.unlink()
    ended = program("launch_run", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((run / "run.json").read_text())["outcome"] == "completed"


def test_tables_and_figures_on_a_full_disk_are_complete_or_absent(
    recorded_results: Path, small_disk: Path, tmp_path: Path
) -> None:
    runs = sorted((recorded_results / "runs").iterdir())
    tables = tmp_path / "tables"
    write_json(tmp_path / "runs.json", {"folders": list(map(str, runs)), "not_run": {}})
    measured = program("measure_scenario", tmp_path / "runs.json", "--out", tables)
    assert measured.returncode == 0, measured.stderr
    shutil.copytree(runs[0], small_disk / "run", ignore=shutil.ignore_patterns("activity", ".lock"))
    ballast = fill(small_disk, 8192)
    programs = {
        "extract_activity": [small_disk / "run"],
        "measure_scenario": [tmp_path / "runs.json", "--out", small_disk / "scenario"],
        "draw_figures": ["step_breakdown", "--scenario", tables, "--out", small_disk / "figures"],
    }
    for name, arguments in programs.items():
        assert "No space left on device; free space and start again" in complaint(program(name, *arguments))
    before = {path for path in small_disk.rglob("*") if path.is_file()} - {ballast}
    assert not [path for path in before if path.name.startswith(".")]

    ballast.unlink()
    for name, arguments in programs.items():
        ended = program(name, *arguments)
        assert ended.returncode == 0, ended.stderr
    assert (small_disk / "figures" / "step_breakdown.pdf").read_bytes().rstrip().endswith(b"%%EOF")
    # What was complete before is unchanged.
    for path in before & set(small_disk.rglob("*.parquet")):
        assert path.read_bytes()[-4:] == b"PAR1"
