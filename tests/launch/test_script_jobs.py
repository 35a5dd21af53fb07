"""A user's own script as a job: what is measured agrees with the script's own stopwatch, and each end is an outcome."""

import csv
import json
import os
import struct
import subprocess
import sys
import time
import venv
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from conftest import ROOT
from multicard.analysis.measures import measure_run
from multicard.core.files import write_json
from multicard.core.reasons import Reason, describe_reason
from multicard.core.rendezvous import free_port
from multicard.experiment.workload import WORKLOADS
from multicard.launch import job as job_module
from multicard.launch import process
from multicard.launch.job import run_job
from multicard.record.observe import OBSERVE
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.workloads.script.outcome import judge_script
from multicard.workloads.script.parameters import ScriptParameters
from observed_scripts import Server

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "tests" / "script" / "scripts"
WINDOWS = {"warmup_steps": 2, "steps": 12, "profiled_steps": 3}


def job(run: Path, *arguments: str, limit: float = 300, script: str = "timed.py", **changes: Any) -> dict[str, Any]:
    stated = {"command": [script, *arguments], "folder": str(SCRIPTS), "device": "cpu", "profiler": "none"}
    p = ScriptParameters(**(stated | WINDOWS | changes))
    return run_job(p, None, run, limit)


@pytest.fixture
def forked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs of one process fork it, observed, from one that has PyTorch."""

    def run(command: list[str], environment: dict[str, str], log: Path, *others: Any) -> process.Ended:
        return process.Ended(server.start(environment[OBSERVE], command[1:], others[-1], log), False, 1.0)

    monkeypatch.setattr(job_module, "run", run)


def why(record: dict[str, Any]) -> str:
    """The one line of an outcome."""
    [line] = (describe_reason(record["reason"]) or "").splitlines()
    return line


def completed(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    assert record["outcome"] == "completed", (record["reason"], (folder / "log.txt").read_text())
    return record


def agrees_with_the_stopwatch(folder: Path, ranks: int) -> None:
    """The steps that were timed are those of the script's own stopwatch, on every rank."""
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


