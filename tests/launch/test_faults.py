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
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import ROOT, TINY, path_without_nsys
from forked_ranks import run_program
from multicard.core.errors import TraceError
from multicard.core.files import described, write_json
from multicard.launch import job, process, trace_files
from multicard.launch.job import run_job
from multicard.profilers import nsys
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.workloads.vision.parameters import VisionParameters
from waiting_ranks import GO, waiting_at

pytestmark = pytest.mark.slow

WATCHED = TINY | {"profiler": "nsys"}

# A fake nsys: it runs the job that it is given, as far as a case wants, and leaves what a case wants.
FAKE = """#!/usr/bin/env python3
import subprocess, sys, time
from pathlib import Path
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version 0.0-fake"); sys.exit()
[report] = [a.partition("=")[2] for a in sys.argv if a.startswith("--output=")]
command = sys.argv[sys.argv.index(f"--output={report}") + 1 :]
"""


def fake_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, head: str = FAKE) -> None:
    """Put a fake nsys first on the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / "nsys").write_text(head + program)
    (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), str(Path(sys.executable).parent), path_without_nsys()]))


def watched(digits: Path, folder: Path, limit: float = 600, **changes: Any) -> dict[str, Any]:
    return run_job(VisionParameters(**(WATCHED | changes)), digits, folder, limit)


def measured_without_trace(folder: Path, reason: str) -> None:
    """The record and its steps are kept; the trace is missing for that reason, and its tables are empty and say so."""
    record = json.loads((folder / "run.json").read_text())
    assert (record["outcome"], record["reason"]) == ("completed", None)
    assert record["profiler"]["trace_missing"] == reason
    assert len((folder / "steps.csv").read_text().splitlines()) == 1 + 8 + 1 + LEAST_SETTLING + 3
    export_run(folder)
    extract_run(folder)
    tables = json.loads((folder / "activity" / "tables.json").read_text())["tables"]
    assert {table["absent"] for table in tables.values()} == {reason}


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("#!/bin/sh\nsleep 1000\n", "hangs, and so does a child that holds its output"),
        ("#!/bin/sh\nprintf '\\377\\376\\000\\001 version'\n", "prints what is no text"),
        ("#!/bin/sh\necho 'NVIDIA Nsight Systems version 1'\nexit 3\n", "fails"),
        ("no program\x00", "cannot be run"),
        ("#!/no/such/interpreter\n", "cannot be run either"),
    ],
)
def test_an_nsys_that_prints_no_version_is_not_used(
    program: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "VERSION_LIMIT_S", 1.0)
    fake_nsys(tmp_path / "fake", monkeypatch, program, head="")
    started = time.monotonic()
    why = "the nsys on the PATH does not work: nsys --version prints no version"
    assert job.choose_profiler("auto", "cpu") == ("kineto", why, None)
    assert time.monotonic() - started < 100


def test_an_export_that_hangs_is_killed_and_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("EXPORT_LIMIT_S", "VERSION_LIMIT_S"):
        monkeypatch.setattr(nsys, limit, 1.0)
    fake_nsys(tmp_path / "fake", monkeypatch, "#!/bin/sh\nsleep 1000\n", head="")
    with pytest.raises(TraceError, match=r"nsys export of r\.nsys-rep took more than 1 s"):
        nsys.PROFILER.export(tmp_path / "r.nsys-rep", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fake"]


def test_an_nsys_that_never_exits_after_its_job_is_killed_and_the_run_is_kept(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (process, trace_files):
        monkeypatch.setattr(module, "FINISH_LIMIT_S", 1.0)
    fake_nsys(tmp_path / "fake", monkeypatch, "subprocess.run(command)\ntime.sleep(1000)\n")
    watched(digits, tmp_path / "run")
    reason = "nsys left no report: it did not exit within 1 s after the job, and was killed"
    measured_without_trace(tmp_path / "run", reason)


def test_an_nsys_that_never_starts_its_job_costs_no_more_than_the_time_limit(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nsys(tmp_path / "fake", monkeypatch, "time.sleep(1000)\n")
    record = watched(digits, tmp_path / "run", limit=2)
    assert record["outcome"] == "timed_out"
    assert record["wall_time_s"] < 100


# Printed by nsys 2023.4 on a busy machine, in 1 of 120 starts; file and line stand for its own.
NO_AGENT = (
    "/build/ClientProxy.cpp(389): Throw in function Endpoint ClientProxy::GetLocalEndpoint() const\n"
    "std::exception::what: RuntimeException\n[tag_message*] = Local Endpoint is not available.\n"
)


def without_agent(digits: Path, folder: Path, failures: int) -> dict[str, Any]:
    """A run under an nsys that so many times does not reach its agent, and then leaves a truncated report."""
    starts = folder / "starts"
    program = (
        f"open({str(starts)!r}, 'a').write('x')\n"
        f"if len(open({str(starts)!r}).read()) <= {failures}:\n    sys.exit({NO_AGENT!r})\n"
        "subprocess.run(command)\nPath(report).write_bytes(b'half of a report')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        fake_nsys(folder / "fake", patch, program)
        return watched(digits, folder / "run")


@pytest.fixture(scope="module")
def third_start(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run in which the third start reached the agent."""
    folder = tmp_path_factory.mktemp("third")
    without_agent(digits, folder, 2)
    return folder


