"""Real jobs end in an outcome and leave a complete run directory."""

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import TINY
from forked_ranks import forked_ranks
from multicard.core.errors import UserError
from multicard.core.layout import PHASES, rank_file
from multicard.core.reasons import Reason, describe_reason
from multicard.launch import job as job_module
from multicard.launch.environment import LOOPBACK
from multicard.launch.job import choose_profiler, run_job
from multicard.launch.outcome import judge
from multicard.launch.process import Ended
from multicard.record.binding import parse_cpus
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.workloads.vision.parameters import VisionParameters

pytestmark = pytest.mark.slow


def files(folder: Path) -> set[str]:
    """Files of a run directory but its lock, which stays."""
    assert (folder / ".lock").stat().st_size == 0
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_every_rank_records_every_step_and_its_window(two_rank_run: Path) -> None:
    steps = pd.read_csv(two_rank_run / "steps.csv")
    for _, rank in steps.groupby("rank"):
        assert (
            rank["window"].tolist()
            == ["warmup"] * 2 + ["measured"] * 6 + ["warmup"] * (1 + LEAST_SETTLING) + ["profiled"] * 3
        )
        assert rank["step"].tolist() == list(range(1, 15))
    assert (steps["samples"] == TINY["batch_size"]).all()


def test_phases_add_up_to_the_step(two_rank_run: Path) -> None:
    steps = pd.read_csv(two_rank_run / "steps.csv")
    share = steps[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / steps["duration_s"]
    assert share.median() == pytest.approx(1, abs=0.05)


def test_the_record_says_what_ran_where_and_with_what(two_rank_run: Path) -> None:
    record = json.loads((two_rank_run / "run.json").read_text())
    assert (
        record["parameters"] == VisionParameters(**TINY, strategy="ddp-ds", devices=2, profiler="kineto").model_dump()
    )
    assert record["hardware"]["logical_cpus"] >= 1
    assert record["versions"]["torch"].startswith("2.11.0")
    assert record["profiler"]["why"] == "as configured"
    assert record["started"] < record["ended"]
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    # 1438 training samples, half for each of 2 ranks, in full batches of 8: floor(719 / 8).
    assert record["steps_per_pass"] == 89


def test_nothing_but_results_is_left(two_rank_run: Path) -> None:
    assert files(two_rank_run) == {
        "run.json", "steps.csv", "epochs.csv", "log.txt",
        "trace/captured.json", "trace/rank0.json.gz", "trace/rank1.json.gz",
    }  # fmt: skip


def test_accuracy_is_recorded_per_epoch(two_rank_run: Path) -> None:
    with (two_rank_run / "epochs.csv").open(newline="") as file:
        [epoch] = csv.DictReader(file)
    assert 0 <= float(epoch["test_accuracy"]) <= 1
    # An accuracy over 359 test samples is a whole number of them.
    assert float(epoch["test_accuracy"]) * 359 == pytest.approx(round(float(epoch["test_accuracy"]) * 359), abs=1e-6)


def job(digits: Path, folder: Path, limit: float = 300, **changes: Any) -> dict[str, Any]:
    return run_job(VisionParameters(**(TINY | {"profiler": "none"} | changes)), digits, folder, limit)


def forked(*arguments: Any, **changes: Any) -> dict[str, Any]:
    """The same where how its ranks start is not looked at."""
    with forked_ranks():
        return job(*arguments, **changes)


def test_equal_seeds_train_equally_and_repeats_differ(digits: Path, tmp_path: Path) -> None:
    losses = []
    for name, repeat in (("a", 1), ("b", 1), ("c", 2)):
        assert forked(digits, tmp_path / name, repeat=repeat)["outcome"] == "completed"
        losses.append(pd.read_csv(tmp_path / name / "steps.csv")["loss"].tolist())
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_a_loss_that_explodes_is_the_outcome_diverged(digits: Path, tmp_path: Path) -> None:
    record = forked(digits, tmp_path, learning_rate=1e30)
    assert record["outcome"] == "diverged"
    assert (record["reason"]["code"], record["reason"]["rank"]) == ("diverged", 0)
    assert record["reason"]["loss"] in ("nan", "inf")
    assert files(tmp_path) == {"run.json", "steps.csv", "epochs.csv", "log.txt", "trace/captured.json"}


def test_a_job_over_its_time_limit_is_the_outcome_timed_out(digits: Path, tmp_path: Path) -> None:
    record = job(digits, tmp_path, limit=1.5, epochs=1000)
    assert record["outcome"] == "timed_out"
    assert record["reason"] == {"code": "timed_out", "time_limit_s": 1.5}
    assert describe_reason(record["reason"]) == "exceeded its time limit of 0.025 min"


def test_others_are_metered_by_one_rank_while_measured_steps_run(digits: Path, tmp_path: Path) -> None:
    [host] = forked(digits, tmp_path, strategy="ddp-ds", devices=2, epochs=2)["conditions"]
    metered, steps = host["measured_steps"], pd.read_csv(tmp_path / "steps.csv")
    measured = steps[(steps["window"] == "measured") & (steps["rank"] == 0)]
    last_warmup = steps[(steps["window"] == "warmup") & (steps["rank"] == 0) & (steps["epoch"] == 1)].iloc[-1]
    least = measured["duration_s"].sum() + last_warmup["duration_s"]
    assert least <= metered["wall_s"] < host["wall_s"]
    assert 0 <= metered["others_cpu_s"] <= metered["wall_s"] * host["usable_cpus"]


def test_what_ranks_were_bound_to_is_recorded(digits: Path, tmp_path: Path, two_rank_run: Path) -> None:
    unbound = [rank["binding"] for rank in json.loads((two_rank_run / "run.json").read_text())["ranks"]]
    assert [binding["note"] for binding in unbound] == [None, None]
    forked(digits, tmp_path, strategy="ddp", devices=2, binding="numa")
    found = [rank["binding"] for rank in json.loads((tmp_path / "run.json").read_text())["ranks"]]
    usable = os.sched_getaffinity(0)
    for binding in found:
        assert parse_cpus(binding["cpus"]) <= usable
        # What can be done depends on the machine; tests/record/test_binding.py has machines of every kind.
        assert binding["note"].startswith(("bound to CPUs", "not bound: "))


def test_ranks_talk_on_the_loopback_address_unless_configured_otherwise(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(_command: list[str], environment: dict[str, str], *_: Any) -> Ended:
        seen.append(environment["GLOO_SOCKET_IFNAME"])
        return Ended(1, False, 1.0)

    monkeypatch.setattr(job_module, "run", run)
    for device in ("cpu", "cuda"):
        job(digits, tmp_path, strategy="ddp", device=device)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    job(digits, tmp_path, strategy="ddp")
    assert seen == [LOOPBACK, LOOPBACK, "eth7"]


def test_of_several_nodes_each_finds_its_own_interface_and_temporary_folder(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def run(_command: list[str], environment: dict[str, str], *_: Any) -> Ended:
        seen.append(environment)
        return Ended(1, False, 1.0)

    monkeypatch.setattr(job_module, "run", run)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", LOOPBACK)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    job(digits, tmp_path / "run", strategy="ddp", devices=2, nodes=2)
    # What srun passes on is the user's own; names of interfaces and folders need not be those of another node.
    assert ("GLOO_SOCKET_IFNAME" in seen[0], seen[0]["TMPDIR"]) == (False, str(tmp_path))


def test_data_that_changed_since_it_was_prepared_is_refused(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "data")
    with (tmp_path / "data" / "test_labels.npy").open("ab") as file:
        file.write(b"x")
    record = forked(tmp_path / "data", tmp_path / "run")
    assert record["outcome"] == "failed"
    assert "test_labels.npy: missing or changed" in record["reason"]["message"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 2000}, "rank 0: batch_size: 2000 needs 2000 training samples per rank, found 1438"),
        ({"warmup_steps": 8}, "rank 0: warmup_steps: 8, but the run has only 8 steps"),
    ],
)
def test_parameters_that_leave_no_measured_step_fail_with_a_reason(
    digits: Path, tmp_path: Path, changes: dict[str, int], reason: str
) -> None:
    record = forked(digits, tmp_path, **changes)
    assert (record["outcome"], describe_reason(record["reason"])) == ("failed", reason)


