"""A user's own script as a job: what is measured agrees with the script's own stopwatch, and each end is an outcome."""

import csv
import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

from conftest import ROOT
from multicard.config.read_run import read_run
from multicard.core.reasons import describe_reason
from multicard.launch import node_ranks, supervise
from multicard.launch.job import run_job
from multicard.observe import OBSERVE
from multicard.programs.script.parameters import ScriptParameters
from multicard.results.measure import measure_run
from multicard.results.utilization import operations_of_step
from multicard.runs.record import OperationCount, RunRecord
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from observed_scripts import Server

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "tests" / "script" / "scripts"
WINDOWS = {"warmup_steps": 2, "steps": 12, "profiled_steps": 3}
SPAWN = ("--spawn", "{devices}")


def job(run: Path, *arguments: str, limit: float = 300, script: str = "timed.py", **changes: Any) -> RunRecord:
    stated = {"command": [script, *arguments], "folder": str(SCRIPTS), "device": "cpu", "profiler": "none"}
    p = ScriptParameters(**(stated | WINDOWS | changes))
    return run_job(p, None, run, limit)


@pytest.fixture
def forked(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run jobs, observed, whose one process is forked from one that has PyTorch; it may fork ranks itself."""

    def run(command: list[str], environment: dict[str, str], log: Path, *_: Any, **options: Any) -> supervise.Ended:
        words = [word for word in command if word != sys.executable]
        return supervise.Ended(server.start(environment[OBSERVE], words, options["folder"], log), False, 1.0)

    monkeypatch.setattr(node_ranks, "run", run)
    return job


def ended(record: RunRecord) -> tuple[str, str]:
    """Why a job failed, by its code and in one line."""
    assert record.outcome == "failed"
    [line] = describe_reason(record.reason).splitlines()
    return record.reason.code, line


def completed(record: RunRecord, folder: Path) -> RunRecord:
    assert record.outcome == "completed", (record.reason, (folder / "log.txt").read_text())
    return record


def agrees_with_the_stopwatch(folder: Path, ranks: int) -> None:
    """The steps that were timed are those of the script's own stopwatch, on every rank, and the trace has all ranks."""
    steps = pd.read_csv(folder / "steps.csv")
    assert sorted(steps["rank"].unique()) == list(range(ranks))
    for rank, found in steps.groupby("rank"):
        measured = found[found["window"] == "measured"]
        assert len(measured) == WINDOWS["steps"]
        with (folder / "saved" / f"rank{rank}.csv").open(newline="") as file:
            own = {int(step): float(seconds) for step, seconds in csv.reader(file)}
        # The script's first step is not timed: when it began, nobody knew of it. Two steps differ where the system
        # interrupts the rank between the two clocks, on a busy machine often; neighbours differ by 5 ms and more.
        off = {
            shift: [abs(row.duration_s - own[row.step + 1 + shift]) for row in measured.itertuples()]
            for shift in (-1, 0, 1)
        }
        assert min(off, key=lambda shift: median(off[shift])) == 0, off
        assert min(off[0]) < 0.001, off
    assert (steps.loc[steps["window"] == "measured", "samples"] == 4).all()
    assert json.loads((folder / "run.json").read_text())["profiler"]["trace_missing"] is None
    export_run(folder)
    extract_run(folder, read_run(folder).ranks)
    assert pd.read_parquet(folder / "activity" / "phases.parquet")["rank"].nunique() == ranks


@pytest.mark.parametrize(
    ("devices", "launcher", "arguments"),
    [(1, "python", ()), (2, "torchrun", ()), (2, "command", (*SPAWN, "--start-method", "fork"))],
    ids=["python", "torchrun", "spawn"],
)
def test_steps_are_those_of_the_scripts_own_stopwatch(
    devices: int, launcher: str, arguments: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = job if launcher == "torchrun" else request.getfixturevalue("forked")
    changes = {"devices": devices, "launcher": launcher, "profiler": "kineto"}
    completed(run(tmp_path, "--out", "{run_dir}", *arguments, **changes), tmp_path)
    agrees_with_the_stopwatch(tmp_path, devices)
    steps = pd.read_csv(tmp_path / "steps.csv")
    measured = steps[steps["window"] == "measured"]
    ends = (measured["start_s"] + measured["duration_s"]).groupby(measured["rank"]).max()
    elapsed_s = (ends - measured.groupby("rank")["start_s"].min()).max()
    assert measure_run(tmp_path)["iteration_time_s"] == pytest.approx(elapsed_s / WINDOWS["steps"])
    # As of any other job.
    record = read_run(tmp_path)
    assert (record.script.file, len(record.script.sha256)) == ("timed.py", 64)
    assert record.parameters.command == ("timed.py", "--out", "{run_dir}", *arguments)
    assert record.ranks[0].observed.optimizers == ("SGD",)
    assert (tmp_path / "epochs.csv").read_text().count("\n") == 1


@pytest.mark.nsys
@pytest.mark.rare
def test_nsys_sees_every_rank_that_a_script_starts_and_is_not_held_by_what_it_leaves_running(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"sys.exit(subprocess.call([sys.executable, {str(SCRIPTS / 'timed.py')!r}, *sys.argv[1:]]))\n"
    )
    run, changes = tmp_path / "run", {"folder": str(tmp_path), "launcher": "command", "profiler": "nsys", "devices": 2}
    record = completed(job(run, "leaves.py", "--out", "{run_dir}", *SPAWN, script=sys.executable, **changes), run)
    assert not record.ended_at_time_limit
    agrees_with_the_stopwatch(run, 2)


def test_of_a_script_its_version_and_its_operations_are_recorded(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "__pycache__").mkdir(parents=True)
    (own / "train.py").write_text((SCRIPTS / "timed.py").read_text())
    subprocess.run(["git", "init", "-q", own], check=True)
    git = ["git", "-C", own, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "train.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    run = own / "results" / "runs" / "r"
    stated = {"folder": str(own), "script": "train.py", "count_operations": True}
    record = completed(job(run, "--write", "new.txt", **stated), run)
    assert record.script.sha256 == hashlib.sha256((SCRIPTS / "timed.py").read_bytes()).hexdigest()
    assert (record.script.commit, record.script.modified) == (commit, False)
    assert not (run / "saved").exists()

    # Of 4 samples through a layer of 16 by 4: its forward pass, and the gradient of its weights.
    expected = 2 * (2 * 4 * 16 * 4)
    [rank] = record.ranks
    assert rank.operations == OperationCount(model=expected, hardware=expected, precision="fp32")
    assert operations_of_step(record, None).model == expected


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"python": "/no/such/python"}, "python: no such interpreter: /no/such/python; set the interpreter"),
        ({"script": "none.py"}, f"command: no such file: none.py (in {SCRIPTS})"),
        ({"folder": "/no/such/folder"}, "folder: no such folder: /no/such/folder"),
        ({"script": "no-such-program", "launcher": "command"}, "the program no-such-program, which is not on the PATH"),
        ({"environment": ["MY_LOGIN"]}, "environment: the value of MY_LOGIN looks like a secret"),
        ({"script": "true", "launcher": "command"}, "no process of Python was observed"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_LOGIN", "hf_0123456789abcdef")
    assert line in ended(job(tmp_path, **changes))[1]
    assert "hf_0123456789abcdef" not in (tmp_path / "run.json").read_text()


def test_an_interpreter_without_torch_and_a_program_without_steps_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, program, says in (("a", "pass", "imported torch"), ("b", "import torch", "multicard.marks.step()")):
        code, line = ended(job(tmp_path / name, "-c", program, script=sys.executable, launcher="command"))
        assert code == "no_steps" and "(1 process, Python 3." in line and says in line
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "empty", with_pip=False)
    python = str(tmp_path / "empty" / "bin" / "python")
    code, line = ended(job(tmp_path / "c", python=python))
    assert code == "no_torch" and line.startswith(f"python: {python} has no torch; set the interpreter")


def test_a_token_in_an_exception_is_in_no_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import torch; raise RuntimeError('401 for hf_' + 'Ab1' * 6 + ', password=' + 'hunter' + '2')"
    code, line = ended(job(tmp_path, "-c", program, script=sys.executable, launcher="command"))
    assert (code, line) == ("error", "rank 0: RuntimeError: 401 for removed, password=removed")
    recorded = (tmp_path / "run.json").read_text() + capfd.readouterr().err
    assert "Ab1Ab1" not in recorded and "hunter2" not in recorded
    assert "Ab1Ab1" in (tmp_path / "log.txt").read_text()  # which is the script's own


FORKING = {"devices": 1, "launcher": "command"}


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "says"),
    [
        (("--steps", "5"), {}, "too_few_steps", "the script ended after 5 of 15 steps"),
        (("--fault", "exit"), {}, "exited", "rank 0: exit code 1: no samples are left; "),
        (("--fault", "raise", "--at", "1"), {}, "error", "RuntimeError: the data are wrong"),
        ((), {"devices": 2, "launcher": "command"}, "hidden_ranks", "1 of its processes trained, but `launcher`"),
        (
            ("--spawn", "2", "--start-method", "fork"),
            FORKING,
            "hidden_ranks",
            "2 of its processes trained, but",
        ),
        ((), {"device": "cuda"}, "trained_on_cpu", "its processes trained on CPUs although `device` is cuda; move"),
    ],
)
def test_a_script_that_cannot_be_measured_is_told_what_to_do(
    arguments: tuple[str, ...], changes: dict[str, Any], code: str, says: str, forked: Any, tmp_path: Path
) -> None:
    found, line = ended(forked(tmp_path, *arguments, **changes))
    assert found == code and says in line
    assert code != "exited" or "train longer" not in line


def test_what_a_rank_says_as_it_exits_is_the_reason_under_torchrun_too(tmp_path: Path) -> None:
    code, line = ended(job(tmp_path / "later", "--fault", "exit", devices=2))
    assert code == "exited" and line.startswith("rank 0: exit code 1: no samples are left; ")
    # And of one that exits before it trains.
    (tmp_path / "exits.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    time.sleep(600)\nsys.exit('Please set DATA_DIR')\n"
    )
    record = job(tmp_path / "before", script="exits.py", folder=str(tmp_path), devices=2)
    assert (record.outcome, record.reason.message) == ("failed", "Please set DATA_DIR")


@pytest.mark.parametrize(("devices", "imports"), [(1, ""), (1, "import torch\n"), (2, "")])
def test_a_module_that_raises_before_its_first_step_says_so(devices: int, imports: str, tmp_path: Path) -> None:
    package = tmp_path / "own" / "package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(f"{imports}import no_such_package\n")
    _, line = ended(job(tmp_path / "run", "package.train", script="-m", folder=str(package.parent), devices=devices))
    assert line.endswith("ModuleNotFoundError: No module named 'no_such_package'")
    assert line.startswith("rank ") == bool(imports or devices > 1)
