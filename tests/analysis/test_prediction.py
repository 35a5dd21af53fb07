"""Predicted step times follow closed forms, their intervals hold the truth as often as stated, or they are refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from synthetic_results import GPU, Row, images, made, make_results, repeated, with_provenance

from conftest import ROOT
from limits.machine_record import SIZES, all_reduce
from limits.machine_record import record as machine_record
from multicard.analysis.machine_limits import MachineLimits
from multicard.analysis.scaling.alpha_beta import AlphaBeta
from multicard.analysis.scaling.prediction import checks, missed, predict
from multicard.analysis.scaling.prediction_fits import Point
from multicard.analysis.scaling.prediction_groups import series
from multicard.analysis.scaling.prediction_laws import Network, communication_s
from multicard.analysis.scaling.prediction_series import Series, checked_line
from multicard.analysis.scaling.prediction_tables import checks_table, predictions_table
from multicard.analysis.statistics import Interval
from multicard.api.results import Predictions
from multicard.cli import main
from multicard.core.files import write_json
from multicard.experiment.workload import WORKLOADS, Traffic
from multicard.trace.collectives import bus_bytes
from multicard.workloads.vision.memory_estimate import gradient_bytes
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES

sys.path.insert(0, str(ROOT / "benchmarks"))
from simulated_scaling import LAWS, measured, network, trial

NO_ERRORS = np.zeros((1, 3, 2))
SCATTER = (0.99, 1.0, 1.01)


def point(count: int, seconds: float, samples: float = 64.0, waited: float = 0.0) -> Point:
    steps = tuple(seconds * factor for factor in SCATTER)
    return Point(count, count, samples, steps, tuple(waited * factor for factor in SCATTER))


def exact(value: float) -> Interval:
    return Interval(value, value, value, 7, coverage=0.95)


def known(alpha_s: float, beta: float, nbytes: float, counts: tuple[int, ...] = (2, 4, 8)) -> Network:
    """All-reduces whose latency and bandwidth are the same on all counts."""
    exchanged = [Traffic("all_reduce", nbytes, 1)]
    return Network({n: AlphaBeta(exact(alpha_s), exact(beta), 0.0) for n in counts}, lambda _: exchanged)


def test_communication_takes_its_latency_and_its_bytes_over_the_bandwidth() -> None:
    fits = known(1e-3, 1e9, 4e8).fits
    alone = [communication_s(fits, [Traffic("all_reduce", 4e8, 2)], n, False, NO_ERRORS)[0] for n in (1, 2, 4)]
    # 2 messages of 1 ms; 2 (n - 1) / n of 0.4 s.
    assert alone == pytest.approx([0.0, 0.402, 0.602])
    beyond = [communication_s(fits, [Traffic("all_reduce", 0.0, 1)], 64, ring, NO_ERRORS)[0] for ring in (True, False)]
    assert beyond == pytest.approx([9e-3, 2e-3])  # (64 - 1) / (8 - 1), and log2 64 / log2 8


def test_the_communication_that_shows_follows_the_law_that_the_runs_tell() -> None:
    # Alone 80 ms × (1 - 1/n): 40, 60 and 70 ms, of which 30 are hidden.
    found = predict([point(1, 0.1), point(2, 0.11), point(4, 0.13)], 8, 8, 64.0, known(1e-9, 1e9, 4e7))
    assert found.step_s.value == pytest.approx(0.14, rel=1e-3)
    assert (found.compute_s, found.communication_s) == pytest.approx((0.1, 0.04), rel=2e-3)
    assert found.bound == "compute" and found.laws == ("communication by α–β, as much hidden as in the runs",)
    # Without a known network the shape that fits.
    points = [point(n, 0.1 + 0.01 * (n - 1)) for n in (1, 2, 4, 8)]
    found = predict(points, 16, 16, 64.0)
    assert found.step_s.value == pytest.approx(0.25, rel=1e-6) and found.laws == ("communication growing as n − 1",)
    [*_, last] = checks(points)
    assert last.predicted.count == 8 and last.measured.value == pytest.approx(0.17, rel=1e-3)
    assert last.error == pytest.approx(0, abs=0.05) and last.inside
    # Two counts tell no law: 0.02 s on two devices are on eight 7/4, 3 or 7 times as much.
    found = predict([point(1, 0.1), point(2, 0.12)], 8, 8, 64.0).step_s
    assert found.low < 0.135 < found.value < 0.24 < found.high


def test_ranks_that_share_a_loader_wait_longer_the_more_they_are() -> None:
    # The node loads 800 samples/s; a device computes 64 in 0.1 s.
    shared = [point(1, 0.1), point(2, 0.16, waited=0.06), point(4, 0.32, waited=0.22)]
    found = predict(shared, 8, 8, 64.0)
    assert found.step_s.value == pytest.approx(0.64, rel=1e-6) and found.bound == "data loading"
    own = predict([point(n, 0.16, waited=0.06) for n in (1, 2, 4)], 8, 8, 64.0)
    assert own.step_s.value == pytest.approx(0.16, rel=1e-6) and "each rank loads for itself" in own.laws


def test_a_loader_is_as_fast_as_alone_with_the_workers_of_all_ranks() -> None:
    rates = {1: 640.0, 2: 1280.0, 4: 2000.0, 8: 2000.0}  # samples/s, so that 64 of each of 8 ranks take 0.256 s
    alone = {count: exact(rate) for count, rate in rates.items()}.get
    idle, waiting = [point(1, 0.12), point(2, 0.12)], [point(1, 0.125, waited=0.04)]
    never = predict(idle, 8, 8, 64.0, alone=alone)
    assert never.step_s.value == pytest.approx(0.256, rel=1e-6) and never.bound == "data loading"
    assert "the loader never made a rank wait: it is taken to be as fast as alone" in never.caveats
    assert predict(idle, 16, 16, 64.0, alone=alone).loader_s is None  # of which nothing is known
    # A rank waited until 64 samples had taken 0.125 s, not 0.1.
    network = known(1e-9, 1e12, 1.0)
    found = predict(waiting, 8, 8, 64.0, network, alone=alone)
    assert found.step_s.value == pytest.approx(1.25 * 0.256, rel=1e-6)
    # 0.125, or 8 × 0.125 if ranks share what one loads.
    assert predict(waiting, 8, 8, 64.0, network).step_s.value == pytest.approx(0.125 * 8**0.5, rel=1e-6)
    # Steps that are shorter than loading alone took contradict it, as where files were cached meanwhile.
    assert predict([point(1, 0.05), point(2, 0.05)], 8, 8, 64.0, alone=alone).loader_s is None


def test_a_shared_batch_is_computed_as_fast_as_batches_of_its_size_on_one_device() -> None:
    # 10 ms and 1 ms per sample on one device; no communication: 8 devices take 10 ms and 8 samples.
    alone = [point(1, 0.010 + 0.001 * samples, samples) for samples in (64, 32, 16, 8)]
    found = predict(alone, 8, 8, 8.0, known(1e-9, 1e12, 1.0))
    assert found.step_s.value == pytest.approx(0.018, rel=1e-6)
    assert not any("extrapolated" in each for each in found.caveats)
    beyond = predict(alone, 16, 16, 4.0, known(1e-9, 1e12, 1.0))
    assert beyond.step_s.value == pytest.approx(0.014, rel=1e-6)
    assert beyond.caveats[-1] == "a device gets fewer or more samples than in any run: its time is extrapolated"


def test_repeats_that_scatter_too_much_for_their_number_give_no_interval(tmp_path: Path) -> None:
    # Of two repeats with one degree of freedom, whose t reaches beyond the mean itself.
    rows = [row for row in runs({1: 0.1, 2: 0.12}) if row["repeat"] < 4 - row["devices"]]
    for row, seconds in zip(rows, (0.08, 0.14, 0.12), strict=True):
        rate = 64 * row["devices"] / seconds
        row |= {"iteration_time_s": seconds, "throughput_samples_per_s": rate, "processed_samples_per_s": rate}
    forecast = only(tmp_path, rows).forecast(4)
    assert forecast.prediction.step_s.low is None and forecast.throughput.high is None
    assert "no interval: the repeats are too few for how much they scatter" in forecast.prediction.caveats


def test_what_nothing_tells_is_refused_with_the_reason() -> None:
    network = known(1e-6, 1e9, 1e6)
    for found, why in (
        (predict([], 2, 2, 64.0), "no completed run"),
        (predict([point(1, 0.1)], 2, 2, 64.0), "runs on one number of devices only, and no α–β of this machine"),
        (predict([point(2, 0.1)], 4, 4, 64.0, network), "and none on one device"),
        (predict([point(1, 0.1)], 2, 2, 32.0, network), "with other batch sizes"),
    ):
        assert why in found.reason
    assert list(predictions_table([], [2]).columns)[:3] == ["configuration", "machine", "versions"]
    assert checked_line([]).startswith("Never checked")


def test_one_device_and_the_network_have_a_value_between_all_hidden_and_none_and_no_interval() -> None:
    found = predict([point(1, 0.1)], 2, 2, 64.0, known(1e-9, 1e9, 4e7))
    # All of the 40 ms, or none, which computing could hide.
    assert found.step_s.value == pytest.approx((0.1 * 0.14) ** 0.5, rel=1e-6)
    assert found.step_s.low is None and "no interval" in found.caveats[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("law", "knows_network"), [*((law, True) for law in LAWS), ("communication-bound", False)])
def test_intervals_hold_the_truth_of_simulated_jobs_as_often_as_stated(law: str, knows_network: bool) -> None:
    trials = 20
    held = [trial(LAWS[law], (1, 2, 4), 8, knows_network, seed)[2] for seed in range(trials)]
    # At 95%, all but one of a thousand sets has as many; several laws together may hold it more often.
    assert sum(held) >= binom.ppf(0.001, trials, 0.95)


# Largest of n standard normal numbers, in the mean: H. L. Harter, Biometrika 48, 1961.
LARGEST = {1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360}
OUTSIDE = {
    "2% per device": lambda n: 1 + 0.02 * (n - 1),
    "3% per doubling": lambda n: 1 + 0.03 * np.log2(n),
    "the slowest rank": lambda n: 1 + 0.05 * LARGEST[n],
}


@pytest.mark.rare
@pytest.mark.parametrize("hides", ["ideal", "overlap"])
@pytest.mark.parametrize("law", OUTSIDE)
def test_intervals_hold_costs_that_no_law_of_communication_has(law: str, hides: str) -> None:
    job, trials, held = LAWS[hides], 12, 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        points = [
            replace(each, step_s=tuple(OUTSIDE[law](each.count) * seconds for seconds in each.step_s))
            for each in (measured(job, n, rng) for n in (1, 2, 4))
        ]
        links = network(job, (2, 4, 8), rng)
        found = predict(points, 8, 8, 64.0, links, missed(checks(points, links), 8)).step_s
        held += found.low <= job.step_s(8) * OUTSIDE[law](8) <= found.high
    assert held >= binom.ppf(0.01, trials, 0.85)


def test_a_check_that_missed_stretches_intervals_in_proportion_to_the_devices_added() -> None:
    # A jump at four devices, which two do not show.
    points = [point(1, 0.1), point(2, 0.1), point(4, 0.2)]
    links = known(1e-9, 1e12, 1.0)
    found = checks(points, links)
    outside = np.log(found[-1].measured.value / found[-1].predicted.step_s.high)
    assert outside > 0.3 and missed(found, 8) == pytest.approx(2 * outside)
    assert missed(found, 5) == pytest.approx(outside)
    near, far = (predict(points, 8, 8, 64.0, links, beyond=beyond).step_s for beyond in (0.0, np.log(1.5)))
    assert (far.low, far.high) == pytest.approx((near.low / 1.5, near.high * 1.5))


def test_strategies_say_what_a_step_exchanges() -> None:
    def exchanged(strategy: str, devices: int = 4) -> list[tuple[str, float]]:
        p = VisionParameters(strategy=strategy, devices=devices, batch_size=64, image_size=100)
        return [(each.collective, each.bytes) for each in STRATEGIES[strategy].traffic(1e6, p)]

    assert exchanged("single", 1) == []
    assert exchanged("ddp") == exchanged("ddp-ds") == [("all_reduce", 1e6)]
    assert exchanged("fsdp") == [("all_gather", 2e6), ("reduce_scatter", 1e6)]
    # Three of four GPUs get 64 images each, of 3 × 100 × 100 values of 4 bytes.
    assert exchanged("dp") == [("broadcast", 1e6), ("reduce", 1e6), ("broadcast", 3 * 64 * 3 * 100 * 100 * 4)]
    # Rajbhandari et al. 2020 (ZeRO), section 7: 2 Ψ of data parallelism, 3 Ψ of fully sharded, at (n - 1) / n.
    assert bus_bytes("all_reduce", 1e6, 4) == pytest.approx(1.5e6)
    assert bus_bytes("all_gather", 2e6, 4) + bus_bytes("reduce_scatter", 1e6, 4) == pytest.approx(2.25e6)
    # MobileNetV2 has 3 504 872 weights with 1000 classes, by torchvision's documentation.
    assert gradient_bytes(VisionParameters(strategy="ddp"), classes=1000) == 4 * 3_504_872


def runs(times: dict[int, float], strategy: str = "ddp-ds", **others: Any) -> list[Row]:
    """Three repeats on each number of devices, of 64 images on each device."""
    return [
        row
        for devices, seconds in times.items()
        for row in images(
            64 * devices / seconds, SCATTER, strategy=strategy, devices=devices, iteration_time_s=seconds,
            processed_samples_per_s=64 * devices / seconds, peak_memory_bytes=2_000_000_000, **others,
        )
    ]  # fmt: skip


def only(folder: Path, *scenarios: list[Row], **others: Any) -> Series:
    [found] = series(made(folder, *scenarios, **others))
    return found


def test_runs_of_a_strategy_go_with_its_baseline_on_one_device(tmp_path: Path) -> None:
    found = only(tmp_path, runs({1: 0.1}, "single") + runs({2: 0.12, 4: 0.14}))
    forecast = found.forecast(8)
    step_s = forecast.prediction.step_s.value
    assert forecast.throughput.value == pytest.approx(8 * 64 / step_s, rel=1e-3)
    assert forecast.speedup.value == pytest.approx(8 * 0.1 / step_s, rel=1e-3)
    assert forecast.efficiency.value == pytest.approx(forecast.speedup.value / 8)
    # Logarithms of one device's rates deviate by 0.01: their mean reaches 4.303 (t of 2 degrees) × 0.01 / √3 further.
    both, alone = ((each.high / each.value, each.low / each.value) for each in (forecast.speedup, forecast.throughput))
    wider = [np.sqrt(np.log(a) ** 2 - np.log(b) ** 2) for a, b in zip(both, alone, strict=True)]
    assert wider == pytest.approx([4.303 * 0.01 / 3**0.5] * 2, rel=1e-3)
    assert forecast.memory_bytes == pytest.approx(2.02e9)  # the repeat with the highest
    table = checks_table([found]).set_index("devices")
    assert table.loc[4, "measured_s"] == pytest.approx(0.14, rel=1e-3) and table.loc[4, "inside"]
    assert table.loc[2, "reason"].startswith("runs on one number of devices only")
    assert found.forecast(4).prediction.reason == "measured: 140 ms per step"
    # More GPUs than a node of the records had, which list four, are a caveat.
    why = "8 GPUs on one node, while runs were recorded where 4 could be used"
    assert why in forecast.prediction.caveats and "could be used" not in str(found.forecast(3).prediction.caveats)


def test_ranks_that_repeat_samples_do_no_more_work_on_more_devices(tmp_path: Path) -> None:
    rows = [row | {"throughput_samples_per_s": row["throughput_samples_per_s"] / row["devices"]} for row in
            runs({1: 0.1, 2: 0.12}, "ddp")]  # fmt: skip
    forecast = only(tmp_path, rows).forecast(4)
    assert forecast.throughput.value == pytest.approx(64 / forecast.prediction.step_s.value, rel=1e-3)


def test_runs_that_cannot_be_compared_are_refused_with_the_reason(tmp_path: Path) -> None:
    lost = only(tmp_path / "a", runs({1: 0.1}) + [row | {"outcome": "out_of_memory"} for row in runs({2: 0.12})])
    single = only(tmp_path / "b", runs({1: 0.1}, "single"))
    pair = only(tmp_path / "c", runs({1: 0.1, 2: 0.12}))
    split = only(tmp_path / "d", runs({4: 0.1}, nodes=2))
    for found, devices, nodes, why in (
        (lost, 4, 1, "runs on one number of devices only"),
        (single, 2, 1, "the strategy single uses one device, not 2"),
        (pair, 3, 2, "3 devices cannot be shared equally by 2 nodes"),
        (pair, 4, 2, "the network between nodes is not measured: run 2 devices per node on two nodes"),
        (split, 8, 4, "runs with 2 devices per node on one number of nodes only: run one node"),
        (split, 12, 4, "run 3 devices per node on one and on two nodes"),
    ):
        assert why in found.forecast(devices, nodes).prediction.reason


def test_what_is_not_known_of_samples_and_bytes_is_told_apart(tmp_path: Path) -> None:
    uncounted = ("throughput_samples_per_s", "processed_samples_per_s")
    bare = [{name: value for name, value in row.items() if name not in uncounted} for row in runs({1: 0.1, 2: 0.12})]
    varied = [row | {"processed_samples_per_s": row["devices"] ** 2 * 500} for row in runs({1: 0.1, 2: 0.1})]
    script = {"workload": "script", "command": ["train.py"], "device": "cuda", "devices": 1, "iteration_time_s": 0.1}
    of_script = repeated(script | {"throughput_samples_per_s": 640.0}, SCATTER)
    for name, rows, why in (
        ("bare", bare, "the samples of a step were not counted"),
        ("varied", varied, "the samples of a device in a step neither stay nor shrink"),
        ("script", of_script, "whether devices share a batch or have one each is not known"),
    ):
        found = only(tmp_path / name, rows)
        assert found.forecast(8).prediction.reason.startswith(why)
    links = {2: AlphaBeta(exact(1e-9), exact(1e9), 0.0)}
    assert replace(found, links={})._no_network(1) == "no α–β of this machine (see multicard doctor --measure)"
    assert replace(found, links=links)._no_network(1) == "the bytes of a step are not known (a trace has them)"


def test_other_hardware_is_named_where_it_has_the_other_counts(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12})),
        gpu=lambda run: "NVIDIA A100" if run.values["devices"] == 2 else run.provenance.gpu,
        machine=lambda run: "A100s" if run.values["devices"] == 2 else run.provenance.machine,
    )
    reasons = [each.forecast(4).prediction.reason for each in series(evidence)]
    assert "2 devices ran on other hardware or versions (A100s)" in reasons[0]


@pytest.mark.parametrize(
    ("last", "seconds", "found"),
    [
        # One kind of machine, of which the last repeat was given four GPUs: three repeats.
        ("4 × H100, EPYC 9334, 128 CPUs", 0.12, [[3, 3]]),
        # Beside another processor: two repeats on the one machine, one on the other.
        ("2 × H100, Xeon 8480C, 112 CPUs", 0.3, [[3, 2], [1]]),
    ],
)
def test_repeats_on_machines_of_one_kind_are_joined_and_others_kept_apart(
    last: str, seconds: float, found: list[list[int]], tmp_path: Path
) -> None:
    *rows, third = runs({2: 0.12})
    rows = [row | {"iteration_time_s": 0.12} for row in rows] + [third | {"iteration_time_s": seconds}]
    evidence = made(tmp_path, runs({1: 0.1}) + rows)
    moved = evidence.runs[-1]
    evidence = with_provenance(
        evidence, machine=lambda run: last if run.run == moved.run else "2 × H100, EPYC 9334, 128 CPUs"
    )
    every = series(evidence)
    assert [[len(one.completed) for one in each.configurations.values()] for each in every] == found
    assert every[0].forecast(2).prediction.reason == "measured: 120 ms per step"


def test_repeats_on_parts_of_one_machine_are_joined_on_one_device_and_of_other_batches_too(tmp_path: Path) -> None:
    smaller = [
        row | {"batch_size": 16, "processed_samples_per_s": 16 / row["iteration_time_s"]}
        for row in runs({1: 0.03}, "single")
    ]
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1}, "single") + runs({2: 0.12}) + smaller),
        machine=lambda run: f"{4 if run.repeat == 3 else run.values['devices']} × H100, EPYC 9334, 128 CPUs",
    )
    [found] = [each for each in series(evidence) if (1, 2) in each.configurations]
    assert {count: len(each.completed) for count, each in found.configurations.items()} == {(1, 1): 3, (1, 2): 3}
    assert [len(each.completed) for each in found.batches] == [3]


def test_another_profiler_is_no_other_version(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12})),
        versions=lambda run: f"torch 2.11.0, profiler {'nsys' if run.values['devices'] == 1 else 'none'}",
    )
    [found] = series(evidence)
    assert list(found.configurations) == [(1, 1), (1, 2)] and found.elsewhere is None


def test_jobs_that_see_only_their_own_gpus_are_checked_on_one_machine(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12, 4: 0.14}) + runs({1: 0.1, 2: 0.12}, "fsdp")),
        machine=lambda run: f"{run.values['devices']} × NVIDIA H100, AMD EPYC 9334, 128 CPUs",
    )
    [verdict] = Predictions(evidence, [], [8]).verdicts
    assert verdict.startswith("NVIDIA H100, AMD EPYC 9334, 128 CPUs: Checked on this machine: 1 prediction")


def test_links_are_of_the_newest_record_of_the_kind_of_machine_that_has_them(tmp_path: Path) -> None:
    evidence = made(tmp_path, runs({1: 0.1}))

    def limits(hour: int, devices: int | None, processor: str = "AMD EPYC 9334") -> MachineLimits:
        """A record of two of the four GPUs, told by the number of devices of its all-reduces."""
        record = machine_record() | {"started": f"2026-11-22T{hour}:00:00+00:00"}
        record["hardware"] = {"gpus": [GPU] * 2, "processor": processor, "logical_cpus": 128}
        record["parts"][1]["rows"] = [all_reduce(devices, size) for size in SIZES] if devices else []
        return MachineLimits.model_validate(record)

    other = limits(14, 8, "Intel Xeon 8480C")
    [found] = series(evidence, [other, limits(11, 2), limits(12, 4), limits(13, None)])
    assert list(found.links) == [4]
    [found] = series(evidence, [other])
    assert not found.links


def test_the_loader_of_a_record_limits_what_no_run_reached(tmp_path: Path) -> None:
    evidence = made(tmp_path, runs({1: 0.1, 2: 0.1}, num_workers=2))
    job = WORKLOADS["vision"].loader_job(series(evidence)[0]._parameters(2))
    rates = {2: 900, 4: 1800, 8: 3600, 16: 4000}
    record = machine_record()
    record["hardware"] = {"gpus": [GPU] * 2, "processor": "AMD EPYC 9334", "logical_cpus": 128}
    rows = [{"measure": "loader", "num_workers": n, "samples": 64, "times_s": [64 / rates[n]] * 7} for n in rates]
    record["parts"][3] |= {"parameters": job, "rows": rows}
    [found] = series(evidence, [MachineLimits.model_validate(record)])
    four, eight = (found.forecast(devices).prediction for devices in (4, 8))
    # Eight wait for the loader, 28 of 128 ms, so computing is the larger part.
    assert (four.bound, eight.bound) == ("compute", "compute")
    # 8 × 64 samples by 16 workers.
    assert eight.step_s.value == pytest.approx(512 / 4000, rel=1e-6)


def predicted(results: Path, capsys: pytest.CaptureFixture[str], devices: str = "4,8") -> list[str]:
    """The lines that the command prints."""
    main(["predict", "--devices", devices, str(results)])
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_command_tells_versions_apart_and_names_checks_and_caveats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs({1: 0.1, 2: 0.12, 4: 0.14})
    folder = make_results(tmp_path, rows + [row | {"repeat": row["repeat"] + 3} for row in rows])
    for record in folder.glob("runs/*_r[456]/run.json"):
        write_json(record, json.loads(record.read_text()) | {"versions": {"torch": "2.10.0"}})
    printed = "\n".join(predicted(folder, capsys, "8"))
    # The title of its table, and a row of the checks.
    assert [printed.count(f"torch {version}") for version in ("2.10.0", "2.11.0")] == [2, 2]
    assert printed.count("160 [") == 2 and "Checked on this machine: 2 predictions of measured runs" in printed
    assert "Fitted laws: communication growing as log2 n" in printed and "Caveat: " in printed


def test_processes_that_would_compete_for_cpus_are_checked_but_not_predicted(tmp_path: Path) -> None:
    def on_four_cpus(name: str, rows: list[Row]) -> Series:
        [found] = series(with_provenance(made(tmp_path / name, rows, gpu=None), usable_cpus=lambda _: 4))
        return found

    found = on_four_cpus("a", runs({1: 0.1, 2: 0.12, 4: 0.14, 8: 0.3}, device="cpu"))
    assert "would compete for the machine's 4 CPUs" in found.forecast(16).prediction.reason
    assert found.forecast(3).prediction.reason is None  # as many as there are CPUs, or fewer
    # 20 ms for each doubling: 160 ms, of which the eight processes on four CPUs take 300.
    error = checks_table([found]).set_index("devices").loc[8, "prediction_error"]
    assert error == pytest.approx(160 / 300 - 1, abs=0.01)
    found = on_four_cpus("b", runs({1: 0.1, 2: 0.12}, device="cpu", threads=2))
    assert "processes of 2 threads would compete" in found.forecast(3).prediction.reason


def test_without_a_run_on_one_device_the_trace_says_what_computes(tmp_path: Path) -> None:
    # A quarter of the step is exposed communication, by the trace: 0.09 s computing.
    step = {"span_s": 1.0, "busy_s": 1.0, "compute_s": 0.75, "communication_s": 0.25, "overlapped_s": 0.0}
    step |= {"memory_s": 0.0, "exposed_communication_s": 0.25, "idle_s": 0.0}
    step |= {"idle_host_bound_s": 0.0, "idle_collective_s": 0.0, "idle_other_s": 0.0}
    shares = [{"at": run, "process": 1, "device": 0, "scope": "steps", **step} for run in range(3)]
    found = only(tmp_path, runs({2: 0.12, 4: 0.14}), tables={"timeline": shares})
    predicted = found.forecast(8).prediction
    assert predicted.compute_s == pytest.approx(0.09, rel=0.02)
    assert predicted.caveats[-1].startswith("no run on one device: computing is the smallest run less")


def test_a_trace_says_what_is_exchanged_where_the_workload_does_not(tmp_path: Path) -> None:
    # Two processes with a GPU each, five traced steps: in each step of a GPU two messages of 25 MB and a shard of 1 MB.
    messages = [
        {"at": 3, "report": "r", "process": process, "device": 0}
        | {"collective": kind, "size_bytes": size, "calls": calls}
        for process in (1, 2)
        for kind, size, calls in (("all_reduce", 25_000_000, 10), ("all_gather", 1_000_000, 5))
    ]
    tables = {"message_sizes": messages, "runs_info": [{"at": 3, "traced_steps": 5.0}]}
    found = only(tmp_path, runs({1: 0.1, 2: 0.12}), tables=tables).collectives
    assert found == [Traffic("all_gather", 2_000_000.0, 1.0), Traffic("all_reduce", 50_000_000.0, 2.0)]


def test_nodes_are_predicted_from_runs_on_fewer_nodes(tmp_path: Path) -> None:
    rows = runs({4: 0.14}) + runs({8: 0.16}, nodes=2) + runs({16: 0.18}, nodes=4)
    found = only(tmp_path, rows)
    forecast = found.forecast(32, nodes=8)
    assert forecast.prediction.step_s.value == pytest.approx(0.2, rel=1e-6)  # 20 ms for each doubling
    assert forecast.prediction.laws == ("communication growing as log2 n",)
    assert [(devices, nodes) for devices, nodes, check in found.checks() if check.error is not None] == [(16, 4)]


def test_the_command_has_a_table_for_each_configuration_and_says_everything_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs({1: 0.1, 2: 0.12}, batch_size=32, epochs=3, warmup_steps=5)
    rows += runs({1: 0.2, 2: 0.22}, "single")[:3]
    make_results(tmp_path, rows, [row | {"batch_size": 64} for row in rows])
    lines = predicted(tmp_path, capsys)
    assert max(map(len, lines[: lines.index("")])) <= 100
    for batch in (32, 64):
        assert lines.count(f"mnist, 224 px, ddp-ds, fp32, batch_size: {batch}") == 1
    assert sum("(images/s)" in line for line in lines) == 2
    # A fifth more on two devices, where repeats scatter by a hundredth: something is exposed.
    assert lines.count("  Fitted laws: communication growing as n − 1, log2 n or 1 − 1/n") == 2
    assert sum(line.startswith("  Caveat: the loader never made a rank wait") for line in lines) == 2
    assert sum(line.startswith("│ 4 ") for line in lines) == sum(line.startswith("│ 8 ") for line in lines) == 2


def test_a_caveat_of_some_numbers_of_devices_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Devices share a batch of 64: four get 16 each, as many as one was run with; eight get 8.
    rows = [
        row | {"processed_samples_per_s": batch / row["iteration_time_s"], "batch_size": batch, "scaling": "strong"}
        for batch, times in ((64, {1: 0.1, 2: 0.06}), (16, {1: 0.03}))
        for row in runs(times)
    ]
    printed = predicted(make_results(tmp_path, rows), capsys)
    assert any("Caveat, 8 devices: a device gets fewer or more samples" in line for line in printed)


def test_what_the_command_does_not_predict_is_named_once_for_each_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = make_results(tmp_path, runs({1: 0.1}, "single") + runs({1: 0.2}, "single", layout="nhwc"))
    assert predicted(results, capsys)[:3] == [
        "Not predicted on 4 and 8 devices: the strategy single uses one device",
        "  mnist, 224 px, single, fp32, layout: nchw",
        "  mnist, 224 px, single, fp32, layout: nhwc",
    ]
    # Numbers that no job has are refused.
    for devices, nodes, found, expected in (
        ("6,8", "3", "8", "multiples of 3"),
        ("9" * 20, "1", "9" * 20, "at most 1000000 devices"),
    ):
        with pytest.raises(SystemExit, match=f"^--devices: found {found}, expected {expected}[^\n]*$"):
            main(["predict", "--devices", devices, "--nodes", nodes, str(results)])


def test_limits_of_the_machine_let_one_device_predict_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make_results(tmp_path, runs({1: 0.1}, device="cpu"), gpu=None)
    record = machine_record() | {"device": "cpu"}
    record["hardware"] = {"gpus": [], "processor": "AMD EPYC 9334", "logical_cpus": 128}
    write_json(results / "machine" / "node07-cpu.json", record)
    printed = "\n".join(predicted(results, capsys, "2"))
    assert "communication by α–β, all exposed" in printed
    assert "Never checked on this machine" in printed
