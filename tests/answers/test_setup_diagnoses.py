"""Causes that follow from how ranks train: of synthetic runs whose set-up is stated, with the gain that follows."""

from pathlib import Path
from typing import Any

import pytest

from factories import Row, make_results, recommendations, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.training_setup import setup_of
from multicard.results.results import Results

# DistributedDataParallel on two ranks as it is by default: 40 MB of gradients in three buckets, and the statistics of
# batch norm.
PLAIN: Row = {
    "backends": "gloo", "wrapper": "DistributedDataParallel", "backward_passes": 1.0, "collectives": 5.0,
    "exchanged_passes": 1.0, "needless_exchanges": 0.0, "gradient_bytes": 40_000_000, "buckets": 3,
    "bucket_limit_bytes": 25 * 2**20, "finds_unused": False, "broadcast_bytes": 20_000, "synchronized_norms": 0,
    "parameters": 60, "loops_over_parameters": True, "can_fuse": True, "is_compiled": False, "debugging": "",
}  # fmt: skip
ACCUMULATING = {"backward_passes": 4.0, "collectives": 20.0, "exchanged_passes": 4.0, "needless_exchanges": 3.0}


def runs(devices: int, step_s: float, device: str = "cpu", **columns: Any) -> list[Row]:
    """Repeats of runs whose devices compute 64 images each in a step."""
    times = {"iteration_time_s": step_s, "mean_iteration_time_s": step_s, "measured_steps": 50}
    return vision_runs(devices * 64 / step_s, devices=devices, device=device, **times | columns)


def results_of(folder: Path, rows: list[Row], **setup: Any) -> Results:
    """Return the results of runs, of which the last three are set up as `PLAIN`, but for `setup`."""
    last = range(len(rows) - 3, len(rows))
    setups = [{"at": at, "rank": rank} | PLAIN | setup for at in last for rank in range(rows[at]["devices"])]
    return make_results(folder, rows, gpu=None, tables={"training_setup": setups})


def causes(results: Results) -> list[Diagnosis]:
    return causes_of(results.configurations()[-1], results)


# On one process a step of 100 ms computes. On two the backward pass takes 60 ms more, and the forward pass 20 ms more.
ONE = runs(1, 0.100, forward_s=0.030, backward_s=0.060, optimizer_s=0.010)
TWO = runs(2, 0.180, forward_s=0.050, backward_s=0.120, optimizer_s=0.010)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plain_training_has_no_cause(device: str, tmp_path: Path) -> None:
    of_gpus = {"backends": "nccl", "loops_over_parameters": False}
    rows = [row | {"device": device} for row in ONE + TWO]
    assert causes(results_of(tmp_path, rows, **(of_gpus if device == "cuda" else {}))) == []


def test_needless_exchanges_take_their_share_of_what_the_backward_pass_grew_by(tmp_path: Path) -> None:
    results = results_of(tmp_path, ONE + TWO, **ACCUMULATING)
    [found] = causes(results)
    assert found.share == pytest.approx(0.75 * 60 / 180, rel=0.01)
    assert found.sentence == (
        "`no_sync()` of the model around the forward and backward passes of a step before its last ones, since all "
        "ranks exchange their gradients (40.0 MB) in 4 backward passes of a step, of which 3 are followed by one that "
        "adds to the same gradients; up to 1.33× as fast without it"
    )
    assert found.sentence in recommendations(results)


def test_without_a_run_on_one_device_the_gain_of_needless_exchanges_is_not_known(tmp_path: Path) -> None:
    [found] = causes(results_of(tmp_path, TWO, **ACCUMULATING))
    assert found.share is None


@pytest.mark.parametrize(
    "changed",
    [
        {"needless_exchanges": 0.0},  # each pass has gradients of its own
        {"needless_exchanges": None},
        {"collectives": 2.0},  # a communication hook exchanges less often
        {"wrapper": None, "exchanged_passes": None},
    ],
)
def test_exchanges_that_may_be_needed_are_no_cause(changed: Row, tmp_path: Path) -> None:
    assert causes(results_of(tmp_path, ONE + TWO, **ACCUMULATING | changed)) == []