def test_leftovers_of_an_earlier_attempt_are_removed(digits: Path, tmp_path: Path) -> None:
    (tmp_path / ".scratch-old").mkdir()
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "rank7.json.gz").write_text("old")
    (tmp_path / "run.json").write_text("{half")
    forked(digits, tmp_path)
    assert files(tmp_path) == {"run.json", "steps.csv", "epochs.csv", "log.txt", "trace/captured.json"}


@pytest.mark.parametrize("precision", ["fp64", "fp16", "bf16"])
def test_every_precision_trains(digits: Path, tmp_path: Path, precision: str) -> None:
    assert forked(digits, tmp_path, precision=precision)["outcome"] == "completed"
    assert pd.read_csv(tmp_path / "steps.csv")["loss"].notna().all()


@pytest.mark.gpu
def test_a_job_on_a_gpu_is_timed_by_events_and_its_trace_has_kernels(digits: Path, tmp_path: Path) -> None:
    record = job(digits, tmp_path, device="cuda", profiler="kineto")
    assert record["outcome"] == "completed", record["reason"]
    steps = pd.read_csv(tmp_path / "steps.csv")
    share = steps[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / steps["duration_s"]
    assert share.median() == pytest.approx(1, abs=0.05)
    export_run(tmp_path)
    extract_run(tmp_path)
    assert len(pd.read_parquet(tmp_path / "activity" / "kernels.parquet")) > 0


@pytest.mark.nsys
def test_nsys_records_both_ranks_in_one_report_and_does_not_meet_temporary_files_of_another_user(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nsys makes a folder $TMPDIR/nvidia; one of another user that it may not write to ends it as this file does.
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "nvidia").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    record = job(digits, tmp_path / "run", strategy="ddp", devices=2, profiler="nsys")
    assert (record["outcome"], record["profiler"]["trace_missing"]) == ("completed", None)
    assert (tmp_path / "run" / "trace" / "report.nsys-rep").stat().st_size > 10_000
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert {name for name in left if not name.startswith("torchinductor_")} == {"nvidia"}  # that is PyTorch's cache


def test_variables_that_may_change_results_are_in_the_record(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("NVIDIA_API_KEY", "planted-key-of-a-user")
    monkeypatch.setattr(job_module, "run", lambda *_, **__: Ended(1, False, 1.0))
    assert job(digits, tmp_path)["variables"]["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "planted-key-of-a-user" not in (tmp_path / "run.json").read_text()


def test_a_configured_nsys_that_is_missing_is_an_error(without_nsys: None) -> None:
    with pytest.raises(UserError, match=r"^profiler: nsys cannot be used: no nsys on the PATH$"):
        choose_profiler("nsys", "cpu")


def test_auto_falls_back_to_pytorchs_profiler(without_nsys: None) -> None:
    assert choose_profiler("auto", "cpu") == ("kineto", "no nsys on the PATH", None)


def test_why_auto_took_another_profiler_is_printed_and_recorded(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = job_module.Choice("none", "nsys 1 is older than 2, which came with CUDA 3; torch uses 3", "a caveat")
    monkeypatch.setattr(job_module, "choose_profiler", lambda *_: choice)
    monkeypatch.setattr(job_module, "run", lambda *_, **__: Ended(1, False, 1.0))
    record = job(digits, tmp_path, profiler="auto")
    assert f"starting, profiler none ({choice.why})\n" in capsys.readouterr().err
    assert record["profiler"] == {
        "used": "none", "why": choice.why, "caveat": "a caveat", "trace_missing": "no profiler was used",
    }  # fmt: skip


def test_variables_that_a_run_does_not_get_are_named_and_their_values_are_not(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.setattr(job_module, "run", lambda *_, **__: Ended(1, False, 1.0))
    record = job(digits, tmp_path, profiler="none")
    [said] = [line for line in capsys.readouterr().err.splitlines() if "withheld that may be secret: " in line]
    assert "HF_TOKEN" in said.rpartition(": ")[2].split(", ") and "HF_TOKEN" in record["withheld"]
    assert "planted" not in said + (tmp_path / "run.json").read_text()


def finishing(*facts: dict[str, Any]) -> Callable[..., Ended]:
    """Stand in for the ranks of a job: each leaves its record, and they exit."""

    def leave(command: list[str], *_: Any, **__: Any) -> Ended:
        scratch = Path(command[command.index("--job") + 1]).parent
        for rank, own in enumerate(facts):
            record = {"rank": rank, "outcome": "completed", "reason": None} | own
            (scratch / rank_file("rank.json", rank)).write_text(json.dumps(record))
        return Ended(0, False, 1.0)

    return leave


@pytest.mark.parametrize(("uuids", "outcome"), [("ab", "completed"), ("aa", "failed")])
def test_a_job_whose_ranks_finished_on_fewer_gpus_than_its_devices_is_recorded_as_failed(
    uuids: str, outcome: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [[{"uuid": uuid, "name": "H100"}] for uuid in uuids]
    monkeypatch.delenv("MULTICARD_SHARED_GPU", raising=False)
    monkeypatch.setattr(job_module, "run", finishing(*({"gpus": own} for own in gpus)))
    record = job(digits, tmp_path, device="cuda", strategy="ddp", devices=2)
    assert record["outcome"] == outcome
    assert [rank["gpus"] for rank in record["ranks"]] == gpus


def test_what_a_rank_left_uncompiled_is_in_the_record_of_its_job(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = [{"limit": "recompile_limit", "value": 8, "functions": 1}]
    monkeypatch.setattr(job_module, "run", finishing({"compile_limits_hit": hits}))
    assert job(digits, tmp_path)["ranks"][0]["compile_limits_hit"] == hits


def test_a_run_whose_profiler_failed_has_completed_and_says_why_it_has_no_trace(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "run", finishing({"trace_problem": None}, {"trace_problem": "RuntimeError: no"}))
    record = job(digits, tmp_path, strategy="ddp", devices=2, profiler="kineto")
    assert (record["outcome"], record["profiler"]["trace_missing"]) == ("completed", "rank 1: RuntimeError: no")
    assert json.loads((tmp_path / "trace" / "captured.json").read_text())["files"] == []


def ranks(*outcomes: str) -> list[dict[str, Any]]:
    code = {"out_of_memory": "out_of_memory", "diverged": "diverged"}
    return [
        {"rank": i, "outcome": outcome, "reason": Reason(code.get(outcome, "error"), rank=i).record()}
        for i, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("records", "exit_code", "timed_out", "expected"),
    [
        (ranks("completed", "completed"), 0, False, "completed"),
        # A profiler or launcher that ends badly after the ranks are done takes nothing from the run.
        (ranks("completed", "completed"), 143, False, "completed"),
        (ranks("completed", "completed"), 0, True, "completed"),
        (ranks("completed"), 0, True, "timed_out"),
        (ranks("failed", "out_of_memory"), 1, False, "out_of_memory"),
        (ranks("completed", "diverged"), 1, False, "diverged"),
        (ranks("completed"), 1, False, "failed"),
        (ranks("completed", "failed"), 1, False, "failed"),
        ([], 0, False, "failed"),
    ],
)
def test_what_the_ranks_wrote_decides_the_outcome(
    records: list[dict[str, Any]], exit_code: int, timed_out: bool, expected: str
) -> None:
    outcome, reason = judge(Ended(exit_code, timed_out, 1.0), records, 2, 60.0, Path("log.txt"))
    assert outcome == expected
    assert (reason is None) == (expected == "completed")


def test_in_a_job_of_slurm_ranks_write_to_a_folder_of_the_node(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own, commands = tmp_path / "run", tmp_path / "own", []
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    real = job_module.node_command
    monkeypatch.setattr(job_module, "node_command", lambda *given: commands.append(real(*given)) or commands[-1])
    changes = {"epochs": 2, "profiler": "kineto"}
    with forked_ranks():
        record = run_job(VisionParameters(**(TINY | changes)), digits, folder, time_limit_s=1800, checkpoint_after_s=0)
    assert record["outcome"] == "completed", record["reason"]
    assert str(own) in " ".join(commands[0])
    assert "checkpoint after epoch 1" in (folder / "log.txt").read_text()
    assert (folder / "trace" / "rank0.json.gz").exists()
    assert not list(own.glob("multicard-*"))
    assert not list(folder.glob(".scratch-*"))