def test_an_nsys_that_does_not_reach_its_agent_is_started_again(third_start: Path) -> None:
    record = json.loads((third_start / "run" / "run.json").read_text())
    assert record["outcome"] == "completed"
    assert (third_start / "starts").read_text() == "x" * 3


def test_an_nsys_that_never_reaches_its_agent_fails_the_job(digits: Path, tmp_path: Path) -> None:
    assert without_agent(digits, tmp_path, process.STARTS)["outcome"] == "failed"
    assert (tmp_path / "starts").read_text() == "x" * process.STARTS
    assert (tmp_path / "run" / "log.txt").read_text().rstrip() == NO_AGENT.rstrip()


# Printed by nsys 2023.4 when its agent was killed; it exits with 0.
LOST = (
    "Connection to Agent lost. This is most likely a bug. Internal reason: 'End of file'.\n"
    "Please refer to the troubleshooting section of the docs:\n"
    "https://docs.nvidia.com/nsight-systems/UserGuide/index.html#troubleshooting\n"
)


@pytest.mark.parametrize("exit_code", [0, 1, 137])
def test_an_nsys_that_loses_its_agent_is_the_reason(
    exit_code: int, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nsys(
        tmp_path / "fake", monkeypatch, f"print('an error of a step is 0.1')\nprint({LOST!r})\nsys.exit({exit_code})"
    )
    reason = watched(digits, tmp_path / "run")["reason"]
    assert reason == {"code": "profiler_failed", "message": f"nsys: {LOST.splitlines()[0]}"}


@pytest.mark.parametrize(
    ("output", "is_retried"),
    [(NO_AGENT, True), ("Agent launcher failed.\n", True), (LOST, False), (f"working\n{NO_AGENT}", False), ("", False)],
)
def test_nsys_is_started_again_only_where_it_has_not_started_the_job(output: str, is_retried: bool) -> None:
    assert nsys.PROFILER.never_started(output) is is_retried


def test_a_job_that_fails_is_not_started_again(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = tmp_path / "starts"
    fake_nsys(
        tmp_path / "fake",
        monkeypatch,
        f"open({str(starts)!r}, 'a').write('x')\nprint('working', flush=True)\nsys.exit({NO_AGENT!r})\n",
    )
    assert watched(digits, tmp_path / "run")["outcome"] == "failed"
    assert starts.read_text() == "x"


def test_a_truncated_report_is_recorded_as_such_and_the_run_is_kept(third_start: Path) -> None:
    run = third_start / "run"
    assert json.loads((run / "run.json").read_text())["profiler"]["trace_missing"] is None
    export_run(run)
    extract_run(run)
    tables = json.loads((run / "activity" / "tables.json").read_text())["tables"]
    [reason] = {table["absent"] for table in tables.values()}
    # Without nsys on the PATH it cannot be exported.
    assert reason.startswith(("nsys export of report.nsys-rep ended with 1", "cannot export report.nsys-rep"))


def kill_one(pick: Callable[[psutil.Process], bool], marked: str, log: Path, go: Path) -> threading.Thread:
    """Kill the first process of this test's job that is picked, once it prints that it trains; then let it go on."""

    def work() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            trains = log.exists() and "epoch 1 of 1" in log.read_text()
            for found in psutil.process_iter() if trains else ():
                try:
                    if found.environ().get("LC_MARK") == marked and pick(found):
                        found.kill()
                        go.write_text("killed")
                        return
                except psutil.Error:
                    continue
            time.sleep(0.05)
        go.touch()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.nsys
@pytest.mark.parametrize(("victim", "devices"), [("agent", 1), ("command line", 2)])
def test_a_run_outlives_a_real_nsys_that_is_killed_in_the_middle(
    victim: str, devices: int, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_MARK", str(tmp_path))  # jobs inherit such names
    log = tmp_path / "run" / "log.txt"

    def pick(found: psutil.Process) -> bool:
        wanted = "--start-agent" if victim == "agent" else "--capture-range=nvtx"
        return found.name() == "nsys" and wanted in found.cmdline()

    for name, value in waiting_at("epoch 1 of 1", tmp_path / "waiting").items():
        monkeypatch.setenv(name, value)
    thread = kill_one(pick, str(tmp_path), log, tmp_path / "waiting" / GO)
    strategy = "ddp-ds" if devices > 1 else "single"
    record = watched(digits, tmp_path / "run", steps_per_epoch=60, strategy=strategy, devices=devices)
    thread.join()
    assert (tmp_path / "waiting" / GO).read_text() == "killed", f"no {victim} was found"
    assert (record["outcome"], record["reason"]) == ("completed", None), log.read_text()
    # The agent writes the report when the command line is gone; without the agent there is none.
    missing = record["profiler"]["trace_missing"]
    assert (
        missing
        in {
            "agent": ["nsys left no report: it exited before the job did"],
            "command line": [None, "nsys left no report: it was killed by SIGKILL"],
        }[victim]
    )
    assert len((tmp_path / "run" / "steps.csv").read_text().splitlines()) == 1 + devices * (60 + 1 + LEAST_SETTLING + 3)
    export_run(tmp_path / "run")
    extract_run(tmp_path / "run")
    tables = json.loads((tmp_path / "run" / "activity" / "tables.json").read_text())["tables"]
    assert (tables["phases"]["absent"] is None) == (missing is None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB that is really full when it is."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Leave that many bytes of a file system free."""
    ballast = folder / "ballast"
    free = shutil.disk_usage(folder).free
    ballast.write_bytes(b"x" * (free - leave))
    return ballast


PROGRAMS = ROOT / "workflow" / "scripts"


def program(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run one of the workflow's programs; nothing is left of a job that it started."""
    command = [sys.executable, PROGRAMS / f"{name}.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


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
    for leave in (0, 8192):
        ballast = fill(small_disk, leave)
        output = complaint(program("launch_run", *arguments))
        assert output.startswith(str(run))
        assert output.endswith("free space and start again")
        # No record, and no half of one: at most what the job printed.
        left = {path.name for path in run.rglob("*") if path.is_file()} if run.exists() else set()
        assert left <= {".lock", "log.txt", "captured.json", "steps.csv", "epochs.csv"}
        assert "run.json" not in left
        ballast.unlink()

    ended = program("launch_run", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((run / "run.json").read_text())["outcome"] == "completed"


@pytest.mark.nsys
def test_an_export_on_a_full_disk_does_not_condemn_the_report(small_disk: Path) -> None:
    report = small_disk / "run" / "trace" / "report.nsys-rep"
    report.parent.mkdir(parents=True)
    ranges = "w, s = map(range_start, ('profiled_window', 'step')); range_end(s); range_end(w)"
    code = f"from torch.cuda.nvtx import *; {ranges}"
    command = nsys.PROFILER.wrap([sys.executable, "-c", code], report, "cpu")
    environment = os.environ | nsys.PROFILER.environment
    subprocess.run(command, env=environment, capture_output=True, timeout=600, check=True)
    captured = {"profiler": "nsys", "missing": None, "files": [described(report)]}
    write_json(report.with_name("captured.json"), captured)
    database = nsys.PROFILER.export(report, small_disk)
    size = database.stat().st_size
    database.unlink()

    for space in (size // 2, size + size // 2):  # nsys itself finds none; the environments could not be taken out
        ballast = fill(small_disk, space)
        assert "report.sqlite: cannot be written: No space" in complaint(program("export_trace", small_disk / "run"))
        assert {path.name for path in report.parent.iterdir()} == {"report.nsys-rep", "captured.json"}
        ballast.unlink()
    assert program("export_trace", small_disk / "run").returncode == 0
    assert json.loads(report.with_name("exported.json").read_text())["missing"] is None


def test_tables_and_figures_on_a_full_disk_are_complete_or_absent(
    recorded_results: Path, small_disk: Path, tmp_path: Path
) -> None:
    runs = sorted((recorded_results / "runs").iterdir())
    tables = tmp_path / "tables"
    measured = run_program(PROGRAMS / "measure_scenario.py", *runs, "--out", tables)
    assert measured.returncode == 0, measured.stderr
    shutil.copytree(runs[0], small_disk / "run", ignore=shutil.ignore_patterns("activity", ".lock"))
    ballast = fill(small_disk, 8192)
    programs = {
        "extract_activity": [small_disk / "run"],
        "measure_scenario": [*runs, "--out", small_disk / "scenario"],
        "draw_figures": ["step_breakdown", "--scenario", tables, "--out", small_disk / "figures"],
    }
    for name, arguments in programs.items():
        ended = run_program(PROGRAMS / f"{name}.py", *arguments)
        assert "No space left on device; free space and start again" in complaint(ended)
    before = {path for path in small_disk.rglob("*") if path.is_file()} - {ballast}
    assert not [path for path in before if path.name.startswith(".")]

    ballast.unlink()
    for name, arguments in programs.items():
        ended = run_program(PROGRAMS / f"{name}.py", *arguments)
        assert ended.returncode == 0, ended.stderr
    assert (small_disk / "figures" / "step_breakdown.pdf").read_bytes().rstrip().endswith(b"%%EOF")
    # What was complete before is unchanged.
    for path in before & set(small_disk.rglob("*.parquet")):
        assert path.read_bytes()[-4:] == b"PAR1"
