"""The outcome of a rank that fails is recorded, whatever happens to the others."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from conftest import TINY
from forked_ranks import forked_ranks
from multicard.core.errors import UserError
from multicard.core.reasons import LONGEST_MESSAGE, Reason, describe_reason
from multicard.experiment.workload import WORKLOADS
from multicard.launch.job import run_job
from multicard.launch.outcome import judge, judge_gpus
from multicard.launch.process import Ended
from multicard.record.out_of_memory import is_out_of_memory
from multicard.record.rank import _message
from multicard.workloads.vision.parameters import VisionParameters

pytestmark = pytest.mark.slow

# A program that stands in for training. Its last rank has a fault, and there neither would taking down the process
# group end, nor Python itself, as under NCCL they may not.
STAND_IN = """
import atexit, os, signal, time
import torch
import torch.distributed as dist
from multicard.core.errors import UserError
from multicard.workloads.vision.parameters import VisionParameters
from multicard.record.rank import run_rank
from multicard.record.recorder import Diverged
from multicard.workloads.vision.ranks import join

def train(job, p, record):
    rank, device = join(p)
    if rank == p.ranks - 1:
        dist.destroy_process_group = lambda: time.sleep(1000)
        atexit.register(time.sleep, 1000)
        {fault}
    dist.barrier()
    return {{}}

run_rank(VisionParameters.model_validate, train)
"""
# Another, whose ranks finish; the ends of the process groups of all but the first have faults.
FINISHES = """
import atexit, time
import torch.distributed as dist
from multicard.record import tear_down
from multicard.record.rank import run_rank
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.ranks import join

def hang():
    time.sleep(1000)

def hang_later():
    atexit.register(time.sleep, 1000)

def fail():
    raise dist.DistBackendError('ncclUnhandledCudaError')

def train(job, p, record):
    rank, device = join(p)
    dist.barrier()
    if rank:
        tear_down.LIMIT_S = 1.0
        dist.destroy_process_group = [{faults}][rank - 1]
    return {{}}

run_rank(VisionParameters.model_validate, train)
"""
# Real training, with little more memory than its imports take.
CONFINED = """
import resource
from multicard.workloads.vision.parameters import VisionParameters
from multicard.record.rank import run_rank
from multicard.workloads.vision.train import _train_rank

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 400 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run_rank(VisionParameters.model_validate, _train_rank)
"""


@pytest.fixture
def run_instead(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a job whose ranks run another program than vision training."""

    def run_program(program: str, forked: bool = False, **changes: Any) -> dict[str, Any]:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        monkeypatch.setattr(type(WORKLOADS["vision"]), "program", "stand_in")
        parameters = VisionParameters(**(TINY | {"profiler": "none"} | changes))
        with forked_ranks() if forked else nullcontext():
            return run_job(parameters, digits, tmp_path / "run", time_limit_s=600)

    return run_program


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("raise RuntimeError('the second of two')", "failed", "rank 1: RuntimeError: the second of two"),
        ("raise UserError('batch_size: too much')", "failed", "rank 1: batch_size: too much"),
        ("raise Diverged(float('nan'), 3)", "diverged", "rank 1: the loss is nan at step 3"),
        # Simulated: no GPU of this machine runs out of memory.
        (
            "raise torch.OutOfMemoryError('CUDA out of memory')",
            "out_of_memory",
            "rank 1: OutOfMemoryError: CUDA out of memory",
        ),
        ("raise SystemExit(0)", "failed", "rank 1: SystemExit: 0"),
    ],
)
def test_the_outcome_is_that_of_the_rank_that_failed_and_nothing_waits(
    run_instead: Any, fault: str, outcome: str, reason: str
) -> None:
    # Of the others torchrun sees what it sees of the first, an exit code of 1; one that asks for 0 may leave it 0.
    forked = not fault.startswith(("raise RuntimeError", "raise SystemExit"))
    record = run_instead(STAND_IN.format(fault=fault), forked, strategy="ddp", devices=2)
    assert (record["outcome"], describe_reason(record["reason"])) == (outcome, reason)
    assert record["wall_time_s"] < 240  # torchrun waits 300 s at its end, Gloo half an hour, the rank itself 1000 s


