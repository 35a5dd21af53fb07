"""What is advised against a bottleneck: options that are possible, would change something, and were not measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from factories import STEADY, Row, make_results, recommendations, repeats_of, tuning_runs, vision_runs
from multicard.answers.bottlenecks.bottlenecks import NAMES, Bottleneck
from multicard.answers.bottlenecks.options import options as all_options
from multicard.answers.bottlenecks.options import options_against
from multicard.answers.bottlenecks.situation import Situation, facts_of, with_steps_of
from multicard.config.experiment import PARAMETERS
from multicard.results.configuration import Configuration


def options(configuration: Configuration, kind: str, *others: Configuration) -> set[str]:
    """Names of what is advised."""
    found = options_against(configuration, Bottleneck(kind, 0.5, ""), [configuration, *others]).untried
    return {each.partition("`")[2].partition("`")[0] for each in found}


def test_packing_is_advised_against_padding_unless_it_was_measured(tmp_path: Path) -> None:
    padded, packed = make_results(
        tmp_path,
        tuning_runs(1.0, library="torchtune", padding_share=0.5) + tuning_runs(0.5, library="torchtune", packed=True),
    ).configurations()
    assert options(padded, "padding") == {"packed: true"}
    assert options(padded, "padding", packed) == options(packed, "padding") == set()
    two, one, tuned = make_results(
        tmp_path / "b",
        vision_runs(100, num_workers=2)
        + vision_runs(90, num_workers=1)
        + vision_runs(140, num_workers=2, preset="tuned"),
    ).configurations()
    assert "raise num_workers" in options(two, "data loading", one), "fewer were measured"
    assert "raise num_workers" not in options(one, "data loading", two)
    assert "preset: tuned" not in options(two, "compute", tuned)  # although it sets several options


def test_what_is_impossible_or_changes_nothing_is_not_advised(tmp_path: Path) -> None:
    rows = vision_runs(100, strategy="fsdp", devices=2) + vision_runs(100, strategy="single", device="cpu")
    fsdp, cpu = make_results(tmp_path / "a", rows).configurations()
    assert "preset: tuned" in options(fsdp, "compute", cpu) and "layout: nhwc" not in options(fsdp, "compute", cpu)
    assert not options(cpu, "memory operations", fsdp)
    assert "cuda_graphs: true" not in options(fsdp, "launch overhead", cpu)
    [several] = make_results(tmp_path / "b", vision_runs(100, strategy="ddp-ds", devices=8, nodes=2)).configurations()
    assert "layout: nhwc" in options(several, "compute")
    for device, nodes in (("cpu", (0, 1)), ("cuda", (0,)), ("cuda", (0, 1)), ("cuda", ())):
        rows = vision_runs(100, device=device, data_share=0.5, devices=2)
        [bound] = make_results(tmp_path / f"{device} {len(nodes)}", rows, nodes=nodes).configurations()
        # Unknown nodes may be several where there are GPUs.
        is_advised = device == "cuda" and len(nodes) != 1
        assert ("binding: numa" in options(bound, "data loading")) is is_advised


def test_options_name_parameters_and_each_bottleneck_has_some() -> None:
    parameters, programs = all_options()
    assert {name for of in parameters.values() for option in of for name in option.changes} <= set(PARAMETERS)
    assert set(parameters) < set(programs) == set(NAMES)
    assert all(programs.values())
    conditions = {condition for of in programs.values() for option in of for condition in option.when}
    assert all(isinstance(vars(Situation)[condition], property) for condition in conditions)


# Options that runs have tried ---------------------------------------------------------------------------------------

COMPUTE = Bottleneck("compute", 0.5, "")


def layout(folder: Path, rows: list[Row]) -> tuple[list[str], list[str]]:
    """What is said of the layout for two GPUs: as an option to try, and as one that was tried."""
    two, *_ = measured = make_results(folder, rows).configurations()
    found = options_against(two, COMPUTE, measured)
    tried = [option.words for option in found.measured]
    return [text for text in found.untried if "nhwc" in text], [text for text in tried if "nhwc" in text]


def test_an_option_that_was_measured_is_told_with_its_result_and_not_advised(tmp_path: Path) -> None:
    # Logarithms of 1.02, 0.98 and 1.02 have the mean 0.00647 and a deviation of 0.0231; the mean reaches 4.303 / √3 of
    # it, 0.0574, to each side.
    undecided = vision_runs(100, (1.0, 1.0, 1.0), devices=2) + vision_runs(
        100, (1.02, 0.98, 1.02), devices=2, layout="nhwc"
    )
    advised, [told] = layout(tmp_path / "undecided", undecided)
    assert advised == []
    assert told == "`layout: nhwc`: 1.01× as fast (95% CI 0.95 to 1.07, n=3), no difference shown"
    faster = vision_runs(100, STEADY, devices=2) + vision_runs(150, STEADY, devices=2, layout="nhwc")
    advised, [told] = layout(tmp_path / "faster", faster)
    assert advised == [] and told.startswith("`layout: nhwc`: 1.500× as fast (95% CI ")
    once = vision_runs(100, (1.0,), devices=2) + vision_runs(90, (1.0,), devices=2, layout="nhwc")
    assert layout(tmp_path / "once", once) == ([], ["`layout: nhwc`: 0.900× as fast (n=1)"])


def test_a_run_with_another_profiler_has_tried_the_option(tmp_path: Path) -> None:
    rows = vision_runs(100, devices=2, profiler="none") + vision_runs(95, devices=2, layout="nhwc", profiler="nsys")
    advised, [told] = layout(tmp_path, rows)
    assert advised == [] and told.startswith("`layout: nhwc`: 0.950× as fast (95% CI ")


def test_shorter_runs_have_tried_the_option_and_runs_of_equal_length_are_compared(tmp_path: Path) -> None:
    # As the demo: the scenario of the layout has shorter runs than that of the scaling, here at 90% of its speed.
    short = {"devices": 2, "steps_per_epoch": 50}
    nhwc = vision_runs(108, layout="nhwc", **short)
    advised, [told] = layout(tmp_path / "shorter", vision_runs(100, devices=2) + nhwc)
    assert advised == [] and told.startswith("`layout: nhwc`: 1.08")
    advised, [told] = layout(tmp_path / "equal", vision_runs(100, devices=2) + vision_runs(90, **short) + nhwc)
    assert advised == [] and told.startswith("`layout: nhwc`: 1.20")


@pytest.mark.parametrize(
    ("speed", "factors", "is_advised"),
    [
        (45.0, (1.01, 1.0), False),  # shown to be slower on one device
        (60.3, (1.01, 1.0), False),  # 1.005 times as fast on average: no gain
        (66.0, (1.2, 1.0), True),  # 1.1 times as fast, by repeats that do not decide
        (90.0, (1.0, 1.01), True),  # 1.5 times as fast
    ],
)
def test_what_an_option_gave_on_one_device_decides_whether_it_is_advised_on_two(
    speed: float, factors: tuple[float, float], is_advised: bool, tmp_path: Path
) -> None:
    rows = vision_runs(100, (1.0, 1.01), strategy="ddp-ds", devices=2) + vision_runs(60, (1.0, 1.01), strategy="single")
    advised, told = layout(tmp_path, rows + vision_runs(speed, factors, strategy="single", layout="nhwc"))
    assert bool(advised) == is_advised and bool(told) != is_advised
    where = "with devices: 1, strategy: single"
    assert where in (advised or told)[0]


def test_an_option_that_gains_elsewhere_comes_first_and_one_that_may_comes_last(tmp_path: Path) -> None:
    one = {"strategy": "single", "devices": 1}
    rows = vision_runs(100, strategy="ddp-ds", devices=2) + vision_runs(60, **one)
    for name, faster, place in (
        ("shown", vision_runs(90, **one, layout="nhwc"), 0),
        ("open", vision_runs(66, (1.2, 1.0, 0.9), **one, layout="nhwc"), -1),
    ):
        two, *_ = measured = make_results(tmp_path / name, rows + faster).configurations()
        assert options_against(two, COMPUTE, measured).untried[place].startswith("`layout: nhwc` (measured with ")


def test_of_several_values_that_were_tried_the_fastest_is_told(tmp_path: Path) -> None:
    speeds = {0: 100.0, 2: 80.0, 4: 90.0}
    rows = [row for workers, speed in speeds.items() for row in vision_runs(speed, devices=2, num_workers=workers)]
    none, *_ = measured = make_results(tmp_path, rows).configurations()
    found = options_against(none, Bottleneck("data loading", 0.5, ""), measured)
    assert [option.words.partition(" (")[0] for option in found.measured] == ["`num_workers: 4`: 0.900× as fast"]


def test_recommendations_tell_what_was_tried(tmp_path: Path) -> None:
    parts = {"data_share": 0.03, "devices": 2}
    rows = vision_runs(100, **parts) + vision_runs(80, layout="nhwc", **parts) + vision_runs(60, devices=1)
    text = recommendations(make_results(tmp_path, rows))
    [told] = [line for line in text.splitlines() if line.startswith("- Tried already: ")]
    assert told.startswith("- Tried already: `layout: nhwc`: 0.800× as fast (95% CI ")
    assert not any("nhwc" in line for line in text.splitlines() if line.startswith("- Try next: "))


# Facts about the training -------------------------------------------------------------------------------------------

SCRIPT = {"workload": "script", "command": ["train.py"], "device": "cpu"}
SETUP = ("has_convolutions", "is_compiled", "loops_over_parameters")


def script(devices: int, batch: int = 16, step_s: float = 0.1, **columns: Any) -> list[Row]:
    rate = devices * batch / step_s
    times = {"iteration_time_s": step_s, "throughput_samples_per_s": rate}
    return repeats_of(SCRIPT | {"devices": devices} | times | columns, (1.0,))


def advised(folder: Path, kind: str, rows: list[Row], **tables: list[Row]) -> str:
    """What is advised against a bottleneck of the first configuration, in one text."""
    results = make_results(folder, rows, gpu=None, tables=tables)
    first, *_ = measured = results.configurations()
    facts = with_steps_of(first, facts_of(results), results)
    return "; ".join(options_against(first, Bottleneck(kind, 0.5, ""), measured, facts).untried)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, {"torch.compile": True, "channels_last": False, "fused=True": True}),
        ({"has_convolutions": True}, {"torch.compile": True, "channels_last": True, "fused=True": True}),
        ({"has_convolutions": False}, {"channels_last": False}),
        ({"is_compiled": True}, {"torch.compile": False}),
        ({"is_compiled": False}, {"torch.compile": True}),
        ({"loops_over_parameters": False}, {"fused=True": False}),
        ({"loops_over_parameters": True}, {"fused=True": True}),
        ({"loops_over_parameters": True, "can_fuse": False}, {"fused=True": False}),
    ],
)
def test_options_against_computing_fit_how_the_training_is_set_up(
    facts: Mapping[str, bool], says: Mapping[str, bool], tmp_path: Path
) -> None:
    setup = [{"at": 0, "rank": 0, **facts}]
    text = advised(tmp_path, "compute", script(1), training_setup=setup)
    assert {word: word in text for word in says} == says


def test_a_fact_holds_if_one_rank_shows_it_and_is_unknown_if_one_is(tmp_path: Path) -> None:
    def of(name: str, *values: bool | None) -> list[bool | None]:
        setup = [{"at": 0, "rank": rank, **dict.fromkeys(SETUP, value)} for rank, value in enumerate(values)]
        results = make_results(tmp_path / name, script(2), gpu=None, tables={"training_setup": setup})
        [facts] = facts_of(results).values()
        return [getattr(facts, name) for name in SETUP]

    assert of("one", True, False) == [True] * 3
    assert of("with unknown", True, None) == [True] * 3
    assert of("none", False, False) == [False] * 3
    assert of("unknown", False, None) == [None] * 3


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ({"num_workers": 0}, {"more loader workers": True, "persistent_workers": False, "prefetch_factor": False}),
        ({"num_workers": 2, "persistent_workers": False}, {"persistent_workers": True, "prefetch_factor": True}),
        ({"num_workers": 2, "persistent_workers": True}, {"more loader workers": True, "persistent_workers": False}),
        ({}, {"more loader workers": True, "persistent_workers": True, "prefetch_factor": True}),
    ],
)
def test_options_against_loading_fit_how_loaders_are_set_up(
    loader: Mapping[str, Any], says: Mapping[str, bool], tmp_path: Path
) -> None:
    text = advised(tmp_path, "data loading", script(1), loaders=[{"at": 0, "rank": 0, **loader}])
    assert {word: word in text for word in says} == says


def test_more_workers_a_larger_batch_and_fewer_devices_are_not_advised_where_they_ran(tmp_path: Path) -> None:
    args = {"command": ["train.py", "{b}"]}
    two = script(2, args={"b": 16}, **args)
    larger, smaller = (script(2, batch=batch, args={"b": batch}, **args) for batch in (64, 8))
    one = script(1, step_s=0.08, args={"b": 16}, **args)
    for name, others, says in (
        ("alone", [], {"larger batch": True, "fewer devices": True}),
        ("larger", larger, {"larger batch": False, "fewer devices": True}),
        ("smaller", smaller, {"larger batch": True, "fewer devices": True}),
        ("one", one, {"larger batch": True, "fewer devices": False}),
    ):
        text = advised(tmp_path / name, "exposed communication", two + others)
        assert {word: word in text for word in says} == says, name
    workers = [{"at": at, "rank": 0, "num_workers": count} for at, count in enumerate((2, 4))]
    text = advised(tmp_path / "workers", "data loading", two + larger, loaders=workers)
    assert "more loader workers" not in text and "prefetch_factor" in text


EXCHANGES = ("gradient buckets", "gradient accumulation", "16 bits", "larger batch")


@pytest.mark.parametrize(("one_s", "told"), [(0.080, True), (0.098, False), (None, True)])
def test_exchanges_are_blamed_only_for_steps_that_are_longer_than_on_one_device(
    one_s: float | None, told: bool, tmp_path: Path
) -> None:
    # The step on two devices takes 100 ms.
    one = script(1, step_s=one_s) if one_s else []
    text = advised(tmp_path, "compute or communication", script(2) + one)
    assert [word in text for word in EXCHANGES] == [told] * 4
    assert "torch.compile" in text


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ({"wrapper": "DistributedDataParallel"}, (True, True)),
        ({"wrapper": "DistributedDataParallel", "gradient_bytes": 2_000_000}, (True, True)),
        ({"wrapper": "DistributedDataParallel", "gradient_bytes": 1_000_000}, (False, True)),
        ({"wrapper": "FSDP"}, (False, False)),
        ({}, (True, True)),
    ],
)  # fmt: skip
def test_buckets_of_gradients_are_for_models_that_may_have_several(
    setup: Row, told: tuple[bool, bool], tmp_path: Path
) -> None:
    rows = [{"at": 0, "rank": rank, **setup} for rank in range(2)]
    text = advised(tmp_path, "compute or communication", script(2), training_setup=rows)
    buckets, bits = told
    assert [word in text for word in EXCHANGES] == [buckets, True, bits, True]


@pytest.mark.parametrize(("optimizer_s", "told"), [(0.004, False), (0.006, True)])
def test_another_optimizer_is_advised_if_updates_take_time(optimizer_s: float, told: bool, tmp_path: Path) -> None:
    text = advised(tmp_path, "compute", script(1, optimizer_s=optimizer_s))
    assert ("fused=True" in text) == told


@pytest.mark.parametrize(("data_s", "told"), [(0.0005, False), (0.005, True)])
def test_faster_loading_is_advised_if_steps_wait_longer_than_loaders_take_for_any_data(
    data_s: float, told: bool, tmp_path: Path
) -> None:
    text = advised(tmp_path, "data loading", script(1, step_s=0.005, data_s=data_s))
    words = ("more loader workers", "less work per sample", "faster storage")
    assert [word in text for word in words] == [told] * 3


@pytest.mark.parametrize(("stalled", "told"), [("2 of 40: 12, 31", False), ("3 of 40: 12, 20, 31", True)])
def test_one_or_two_stalls_are_by_chance(stalled: str, told: bool, tmp_path: Path) -> None:
    assert bool(advised(tmp_path, "stalls", script(1, stalled_steps=stalled))) == told


def test_a_forward_pass_that_is_in_no_phase_is_no_needless_work(tmp_path: Path) -> None:
    hidden = advised(tmp_path / "hidden", "other", script(1, backward_s=0.04))
    assert "multicard.marks" in hidden and "py-spy" not in hidden
    seen = advised(tmp_path / "seen", "other", script(1, forward_s=0.02, backward_s=0.04))
    assert "py-spy" in seen and "multicard.marks" not in seen


@pytest.mark.parametrize(("long_s", "told"), [({31: 0.160}, False), ({11: 0.060, 31: 0.060, 40: 0.060}, True)])
def test_one_or_two_steps_with_work_in_no_phase_are_by_chance(
    long_s: dict[int, float], told: bool, tmp_path: Path
) -> None:
    # 40 steps of 2 ms, all of it in phases, but for these.
    steps = [
        {
            "at": 0, "rank": 0, "step": step, "epoch": 1, "window": "measured", "forward_s": 0.001, "backward_s": 0.001,
            "duration_s": 0.002 + long_s.get(step, 0.0),
        }
        for step in range(6, 46)
    ]  # fmt: skip
    step_s = 0.002 + sum(long_s.values()) / 40
    rows = script(1, step_s=step_s, forward_s=0.001, backward_s=0.001)
    assert ("py-spy" in advised(tmp_path, "other", rows, steps=steps)) == told


@pytest.mark.parametrize(("passes", "told"), [(1, False), (2, True)])
def test_workers_that_stay_are_advised_where_passes_begin(passes: int, told: bool, tmp_path: Path) -> None:
    loaders = [{"at": 0, "rank": 0, "num_workers": 2, "persistent_workers": False}]
    text = advised(tmp_path, "data loading", script(1, measured_passes=passes), loaders=loaders)
    assert ("persistent_workers" in text) == told
