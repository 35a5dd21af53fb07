"""What the launcher writes of a job whose ranks are played, and with which command and environment it starts them."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from multicard.core.errors import UserError
from multicard.core.layout import rank_file
from multicard.core.reasons import Reason, describe_reason
from multicard.launch import job as job_module
from multicard.launch import node_ranks, several_nodes
from multicard.launch.job import run_job
from multicard.launch.profiler_choice import ProfilerChoice, choose_profiler
from multicard.launch.supervise import Ended
from multicard.launch.variables import LOOPBACK
from multicard.observe import OBSERVE
from multicard.programs.provenance import write_provenance
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import ProfilerUse, RunRecord
from prepared_sets import make_image_provenance


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRecord]:
    """Run a job whose ranks leave these records and exit; the commands and environments that were started are kept."""

    def run_played(*facts: dict[str, Any], **changes: Any) -> RunRecord:
        def run(command: list[str], environment: dict[str, str], log: Path, *_: Any, **_options: Any) -> Ended:
            run_played.started.append((command, environment))
            log.touch()
            job = environment[OBSERVE] if OBSERVE in environment else command[command.index("--job") + 1]
            scratch = Path(job).parent
            for rank, own in enumerate(facts):
                record = {"rank": rank, "outcome": "completed", "reason": None} | own
                (scratch / rank_file("rank.json", rank)).write_text(json.dumps(record))
            return Ended(0 if facts else 1, False, 1.0)

        for module in (several_nodes, node_ranks):
            monkeypatch.setattr(module, "run", run)
        parameters = VisionParameters(**(TINY | {"profiler": "none"} | changes))
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        write_provenance(data, make_image_provenance())
        return run_job(parameters, data, tmp_path / "run", 300)

    run_played.started = []
    return run_played


def test_settings_are_recorded_and_secrets_are_named_without_their_values(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = ProfilerChoice("none", "nsys 1 is older than 2, which came with CUDA 3; torch uses 3", "a caveat")
    monkeypatch.setattr(job_module, "choose_profiler", lambda *_: choice)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    for name in ("NVIDIA_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "planted")
    record, printed = job(profiler="auto"), capsys.readouterr().err
    assert record.variables["NVIDIA_TF32_OVERRIDE"] == "0"
    assert f"starting, profiler none ({choice.why})\n" in printed
    assert record.profiler == ProfilerUse(
        used="none", why=choice.why, caveat="a caveat", trace_missing="no profiler was used"
    )
    [said] = [line for line in printed.splitlines() if "withheld that may be secret: " in line]
    assert {"HF_TOKEN", "NVIDIA_API_KEY"} <= {*said.rpartition(": ")[2].split(", ")} & {*record.withheld}
    assert "planted" not in printed + (tmp_path / "run" / "run.json").read_text()
    [(_, environment)] = job.started  # which the job's process gets as it is (test_supervise.py)
    assert "planted" not in environment.values() and environment["NVIDIA_TF32_OVERRIDE"] == "0"


def test_ranks_that_share_a_gpu_fail_their_job(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTICARD_SHARED_GPU", raising=False)
    for uuids, outcome in (("ab", "completed"), ("aa", "failed")):
        gpus = [[{"uuid": uuid, "name": "H100"}] for uuid in uuids]
        record = job(*({"gpus": own} for own in gpus), device="cuda", strategy="ddp", devices=2)
        assert record.outcome == outcome
        assert [[gpu.model_dump() for gpu in rank.gpus] for rank in record.ranks] == gpus


def test_a_run_whose_profiler_failed_has_completed_and_says_why_it_has_no_trace(job: Any, tmp_path: Path) -> None:
    facts = {"trace_problem": None}, {"trace_problem": "RuntimeError: no"}
    record = job(*facts, strategy="ddp", devices=2, profiler="kineto")
    assert (record.outcome, record.profiler.trace_missing) == ("completed", "rank 1: RuntimeError: no")
    assert json.loads((tmp_path / "run" / "trace" / "captured.json").read_text())["files"] == []


def test_ranks_of_one_node_meet_on_the_loopback_address_unless_configured_otherwise(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in ("cpu", "cuda"):
        job(strategy="ddp", device=device)
    # Of several nodes each finds its own; what srun passes on is the user's.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", LOOPBACK)
    job(strategy="ddp", devices=2, nodes=2)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    job(strategy="ddp")
    seen = [environment.get("GLOO_SOCKET_IFNAME") for _, environment in job.started]
    assert seen == [LOOPBACK, LOOPBACK, None, "eth7"]
    assert job.started[2][1]["TMPDIR"] == str(tmp_path)


def test_in_a_job_of_slurm_ranks_write_to_a_folder_of_the_node(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert job({}).outcome == "completed"
    [(_, environment)] = job.started
    assert str(tmp_path / "own") in environment[OBSERVE]
    assert not list((tmp_path / "own").glob("multicard-*")) and not list((tmp_path / "run").glob(".scratch-*"))


def test_what_this_machine_cannot_run_fails_with_the_reason(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = Reason("cannot_run", node="here", message="no C compiler")
    monkeypatch.setattr(job_module.start, "refusal", lambda *_: reason)
    record = job()
    assert (record.outcome, record.reason.code, job.started) == ("failed", "cannot_run", [])
    assert "no C compiler" in describe_reason(record.reason)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"run.json", "steps.csv", "epochs.csv", "log.txt"}


def test_a_configured_nsys_that_cannot_be_used_is_an_error_and_auto_takes_pytorchs(without_nsys: None) -> None:
    assert choose_profiler("auto", "cpu") == ProfilerChoice("kineto", "no nsys on the PATH")
    with pytest.raises(UserError, match=r"^profiler: nsys cannot be used: no nsys on the PATH$"):
        choose_profiler("nsys", "cpu")
    hidden = "Slurm starts the ranks outside of the process that it runs"
    assert choose_profiler("auto", "cpu", hidden).name == "kineto"
    with pytest.raises(UserError, match=f"nsys would see no rank: {hidden}$"):
        choose_profiler("nsys", "cpu", hidden)


def test_equal_batches_of_ranks_have_equal_numbers_in_place_of_checksums(job: Callable[..., RunRecord]) -> None:
    checksums = [[900, 70, 8], [900, 8, 12], []]
    record = job(*({"observed": {"first_batches": of_rank}} for of_rank in checksums), strategy="ddp", devices=3)
    numbers = [rank.observed.first_batches for rank in record.ranks if rank.observed]
    assert numbers == [(0, 1, 2), (0, 2, 3), ()]