@pytest.mark.parametrize("strategy", ["ddp", "single"])
def test_a_rank_that_the_system_kills_is_named_with_its_signal(run_instead: Any, strategy: str) -> None:
    devices = 2 if strategy == "ddp" else 1
    program = STAND_IN.format(fault="os.kill(os.getpid(), signal.SIGKILL)")
    record = run_instead(program, strategy=strategy, devices=devices)
    assert record["outcome"] == "failed"
    assert record["reason"] == {"code": "killed", "rank": devices - 1, "signal": "SIGKILL"}


@pytest.mark.parametrize(
    ("faults", "problems"),
    [
        (["hang", "hang_later"], ["the process did not exit within 1 s after it had finished"] * 2),
        (["fail"], ["the process group could not be taken down: DistBackendError: ncclUnhandledCudaError"]),
    ],
)
def test_a_rank_that_has_finished_is_completed_whatever_becomes_of_its_process_group(
    run_instead: Any, faults: list[str], problems: list[str]
) -> None:
    forked = "hang" not in faults  # those must end as they do under torchrun
    record = run_instead(FINISHES.format(faults=", ".join(faults)), forked, strategy="ddp", devices=1 + len(faults))
    assert (record["outcome"], record["reason"], record["exit_code"]) == ("completed", None, 0)
    assert [rank["tear_down_problem"] for rank in record["ranks"]] == [None, *problems]
    assert not record["ended_at_time_limit"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space that holds")
def test_a_job_that_needs_more_memory_than_there_is_ends_as_out_of_memory(run_instead: Any) -> None:
    record = run_instead(CONFINED, forked=True, image_size=512, batch_size=64)
    assert record["outcome"] == "out_of_memory", record["reason"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        dist.DistBackendError("ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory'"),
        RuntimeError("unable to mmap 64 bytes from file: Cannot allocate memory (12)"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:60],
)
def test_running_out_of_memory_is_recognized_in_every_wording(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_running_out_of_memory_is_distinguished_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    for other in (RuntimeError("shapes do not match"), ValueError("out of memory"), OSError(2, "No such file")):
        assert not is_out_of_memory(other)


# As gloo, NCCL and the store of a process group say it.
LOST = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4120",
    "RuntimeError: [pair.cc:552] Read error [127.0.0.1]:30: Connection reset by peer",
    "DistBackendError: NCCL error, remote process exited or there was a network error, NCCL version 2.28.9",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown?",
]


def failed(rank: int, message: str) -> dict[str, Any]:
    return {"rank": rank, "outcome": "failed", "reason": Reason("error", rank=rank, message=message).record()}


def judged(*arguments: Any) -> tuple[str, str]:
    """Outcome of a job and its reason in words."""
    outcome, reason = judge(*arguments)
    return outcome, describe_reason(reason.record())


@pytest.mark.parametrize("lost", LOST, ids=range(len(LOST)))
def test_a_broken_connection_is_the_reason_only_where_there_is_no_other(lost: str, tmp_path: Path) -> None:
    ended = Ended(exit_code=1, timed_out=False, wall_time_s=1.0)
    both = [failed(0, lost), failed(1, "ValueError: the cause")]
    assert judged(ended, both, 2, 60.0, tmp_path / "log.txt") == ("failed", "rank 1: ValueError: the cause")
    alone = [failed(0, lost), {"rank": 1, "outcome": "completed", "reason": None}]
    assert judged(ended, alone, 2, 60.0, tmp_path / "log.txt") == ("failed", f"rank 0: {lost}")


def test_an_error_is_the_reason_before_ranks_that_waited_for_the_one_that_had_it(tmp_path: Path) -> None:
    waited = {"rank": 0, "outcome": "failed", "reason": Reason("steps_disagree", rank=0, step=21).record()}
    ended = Ended(exit_code=1, timed_out=False, wall_time_s=1.0)
    found = judged(ended, [waited, failed(1, "FileNotFoundError: shard7")], 2, 60.0, tmp_path / "log.txt")
    assert found == ("failed", "rank 1: FileNotFoundError: shard7")


def test_where_nothing_was_reported_the_reason_is_what_was_printed_last(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "usage: train.py\ntrain.py: error: the following arguments are required: --data\nGenerated:\n\t/a\n"
        "E1123 10:00 7 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 2) local_rank: 0\n"
    )
    _, found = judged(Ended(exit_code=2, timed_out=False, wall_time_s=1.0), [], 1, 60.0, log)
    said = "train.py: error: the following arguments are required: --data"
    assert found == f"exit code 2: {said}; rank 0 exited without reporting"


FAILURES = """
Failures:
[1]:
  time      : 2026-11-21_04:00:00
  host      : node
  rank      : {} (local_rank: {})
  exitcode  : {} (pid: 11)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:00:00
  host      : node
  rank      : {} (local_rank: {})
  exitcode  : {} (pid: 10)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("records", "other", "first", "reason"),
    [
        # Both ended between two looks of torchrun: it takes the one of the lower rank for the first.
        ([failed(0, LOST[0])], (1, -9), (0, 1), "rank 1: killed by SIGKILL, as Linux does when memory runs out"),
        # torchrun kills what does not end by itself; that is not what went wrong.
        ([], (0, -9), (1, -11), "rank 1: killed by SIGSEGV"),
        ([], (0, -9), (1, 1), "exit code 1; rank 0, 1 exited without reporting"),
        ([failed(1, "ValueError: x")], (0, -9), (1, 1), "rank 1: ValueError: x"),
    ],
)
def test_of_ranks_that_did_not_report_the_first_to_exit_is_named(
    records: list[dict[str, Any]], other: tuple[int, int], first: tuple[int, int], reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(FAILURES.format(other[0], *other, first[0], *first))
    _, output = judged(Ended(1, timed_out=False, wall_time_s=1.0), records, 2, 60.0, log)
    assert output == reason


@pytest.mark.parametrize(
    ("records", "exit_code", "reason"),
    [
        (
            [],
            -9,  # torchrun itself
            "killed by SIGKILL, as Linux does when memory runs out; rank 0, 1 exited without reporting",
        ),
        ([], 128 + 11, "killed by SIGSEGV; rank 0, 1 exited without reporting"),  # as nsys exits
        ([], 3, "exit code 3; rank 0, 1 exited without reporting"),
        ([failed(0, LOST[0]), failed(1, LOST[1])], -9, f"rank 0: {LOST[0]}"),
    ],
)
def test_without_the_list_of_torchrun_the_exit_code_decides(
    records: list[dict[str, Any]], exit_code: int, reason: str, tmp_path: Path
) -> None:
    _, output = judged(Ended(exit_code, timed_out=False, wall_time_s=1.0), records, 2, 60.0, tmp_path / "log.txt")
    assert output == reason


@pytest.mark.parametrize(
    ("exit_code", "listed", "reason"),
    [
        (0, "", "rank 0: the script ended after 4 of 9 steps"),
        (3, "", "rank 0: exit code 3: out of samples"),
        (1, FAILURES.format(1, 1, -15, 0, 0, 5), "rank 0: exit code 5: out of samples"),
        (1, FAILURES.format(1, 1, -9, 1, 1, -9), "rank 0: the script ended after 4 of 9 steps"),
    ],
)
def test_a_script_that_exits_with_an_error_is_not_told_to_train_longer(
    exit_code: int, listed: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text(f"step 4, error: 0.3\nout of samples\n{listed}")
    record = {"rank": 0, "outcome": "failed", "reason": Reason("too_few_steps", 0, steps=4, needed_steps=9).record()}
    _, found = judged(Ended(exit_code, timed_out=False, wall_time_s=1.0), [record], 2, 60.0, tmp_path / "log.txt")
    assert found.startswith(reason)


def test_of_ranks_that_exit_early_the_one_that_was_not_ended_by_the_launcher_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"out of samples\n{FAILURES.format(0, 0, -15, 1, 1, 1)}")
    ranks = [
        {"rank": rank, "outcome": "failed", "reason": Reason("too_few_steps", rank, steps=4, needed_steps=9).record()}
        for rank in (0, 1)
    ]
    _, found = judged(Ended(1, timed_out=False, wall_time_s=1.0), ranks, 2, 60.0, log)
    assert found.startswith("rank 1: exit code 1: out of samples")


def on_gpus(*uuids: str) -> list[dict[str, Any]]:
    return [{"rank": rank, "gpus": [{"uuid": uuid}]} for rank, uuid in enumerate(uuids)]


def test_a_completed_job_on_fewer_gpus_than_its_devices_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge_gpus(on_gpus("a", "b"), 2) == ("completed", None)
    assert judge_gpus([{"rank": 0, "gpus": [{"uuid": "a"}, {"uuid": "b"}]}], 2) == ("completed", None)  # dp
    for ranks, found in ((on_gpus("a", "a"), 1), ([{"rank": 0}, {"rank": 1}], 0)):
        assert judge_gpus(ranks, 2) == ("failed", Reason("wrong_gpus", devices=2, gpus=found))
    assert describe_reason(Reason("wrong_gpus", devices=4, gpus=2).record()) == (
        "its 4 devices share GPUs (distinct: 2), so its numbers are not those of 4; see `gpus` of the ranks in "
        "run.json, and `nvidia-smi -L`"
    )
    monkeypatch.setenv("MULTICARD_SHARED_GPU", "1")
    assert judge_gpus(on_gpus("a", "a"), 2) == ("completed", None)


def test_a_rank_out_of_memory_is_the_outcome_though_the_others_wait_for_it_to_the_end(tmp_path: Path) -> None:
    reason = Reason("out_of_memory", rank=1, message="no more")
    record = {"rank": 1, "outcome": "out_of_memory", "reason": reason.record()}
    ended = Ended(exit_code=1, timed_out=True, wall_time_s=60.0)
    assert judge(ended, [record], 2, 60.0, tmp_path / "log.txt") == ("out_of_memory", reason)


@pytest.mark.parametrize(
    ("records", "exit_code", "reason"),
    [
        ([failed(0, LOST[0])], 1, f"rank 0 on n1: {LOST[0]}; rank 1 on n2 exited without reporting"),
        ([failed(0, "ValueError: x")], 1, "rank 0 on n1: ValueError: x"),
        ([failed(0, LOST[0]), failed(1, "ValueError: x")], 1, "rank 1 on n2: ValueError: x"),
        ([], 1, "exit code 1; rank 0 on n1, 1 on n2 exited without reporting"),
        ([], 128 + 15, "killed by SIGTERM; rank 0 on n1, 1 on n2 exited without reporting"),
    ],
)
def test_of_several_nodes_the_reason_names_the_one_that_failed(
    records: list[dict[str, Any]], exit_code: int, reason: str, tmp_path: Path
) -> None:
    ended = Ended(exit_code, timed_out=False, wall_time_s=1.0)
    _, output = judged(ended, records, 2, 60.0, tmp_path / "log.txt", {0: "n1", 1: "n2"})
    assert output == reason


def test_of_a_long_message_the_beginning_and_the_end_are_kept() -> None:
    # As PyTorch hands on what a worker of a DataLoader raised: the cause comes last.
    error = RuntimeError(
        "Caught RuntimeError in DataLoader worker.\n" + "  File\n" * 200 + "RuntimeError: no shared memory"
    )
    message = _message(error)
    assert message.startswith("RuntimeError: Caught RuntimeError in DataLoader worker.")
    assert message.endswith("RuntimeError: no shared memory")
    assert len(message) < LONGEST_MESSAGE + 30
    assert _message(UserError("short")) == "short"