def test_needless_exchanges_that_cost_nothing_are_no_cause(tmp_path: Path) -> None:
    two = runs(2, 0.104, forward_s=0.030, backward_s=0.064, optimizer_s=0.010)
    assert causes(results_of(tmp_path, ONE + two, **ACCUMULATING)) == []


@pytest.mark.parametrize(("has_unused", "count"), [(False, 1), (True, 0), (None, 0)])
def test_a_search_for_unused_parameters_is_told_if_there_are_none(
    has_unused: bool | None, count: int, tmp_path: Path
) -> None:
    found = causes(results_of(tmp_path, ONE + TWO, finds_unused=True, has_unused=has_unused))
    assert [cause.remedy for cause in found] == [
        "`find_unused_parameters=False`, if every step uses all parameters"
    ] * count
    assert [cause.share for cause in found] == [None] * count


def test_large_buffers_take_at_most_what_the_forward_pass_grew_by(tmp_path: Path) -> None:
    [found] = causes(results_of(tmp_path, ONE + TWO, broadcast_bytes=64_000_000))
    assert found.share == pytest.approx(20 / 180, rel=0.01)
    assert found.evidence == ("each forward pass sends 64.0 MB of buffers to all ranks, beside 40.0 MB of gradients")


def test_small_buckets_take_what_the_backward_pass_grew_by_less_one_of_the_usual_size(tmp_path: Path) -> None:
    changed = {"buckets": 100, "bucket_limit_bytes": 10_000, "gradient_bytes": 1_000_000, "collectives": 102.0}
    [found] = causes(results_of(tmp_path / "small", ONE + TWO, **changed))
    assert found.share == pytest.approx(0.99 * 60 / 180, rel=0.01)
    assert found.remedy == "a larger `bucket_cap_mb` (25 by default, which makes 1 bucket)"
    # Of 180 ms at least 60 go, less one of 100 buckets of a backward pass of 120 ms, and 8 ms in which a network of
    # 1 Gbit/s sends 1 MB once: 50.8. At most the 80 ms go by which the step is longer, less 0.6 ms for a bucket: 79.4.
    assert found.least_share == pytest.approx(50.8 / 180, rel=0.01)
    assert found.most_share == pytest.approx(79.4 / 180, rel=0.01)
    assert found.cause.endswith("; 1.39 to 1.79× as fast without it")
    # As many buckets that are large, or that the script did not choose.
    for number, other in enumerate(({"gradient_bytes": 200_000_000}, {"bucket_limit_bytes": 25 * 2**20})):
        assert causes(results_of(tmp_path / str(number), ONE + TWO, **changed | other)) == []


def test_gloo_is_a_cause_on_gpus_unless_another_back_end_is_there_too(tmp_path: Path) -> None:
    rows = runs(2, 0.1, device="cuda")
    [found] = causes(results_of(tmp_path / "gloo", rows))
    assert (found.remedy, found.share) == ('`init_process_group("nccl")`', None)
    assert causes(results_of(tmp_path / "both", rows, backends="gloo, nccl")) == []


def test_data_parallel_is_a_cause_on_several_gpus(tmp_path: Path) -> None:
    rows = runs(2, 0.1, device="cuda", strategy="dp")
    [found] = causes(results_of(tmp_path, rows, backends="", wrapper="DataParallel"))
    assert found.sentence == (
        "`DistributedDataParallel`, with a process for each device, since in each step one process copies the model to "
        "2 GPUs and gathers all outputs (`DataParallel`)"
    )


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({}, "an optimizer with `fused=True`"),
        ({"can_fuse": False}, None),  # `foreach=True` is not faster on CPUs
        ({"parameters": 60}, None),
        ({"loops_over_parameters": False}, None),
        ({"loops_over_parameters": None}, None),
        ({"device": "cuda", "backends": "nccl", "can_fuse": False}, "an optimizer with `foreach=True`"),
    ],
)
def test_an_optimizer_that_loops_over_many_tensors_takes_its_phase(
    changed: Row, remedy: str | None, tmp_path: Path
) -> None:
    setup = {"parameters": 500, "device": "cpu"} | changed
    rows = runs(2, 0.100, device=setup.pop("device"), forward_s=0.030, backward_s=0.040, optimizer_s=0.030)
    found = causes(results_of(tmp_path, rows, **setup))
    assert [cause.remedy for cause in found] == ([] if remedy is None else [remedy])
    if remedy:
        assert found[0].share == pytest.approx(0.3, rel=0.01)
        assert found[0].evidence.startswith("the optimizer updates 500 tensors one by one, for 30.0 ms of a step (30%)")