@pytest.mark.parametrize(
    ("devices", "changes", "arguments"),
    [
        (1, {}, ()),
        (2, {}, ()),
        (2, {"launcher": "command"}, ("--spawn", "{devices}")),
    ],
    ids=["python", "torchrun", "spawn"],
)
def test_steps_are_those_of_the_scripts_own_stopwatch(
    devices: int, changes: dict[str, Any], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    record = job(tmp_path, "--out", "{run_dir}", *arguments, devices=devices, profiler="kineto", **changes)
    completed(record, tmp_path)
    agrees_with_the_stopwatch(tmp_path, devices)
    assert record["profiler"]["trace_missing"] is None
    export_run(tmp_path)
    extract_run(tmp_path)
    phases = pd.read_parquet(tmp_path / "activity" / "phases.parquet")
    assert phases["rank"].nunique() == devices
    steps = pd.read_csv(tmp_path / "steps.csv")
    measured = steps[steps["window"] == "measured"]
    ends = (measured["start_s"] + measured["duration_s"]).groupby(measured["rank"]).max()
    elapsed_s = (ends - measured.groupby("rank")["start_s"].min()).max()
    assert measure_run(tmp_path)["iteration_time_s"] == pytest.approx(elapsed_s / WINDOWS["steps"])
    assert record["script"]["file"] == "timed.py"
    assert len(record["script"]["sha256"]) == 64
    # As of any other job.
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["parameters"]["command"] == ["timed.py", "--out", "{run_dir}", *arguments]
    assert record["ranks"][0]["observed"]["optimizers"] == ["SGD"]
    assert (tmp_path / "epochs.csv").read_text().count("\n") == 1


@pytest.mark.nsys
@pytest.mark.parametrize("changes", [{}, {"launcher": "command"}], ids=["torchrun", "spawn"])
def test_nsys_sees_every_rank_however_it_is_started(changes: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("--spawn", "{devices}") if changes else ()
    record = job(tmp_path, "--out", "{run_dir}", *arguments, devices=2, profiler="nsys", **changes)
    completed(record, tmp_path)
    assert record["profiler"]["trace_missing"] is None
    agrees_with_the_stopwatch(tmp_path, 2)
    export_run(tmp_path)
    extract_run(tmp_path)
    phases = pd.read_parquet(tmp_path / "activity" / "phases.parquet")
    assert phases["rank"].nunique() == 2


PLANTED = {"HF_TOKEN": "planted-one", "WANDB_API_KEY": "planted-two", "HF_HOME": "/planted-home", "RANK": "planted-3"}


@pytest.fixture(scope="module")
def of_own_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of a script in a repository of git, which prints its environment and counts; and the commit."""
    own = tmp_path_factory.mktemp("own")
    (own / "__pycache__").mkdir(parents=True)
    (own / "train.py").write_text((SCRIPTS / "timed.py").read_text())
    (own / "old.txt").write_text("x")
    subprocess.run(["git", "init", "-q", own], check=True)
    git = ["git", "-C", own, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "train.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    run = own / "results" / "runs" / "r"
    arguments = ("--write", "new.txt", "--fault", "print-environment")
    with patch.dict(os.environ, PLANTED):
        stated = {"folder": str(own), "environment": ["HF_HOME"], "count_operations": True}
        completed(job(run, *arguments, script="train.py", **stated), run)
    return run, commit


def test_what_a_script_changes_in_its_folder_is_recorded(of_own_folder: tuple[Path, str]) -> None:
    run, commit = of_own_folder
    record = json.loads((run / "run.json").read_text())
    assert record["folder_changes"] == {"count": 1, "names": ["new.txt"]}
    assert (record["script"]["commit"], record["script"]["modified"]) == (commit, False)
    assert not (run / "saved").exists()


def test_operations_that_were_asked_for_are_recorded(of_own_folder: tuple[Path, str]) -> None:
    run, _ = of_own_folder
    record = json.loads((run / "run.json").read_text())
    # Of 4 samples through a layer of 16 by 4: its forward pass, and the gradient of its weights.
    expected = 2 * (2 * 4 * 16 * 4)
    [rank] = record["ranks"]
    assert rank["operations"].pop("bytes") > 0
    assert rank["operations"] == {"model": expected, "hardware": expected, "precision": "fp32", "problem": None}
    assert WORKLOADS["script"].operations(record, None).model == expected


def test_secrets_reach_neither_the_job_nor_its_record(of_own_folder: tuple[Path, str]) -> None:
    run, _ = of_own_folder
    printed = (run / "log.txt").read_text()
    assert "HF_HOME=/planted-home" in printed
    for text in ("planted-one", "planted-two", "planted-3"):
        assert text not in printed
    assert "planted" not in (run / "run.json").read_text()
    assert {"HF_TOKEN", "WANDB_API_KEY"} <= set(json.loads((run / "run.json").read_text())["withheld"])


def test_a_stated_variable_whose_value_looks_like_a_secret_keeps_the_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_LOGIN", "hf_0123456789abcdef")
    record = job(tmp_path, environment=["MY_LOGIN"])
    assert record["outcome"] == "failed"
    assert "environment: the value of MY_LOGIN looks like a secret" in why(record)
    assert "hf_0123456789abcdef" not in (tmp_path / "run.json").read_text()


@pytest.mark.nsys
def test_a_child_that_outlives_a_script_does_not_hold_nsys(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"import runpy; sys.argv[0] = {str(SCRIPTS / 'timed.py')!r}; runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    run = tmp_path / "run"
    record = completed(job(run, script="leaves.py", folder=str(tmp_path), profiler="nsys"), run)
    assert len(record["left_behind"]) == 1 and not record["ended_at_time_limit"]
    assert record["wall_time_s"] < 120
    assert record["profiler"]["trace_missing"] is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"python": "/no/such/python"}, "python: no such interpreter: /no/such/python; state the interpreter"),
        ({"script": "none.py"}, f"command: no such file: none.py (in {SCRIPTS})"),
        ({"folder": "/no/such/folder"}, "folder: no such folder: /no/such/folder"),
        ({"script": "no-such-program", "launcher": "command"}, "the program no-such-program, which is not on the PATH"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    record = job(tmp_path, **changes)
    assert record["outcome"] == "failed"
    assert line in why(record)


def test_an_interpreter_without_torch_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "empty", with_pip=False)
    python = str(tmp_path / "empty" / "bin" / "python")
    record = job(tmp_path / "run", python=python)
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "no_torch")
    assert why(record) == (
        f"python: {python} has no torch; state the interpreter that your training uses (`python`, --python)"
    )


def test_a_script_that_steps_no_optimizer_is_told_what_to_add(tmp_path: Path) -> None:
    record = job(tmp_path, "--by-hand", "--steps", "4")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "no_steps")
    assert "multicard.marks.step()" in why(record)


def test_a_program_that_does_not_train_is_told_from_one_that_hides(tmp_path: Path) -> None:
    record = job(tmp_path / "a", script="true", launcher="command")
    assert "no process of Python was observed" in why(record)
    record = job(tmp_path / "b", "-c", "pass", script=sys.executable, launcher="command")
    assert "(1 of Python 3." in why(record) and "imported torch" in why(record)


def test_too_few_steps_are_counted(forked: None, tmp_path: Path) -> None:
    record = job(tmp_path, "--steps", "5")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "too_few_steps")
    assert "the script ended after 5 of 20 steps" in why(record)


@pytest.mark.parametrize("devices", [1, 2], ids=["python", "torchrun"])
def test_what_a_script_says_as_it_exits_is_the_reason(devices: int, tmp_path: Path) -> None:
    record = job(tmp_path, "--fault", "exit", devices=devices)
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "exited")
    assert why(record).startswith("rank 0: exit code 1: no samples are left; ")
    assert "train longer" not in why(record)


def test_fewer_processes_than_devices_are_said(forked: None, tmp_path: Path) -> None:
    record = job(tmp_path, devices=2, launcher="command")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "hidden_ranks")
    assert why(record).startswith(
        "1 of its processes trained, where `launcher` and `devices` ask for 2; have the script start"
    )
    assert "({devices} in its command)" in why(record)


def test_a_script_that_trains_on_a_cpu_where_gpus_were_asked_for_is_told_so(forked: None, tmp_path: Path) -> None:
    record = job(tmp_path, device="cuda")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "trained_on_cpu")
    assert why(record).startswith("its processes trained on CPUs, and `device` is cuda; have the script move its model")


def test_more_processes_than_devices_are_said_too(tmp_path: Path) -> None:
    record = job(tmp_path, "--spawn", "2", "--start-method", "fork", launcher="command")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "hidden_ranks")
    assert why(record).startswith("2 of its processes trained, where `launcher` and `devices` ask for 1")


def test_ranks_that_do_not_know_of_each_other_are_counted(tmp_path: Path) -> None:
    program = ["bash", "-c", f"{sys.executable} timed.py --steps 60 & {sys.executable} timed.py --steps 60; wait"]
    record = job(tmp_path, *program[1:], script=program[0], launcher="command")
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "hidden_ranks")
    assert why(record).startswith("2 of its processes trained, where `launcher` and `devices` ask for 1")


APART = """
import os, torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(torch.randn(64, 16))
sampler = {sampler}
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (batch,) in DataLoader(data, 4, sampler=sampler):
        model(batch).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "sampler", ["None", "DistributedSampler(data, int(os.environ['WORLD_SIZE']), int(os.environ['RANK']))"]
)
def test_ranks_that_train_apart_are_no_scaling(sampler: str, tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART.format(sampler=sampler))
    record = job(tmp_path / "run", script="apart.py", folder=str(tmp_path), devices=2)
    assert (record["outcome"], record["reason"]) == ("failed", {"code": "trained_apart", "ranks": 2})
    assert "init_process_group" in why(record) and "DistributedSampler" not in why(record)


LIKE_TORCHTITAN = """
import os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
class Texts(IterableDataset):
    def __iter__(self):
        while True:
            tokens = torch.randint(100, (17,))
            yield {"input": tokens[:-1]}, tokens[1:]
class Loader(DataLoader):
    def __init__(self, *arguments, **options):
        self.dp_rank, self.dp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        super().__init__(*arguments, **options)
dist.init_process_group("gloo")
model = torch.nn.Embedding(100, 100)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for inputs, labels in Loader(Texts(), batch_size=4):
    torch.nn.functional.cross_entropy(model(inputs["input"]).flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("devices", [1, 2])
def test_a_script_like_torchtitans_has_tokens_on_one_device_too(devices: int, tmp_path: Path) -> None:
    (tmp_path / "titan.py").write_text(LIKE_TORCHTITAN)
    run = tmp_path / "run"
    record = job(run, script="titan.py", folder=str(tmp_path), devices=devices, launcher="torchrun")
    completed(record, run)
    steps = pd.read_csv(run / "steps.csv")
    assert set(steps["tokens"]) == {4 * 16}
    assert {each["distinct"] for rank in record["ranks"] for each in rank["observed"]["loaders"]} == {True}


@pytest.mark.parametrize(
    ("exchanged", "outcome"),
    [([False, False], "failed"), ([False, True], "completed"), ([None, False], "completed"), ([False], "completed")],
)
def test_only_ranks_of_which_none_exchanged_anything_trained_apart(
    exchanged: list[bool | None], outcome: str, tmp_path: Path
) -> None:
    p = ScriptParameters(command=["train.py"], device="cpu", devices=len(exchanged))
    for rank in range(p.ranks):
        write_json(tmp_path / f"process.json.{rank}", {"rank": rank, "steps": True, "program": "train.py"})
    ranks = [
        {"rank": rank, "outcome": "completed", "observed": {"exchanged": each}} for rank, each in enumerate(exchanged)
    ]
    assert judge_script(p, "completed", None, ranks, tmp_path)[0] == outcome


@pytest.mark.parametrize(
    ("ended", "devices", "trained", "completed", "expected"),
    [
        ("exited", 2, [0, 0], [0], Reason("same_rank", rank=0, ranks=2)),
        ("timed_out", 2, [0, 0], [0], Reason("same_rank", rank=0, ranks=2)),  # one that takes no notice
        ("timed_out", 2, [1, 1], [], Reason("same_rank", rank=1, ranks=2)),
        ("timed_out", 1, [0, 0], [], Reason("hidden_ranks", ranks=2, devices=1)),
        ("timed_out", 2, [0, 1], [], Reason("timed_out")),
        ("timed_out", 2, [0], [0], Reason("timed_out")),  # the other one may hang
        ("exited", 2, [0], [0], Reason("hidden_ranks", ranks=1, devices=2)),
    ],
)
def test_ranks_that_are_hidden_are_named_before_what_they_bring_about(
    ended: str, devices: int, trained: list[int], completed: list[int], expected: Reason, tmp_path: Path
) -> None:
    for number, rank in enumerate(trained):
        write_json(tmp_path / f"process.json.{number}", {"rank": rank, "steps": True, "program": "train.py"})
    p = ScriptParameters(command=["train.py"], device="cpu", devices=devices)
    ranks = [{"rank": rank, "outcome": "completed"} for rank in completed]
    outcome = "timed_out" if ended == "timed_out" else "failed"
    reason = Reason(ended, exit_code=0) if ended == "exited" else Reason(ended)
    found = judge_script(p, outcome, reason, ranks, tmp_path)
    assert found == ("timed_out" if expected.code == "timed_out" else "failed", expected)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([5, 5], ": it had made 5 of at least 72 steps"),
        ([30, 22], ": steps made: rank 0 30, rank 1 22; every rank has to make the same number"),
        ([30], ": steps made: rank 0 30, rank 1 0; every rank has to make the same number"),
        ([0, 0], ""),
    ],
)
def test_a_script_that_reaches_its_time_limit_is_told_how_far_it_came(
    made: list[int], said: str, tmp_path: Path
) -> None:
    p = ScriptParameters(command=["train.py"], device="cpu", devices=2)  # 10 + 50 + 2 + 10 steps
    for rank, count in enumerate(made):
        write_json(tmp_path / f"process.json.{rank}", {"rank": rank, "steps": True, "program": "train.py"})
        (tmp_path / f"made.rank{rank}").write_bytes(struct.pack("q", count))
    outcome, reason = judge_script(p, "timed_out", Reason("timed_out", time_limit_s=3600), [], tmp_path)
    assert outcome == "timed_out"
    assert describe_reason(reason.record()) == f"exceeded its time limit of 60 min{said}"


def test_ranks_that_were_ended_because_one_exited_are_not_told_to_agree(tmp_path: Path) -> None:
    p = ScriptParameters(command=["train.py"], device="cpu", devices=2)
    for rank, count in enumerate([17, 16]):
        write_json(
            tmp_path / f"process.json.{rank}", {"rank": rank, "steps": True, "program": "train.py", "error": None}
        )
        (tmp_path / f"made.rank{rank}").write_bytes(struct.pack("q", count))
    _, reason = judge_script(p, "failed", Reason("exited", exit_code=3), [], tmp_path)
    assert describe_reason(reason.record()) == "exit code 3: steps made: rank 0 17, rank 1 16"


def test_one_process_that_uses_fewer_gpus_than_it_has_is_told_so(tmp_path: Path) -> None:
    p = ScriptParameters(command=["train.py"], device="cuda", devices=4, launcher="python")
    write_json(tmp_path / "process.json.1", {"rank": 0, "steps": True, "program": "train.py"})
    ranks = [{"rank": 0, "outcome": "completed"}]
    found = judge_script(p, "failed", Reason("wrong_gpus", devices=4, gpus=3), ranks, tmp_path)
    assert found == ("failed", Reason("unused_gpus", devices=4, gpus=3))
    assert judge_script(p, "completed", None, ranks, tmp_path) == ("completed", None)
    write_json(tmp_path / "process.json.2", {"rank": 1, "steps": True, "program": "train.py"})  # by mp.spawn
    found = judge_script(p, "failed", Reason("wrong_gpus", devices=4, gpus=1), ranks, tmp_path)
    assert found == ("failed", Reason("hidden_ranks", ranks=2, devices=1))


@pytest.mark.parametrize(("devices", "hinted"), [(1, True), (2, False)])
def test_a_script_that_expects_a_launcher_is_told_how_to_get_one(devices: int, hinted: bool, tmp_path: Path) -> None:
    p = ScriptParameters(command=["train.py"], device="cpu", devices=devices)
    reason = Reason("error", rank=0, message="KeyError: 'WORLD_SIZE'")
    outcome, found = judge_script(p, "failed", reason, [], tmp_path)
    assert outcome == "failed" and ("state launcher: torchrun" in found.message) is hinted


def test_nodes_start_their_own_ranks_and_leave_what_was_observed(tmp_path: Path) -> None:
    """The nodes are two folders of this machine; tests/slurm has real ones, for other workloads."""
    p = ScriptParameters(
        command=["timed.py"], folder=str(SCRIPTS), device="cpu", devices=2, nodes=2, profiler="none", **WINDOWS
    )
    job_file = {
        "parameters": p.stated(), "profiler": "none", "keep": str(tmp_path), "scratch": str(tmp_path),
        "time_limit_s": 300, "port": free_port(), "observe": WORKLOADS["script"].observed(p),
    }  # fmt: skip
    write_json(tmp_path / "job.json", job_file)
    command = [sys.executable, "-m", "multicard.launch.node", "--job", str(tmp_path / "job.json")]
    slurm = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_ID": "0", "SLURM_SRUN_COMM_PORT": "1"}
    slurm |= {"GLOO_SOCKET_IFNAME": "lo"}
    nodes = [subprocess.Popen(command, env=os.environ | slurm | {"SLURM_PROCID": str(node)}) for node in range(2)]
    assert [node.wait(timeout=600) for node in nodes] == [0, 0]
    for rank in range(2):
        record = json.loads((tmp_path / f"rank.json.rank{rank}").read_text())
        assert (record["outcome"], record["rank"]) == ("completed", rank)
        steps = pd.read_csv(tmp_path / f"steps.csv.rank{rank}")
        assert (steps["window"] == "measured").sum() == WINDOWS["steps"]
    # Of each node its launcher, torchrun, and its rank.
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("process.json.*")]
    assert sorted(each["rank"] for each in seen if each["steps"]) == [0, 1]


def test_a_rank_that_raises_says_so(tmp_path: Path) -> None:
    record = job(tmp_path, "--fault", "raise", "--faulty-rank", "1", devices=2)
    assert record["outcome"] == "failed"
    assert why(record) == "rank 1: RuntimeError: the data are wrong"


def test_a_script_that_raises_before_its_first_step_says_so(forked: None, tmp_path: Path) -> None:
    record = job(tmp_path, "--fault", "raise", "--at", "1")
    assert record["outcome"] == "failed"
    assert "RuntimeError: the data are wrong" in why(record)


@pytest.mark.parametrize(("devices", "imports"), [(1, ""), (1, "import torch\n"), (2, "")])
def test_a_module_that_raises_before_its_first_step_says_so(devices: int, imports: str, tmp_path: Path) -> None:
    package = tmp_path / "own" / "package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(f"{imports}import no_such_package\n")
    record = job(tmp_path / "run", "package.train", script="-m", folder=str(package.parent), devices=devices)
    assert record["outcome"] == "failed"
    assert why(record).endswith("ModuleNotFoundError: No module named 'no_such_package'")
    assert why(record).startswith("rank ") == bool(imports or devices > 1)


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    record = job(tmp_path, "--fault", "kill", "--faulty-rank", "1", devices=2)
    assert (record["outcome"], record["reason"]["code"], record["reason"]["rank"]) == ("failed", "killed", 1)
    assert record["reason"]["signal"] == "SIGKILL"


@pytest.mark.parametrize(("arguments", "code"), [((), "timed_out"), (("--by-hand",), "no_steps")])
def test_a_script_that_hangs_is_ended_at_the_time_limit(
    arguments: tuple[str, ...], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def monotonic() -> float:
        """The time, and once the script hangs that of after its limit, however long it took until then."""
        log = tmp_path / "log.txt"
        return time.monotonic() + (1e6 if log.exists() and "hangs" in log.read_text() else 0)

    monkeypatch.setattr(process, "time", SimpleNamespace(**vars(time) | {"monotonic": monotonic}))
    record = job(tmp_path, "--fault", "hang", "--at", "8", *arguments)
    assert (record["outcome"], record["reason"]["code"]) == ("timed_out", code)


@pytest.mark.parametrize("devices", [1, 2])
def test_what_a_script_says_as_it_exits_is_the_reason_under_torchrun_too(devices: int, tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys, torch; sys.exit('Please set DATA_DIR')\n")
    record = job(tmp_path / "run", script="exits.py", folder=str(tmp_path), devices=devices)
    assert (record["outcome"], record["reason"]["message"]) == ("failed", "Please set DATA_DIR")