def test_switches_and_graph_breaks_come_after_causes_whose_gain_is_known(tmp_path: Path) -> None:
    rows = runs(2, 0.100, forward_s=0.030, backward_s=0.040, optimizer_s=0.030)
    switches = "anomaly detection, TORCH_DISTRIBUTED_DEBUG"
    results = results_of(tmp_path, rows, parameters=500, debugging=switches, is_compiled=True, graph_breaks=12)
    known, *others = causes(results)
    assert known.share == pytest.approx(0.3, rel=0.01)
    assert [cause.evidence.partition(",")[0] for cause in others] == [
        "anomaly detection is on",
        "`torch.compile` had to leave its graph 12 times while it compiled",
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL` is set",
    ]
    assert {cause.share for cause in others} == {None}
    few = results_of(tmp_path / "few", rows, is_compiled=True, graph_breaks=2)
    assert causes(few) == []


def test_a_switch_that_slows_each_operator_comes_before_a_small_cause(tmp_path: Path) -> None:
    rows = runs(2, 0.100, forward_s=0.040, backward_s=0.050, optimizer_s=0.010)
    found = causes(results_of(tmp_path, rows, parameters=500, debugging="anomaly detection, deterministic algorithms"))
    assert [cause.share for cause in found] == [None, pytest.approx(0.1, rel=0.01), None]
    assert found[0].evidence.startswith("anomaly detection")
    said = recommendations(results_of(tmp_path / "again", rows, parameters=500, debugging="anomaly detection"))
    assert said.index("set_detect_anomaly") < said.index("fused=True")


def test_many_collectives_of_gpus_are_told_with_what_calls_them(tmp_path: Path) -> None:
    rows = runs(2, 0.1, device="cuda")
    of_gpus = {"backends": "nccl", "loops_over_parameters": False, "collectives": 165.0}
    [layers] = causes(results_of(tmp_path / "layers", rows, synchronized_norms=80, **of_gpus))
    # Less three buckets, and at most four exchanges of buffers.
    assert layers.evidence == (
        "ranks exchange something 158 times a step beside the model's gradients, with 80 layers of `SyncBatchNorm`"
    )
    assert causes(results_of(tmp_path / "unknown", rows, **of_gpus)) == []
    assert causes(results_of(tmp_path / "sharded", rows, **of_gpus | {"wrapper": "FSDP"})) == []
    work = [
        {
            "at": at, "rank": 0, "kind": "collective", "function": "all_reduce", "phase": None, "calls": 50 * 150,
            "seconds": 0.1, "bytes": 0, "steps": 50, "first_steps": "1", "site": "train.py:12",
        }
        for at in range(3)
    ]  # fmt: skip
    setups = [{"at": at, "rank": 0} | PLAIN | of_gpus for at in range(3)]
    called = make_results(tmp_path / "called", rows, gpu=None, tables={"training_setup": setups, "host_work": work})
    [own] = causes(called)
    assert own.evidence.endswith("as in 150 all_reduce a step (train.py, line 12)")


def test_facts_in_which_ranks_differ_are_not_known(tmp_path: Path) -> None:
    rows = runs(2, 0.1)
    setups = [
        {"at": at, "rank": rank} | PLAIN | {"has_unused": rank == 1, "collectives": 4.0 + rank, "buckets": 3 + rank}
        for at in range(3)
        for rank in range(2)
    ]
    results = make_results(tmp_path, rows, gpu=None, tables={"training_setup": setups})
    setup = setup_of(results.configurations()[0], results)
    assert (setup.has_unused, setup.collectives, setup.buckets, setup.backends) == (None, 4.5, 4, ("gloo",))
    nothing = make_results(tmp_path / "nothing", rows, gpu=None)
    assert setup_of(nothing.configurations()[0], nothing).wrapper is None
