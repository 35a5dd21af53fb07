"""Causes of slow loading, of synthetic runs whose waits are stated: shares and numbers of workers follow by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories import STEADY, Row, make_results, vision_runs
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.loading.slow_loading import diagnoses
from multicard.results.results import Results

# Steps 11 to 60 are measured; the pass that they begin in has begun before.
FIRST, LAST = 11, 60
LESS_WORK = "less work per sample, as by decoding, resizing or tokenizing once, beforehand"


def no_wait(_: int) -> float:
    return 0.0


def waiting_runs(
    folder: Path,
    wait_s: Callable[[int], float],
    rest_s: float = 0.030,
    pass_steps: int | None = None,
    loader: Row | None = None,
    work: Sequence[Row] = (),
    lines: Sequence[Row] = (),
    devices: int = 1,
    others_s: float = 0.0,
    **columns: Any,
) -> Results:
    """Three repeats of a run.

    Parameters
    ----------
    wait_s
        Seconds that rank 0 waits in a step, by its number; other ranks wait `others_s`, and for rank 0 in the rest.
    rest_s
        Seconds of the rest of the step.
    pass_steps
        Steps of a pass: of ten steps, the 10th, 20th and so on begin one.
    loader
        Facts of each rank's loader.
    work, lines
        Rows of the tables `host_work` and `code_lines`, but for run and rank.
    """
    steps: list[Row] = []
    repeats = range(len(STEADY))
    start_s = 0.0
    for number in range(1, LAST + 1):
        duration_s = wait_s(number) + rest_s
        place = {
            "step": number, "epoch": 1 + number // (pass_steps or 1000), "start_s": start_s, "duration_s": duration_s,
            "window": "measured" if number >= FIRST else "warmup",
        }  # fmt: skip
        start_s += duration_s
        for at in repeats:
            steps += [
                {"at": at, "rank": rank, **place, "data_s": others_s if rank else wait_s(number)}
                for rank in range(devices)
            ]
    mean_s = sum(wait_s(number) + rest_s for number in range(FIRST, LAST + 1)) / 50
    measures = {"iteration_time_s": mean_s, "mean_iteration_time_s": mean_s, "measured_steps": 50}
    if pass_steps:
        measures["estimated_epoch_time_s"] = mean_s * pass_steps
    facts = {"kind": "DataLoader", "num_workers": 0, "pin_memory": False, "sampler": "RandomSampler"} | (loader or {})
    tables = {
        "steps": steps,
        "loaders": [{"at": at, "rank": rank, **facts} for at in repeats for rank in range(devices)],
        "host_work": [
            {"at": at, "rank": 0, "bytes": 0, "site": "train.py:12", **row} for at in repeats for row in work
        ],
        "code_lines": [{"at": at, "rank": 0, **row} for at in repeats for row in lines],
    }
    rows = vision_runs(64 / mean_s, devices=devices, **{"device": "cpu", "usable_cpus": 8} | measures | columns)
    return make_results(folder, rows, gpu=None, tables=tables)


def found_in(results: Results) -> list[Diagnosis]:
    return diagnoses(results.configurations()[0], results)


def stated(diagnosis: Diagnosis) -> tuple[float | None, str, str]:
    return diagnosis.share and round(diagnosis.share, 3), diagnosis.evidence, diagnosis.remedy


def bursts(workers: int, worker_s: float, rest_s: float) -> Callable[[int], float]:
    """Waits of steps if workers begin at once: each gives a batch every `worker_s`, so one of so many steps waits."""
    wait_s = worker_s - workers * rest_s
    return lambda number: wait_s if number % workers == 0 else 0.0


# Without workers.


def test_without_workers_as_many_are_proposed_as_load_in_the_time_of_the_rest(tmp_path: Path) -> None:
    # 80 of 110 ms are loading: 80 / 30 needs three workers.
    [found] = found_in(waiting_runs(tmp_path, lambda _: 0.080))
    assert stated(found) == (
        round(80 / 110, 3),
        "the training thread itself loads (`num_workers=0`), 80.0 ms of a step (73% of the time), and the rest of it "
        "takes 30.0 ms",
        "about 3 workers (`num_workers=3` with `persistent_workers=True`)",
    )


@pytest.mark.parametrize(
    ("cpu_s", "remedy", "says"),
    [
        # Of 80 ms a batch, 10 ms compute in each of 50 steps; or 70.
        (
            50 * 0.010,
            "about 3 workers (`num_workers=3` with `persistent_workers=True`)",
            "mostly waits, as for storage",
        ),
        (50 * 0.070, f"{LESS_WORK} (about 3 workers would be needed, and a rank has 1 CPU)", "mostly computes"),
    ],
)
def test_loading_that_waits_needs_no_cpus_for_its_workers(cpu_s: float, remedy: str, says: str, tmp_path: Path) -> None:
    [found] = found_in(
        waiting_runs(tmp_path, lambda _: 0.080, loader={"pin_memory": True, "cpu_s": cpu_s}, usable_cpus=1)
    )
    assert found.remedy == remedy
    assert f"; loading {says}" in found.evidence


@pytest.mark.parametrize(
    ("devices", "columns", "remedy"),
    [
        (
            1, {"usable_cpus": 3},
            f"`num_workers=2` with `persistent_workers=True`, and {LESS_WORK} (about 3 workers are needed, and a rank "
            "has 3 CPUs)",
        ),
        (
            2, {"usable_cpus": 2},
            f"{LESS_WORK}, or `num_workers=3` if loading waits rather than computes (a rank has 1 CPU)",
        ),
        # Two ranks of two threads each leave two of eight CPUs to each.
        (
            2, {"usable_cpus": 8, "intraop_threads": 2},
            f"`num_workers=2` with `persistent_workers=True`, and {LESS_WORK} (about 3 workers are needed, and a rank "
            "has 4 CPUs)",
        ),
        # The loader of a rank that trains on a GPU has the CPU that the rank leaves.
        (
            2, {"usable_cpus": 4, "device": "cuda"},
            f"`num_workers=1` with `persistent_workers=True`, and {LESS_WORK} (about 3 workers are needed, and a rank "
            "has 2 CPUs)",
        ),
        (1, {}, "about 3 workers (`num_workers=3` with `persistent_workers=True`)"),
    ],
)  # fmt: skip
def test_no_more_workers_are_proposed_than_there_are_cpus_for(
    devices: int, columns: Row, remedy: str, tmp_path: Path
) -> None:
    loader = {"pin_memory": True}
    [found] = found_in(waiting_runs(tmp_path, lambda _: 0.080, devices=devices, loader=loader, **columns))
    assert found.remedy == remedy
    assert found.share == pytest.approx(80 / 110)


def test_lines_that_take_a_fifth_of_the_loading_are_named(tmp_path: Path) -> None:
    # Loading takes 80 of 110 ms, so 80 of 110 samples.
    def line(site: str | None, samples: int, phase: str = "data", function: str = "Data.__getitem__") -> Row:
        name = None if site is None else function
        return {"phase": phase, "site": site, "function": name, "samples_there": samples, "stack_samples": 110}

    lines = [line("train.py:50", 30, "forward"), line("data.py:31", 64), line("data.py:40", 6, function="collate")]
    [found] = found_in(waiting_runs(tmp_path / "one", lambda _: 0.080, lines=lines, data_s=0.080))
    assert found.evidence.endswith("; 80% of the loading is at data.py, line 31 (`Data.__getitem__`)")
    lines = [line("data.py:31", 10), line(None, 70)]
    [found] = found_in(waiting_runs(tmp_path / "none", lambda _: 0.080, lines=lines, data_s=0.080))
    assert "data.py" not in found.evidence


@pytest.mark.parametrize("loader", [{"num_workers": 0}, {"num_workers": 2, "prefetch_factor": 2}])
def test_one_or_two_long_waits_are_by_chance(loader: Row, tmp_path: Path) -> None:
    # Both together are 360 ms of 1.91 s, 19%.
    waits_s = {20: 0.060, 44: 0.300}
    results = waiting_runs(tmp_path, lambda number: waits_s.get(number, 0.001), loader=loader)
    assert found_in(results) == []


def test_loading_that_takes_no_longer_than_a_workers_batch_is_no_cause(tmp_path: Path) -> None:
    # 0.5 of 2.5 ms are loading.
    assert found_in(waiting_runs(tmp_path, lambda _: 0.0005, rest_s=0.002)) == []


def test_of_loading_in_the_training_thread_long_waits_by_chance_do_not_count(tmp_path: Path) -> None:
    # 50 steps of 30 ms wait 10 ms each, and one of them a second longer: 500 ms of 3 s are loading.
    results = waiting_runs(tmp_path, lambda number: 1.010 if number == 44 else 0.010)
    [found] = found_in(results)
    assert stated(found) == (
        round(0.5 / 3.0, 3),
        "the training thread itself loads (`num_workers=0`), 10.0 ms of a step (17% of the time), and the rest of it "
        "takes 30.0 ms",
        "about 1 worker (`num_workers=1` with `persistent_workers=True`)",
    )


def test_a_step_that_hardly_waits_has_no_cause(tmp_path: Path) -> None:
    assert found_in(waiting_runs(tmp_path, lambda _: 0.001)) == []


def test_nothing_is_told_of_steps_that_draw_from_several_loaders_or_from_an_unknown_one(tmp_path: Path) -> None:
    results = waiting_runs(tmp_path / "unknown", lambda _: 0.080, loader={"num_workers": None})
    assert found_in(results) == []
    rows = vision_runs(100.0, device="cpu", data_share=0.5)
    two = [{"at": at, "rank": 0, "kind": "DataLoader", "num_workers": workers} for at in range(3) for workers in (0, 1)]
    assert found_in(make_results(tmp_path / "two", rows, gpu=None, tables={"loaders": two})) == []


# Too few workers.


@pytest.mark.parametrize(
    ("workers", "worker_s", "gives", "needed"),
    [
        (1, 0.100, "1 worker gives the data of a step in about 100 ms", 4),
        # Two workers of 100 ms each give a batch every 50 ms.
        (2, 0.100, "2 workers give the data of a step in about 50.0 ms", 4),
        (3, 0.100, "3 workers give the data of a step in about 33.3 ms", 4),
        (4, 0.240, "4 workers give the data of a step in about 60.0 ms", 8),
    ],
)
def test_too_few_workers_are_told_from_their_bursts(
    workers: int, worker_s: float, gives: str, needed: int, tmp_path: Path
) -> None:
    # Measured are 50 steps; so 48 of them hold whole bursts of three and four.
    wait_s = bursts(workers, worker_s, 0.030)
    loader = {"num_workers": workers, "prefetch_factor": 2, "persistent_workers": True}
    [found] = found_in(waiting_runs(tmp_path, wait_s, loader=loader, usable_cpus=16))
    expected = 1 - workers * 0.030 / worker_s
    assert found.share == pytest.approx(expected, abs=0.02)
    assert found.remedy == f"about {needed} workers (`num_workers={needed}`)"
    assert found.evidence.startswith(gives[: gives.index("about") + 5])
    assert "and the rest of it takes 30.0 ms: steps wait for" in found.evidence


def test_more_workers_than_cpus_are_proposed_only_for_loading_that_waits(tmp_path: Path) -> None:
    loader = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}
    results = waiting_runs(tmp_path, bursts(2, 0.100, 0.030), loader=loader, devices=2, usable_cpus=4)
    [found] = found_in(results)
    assert found.remedy == (
        f"{LESS_WORK}, or `num_workers=4` if loading waits rather than computes (a rank has 2 CPUs)"
    )


# Starts of passes.


def turning(first_s: float, last_s: float = 0.0, usual_s: float = 0.0) -> Callable[[int], float]:
    """Waits in passes of ten steps."""
    return lambda number: usual_s + {0: first_s, 9: last_s}.get(number % 10, 0.0)


STARTS = {"kind": "starting workers", "function": "DataLoader", "calls": 5, "steps": 5, "first_steps": "20, 30, 40"}


def test_workers_that_start_again_are_told_by_the_waits_at_the_start_and_the_end_of_passes(tmp_path: Path) -> None:
    # A pass takes 10 × 30 + 200 + 100 ms.
    loader = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": False}
    results = waiting_runs(
        tmp_path, turning(0.200, 0.100), pass_steps=10, loader=loader, work=[STARTS | {"seconds": 0.25}]
    )
    [found] = found_in(results)
    assert stated(found) == (
        0.5,
        "`DataLoader` (train.py, line 12) starts its workers at the start of each pass of 10 steps, which then "
        "waits 200 ms longer, and 100 ms at its end, until they have stopped (50% of the time)",
        "`persistent_workers=True`, so that workers stay from one pass to the next",
    )


def test_a_pass_that_is_longer_than_what_was_measured_counts_with_all_its_steps(tmp_path: Path) -> None:
    # One start of 3 s is in the 50 steps, and one in the 100 of a pass: 3 of 100 × 0.03 + 3 s.
    # The 50 steps take 1.5 + 3 s, so that a step takes 90 ms, and 9 s are 100 steps.
    loader = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    results = waiting_runs(
        tmp_path, lambda number: 3.0 if number == 35 else 0.0, pass_steps=35, loader=loader, estimated_epoch_time_s=9.0
    )
    [found] = found_in(results)
    assert found.share == pytest.approx(0.5, rel=0.01)
    assert found.evidence.endswith("(50% of the time, with 100 steps in a pass)")


def test_a_start_in_a_pass_of_unknown_length_is_not_told_if_only_one_was_measured(tmp_path: Path) -> None:
    loader = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    results = waiting_runs(tmp_path, lambda number: 3.0 if number == 35 else 0.0, pass_steps=35, loader=loader)
    results = replace(results, measures=results.measures.assign(estimated_epoch_time_s=None))
    assert found_in(results) == []


def test_a_slow_sampler_is_told_apart_from_the_loading_of_each_batch(tmp_path: Path) -> None:
    # 300 ms at the start of a pass, and 20 ms of loading in each step of 50 ms: a pass takes 800 ms.
    sampling = {
        "kind": "sampling", "function": "sampler", "calls": 5, "steps": 5, "first_steps": "20, 30", "seconds": 1.5,
    }  # fmt: skip
    results = waiting_runs(
        tmp_path, turning(0.300, usual_s=0.020), pass_steps=10, loader={"sampler": "Buckets"}, work=[sampling]
    )
    sampler, loading = found_in(results)
    assert stated(sampler) == (
        0.375,
        "`Buckets` takes 300 ms at the start of each pass of 10 steps (38% of the time, called by train.py, line 12)",
        "a sampler that yields its first indices at once, or has its order made beforehand (it works in the training "
        "thread, whatever the number of workers)",
    )
    assert loading.share == pytest.approx(200 / 800)
    assert loading.remedy == "about 1 worker (`num_workers=1` with `persistent_workers=True`)"


def test_a_sampler_that_is_slow_for_each_batch_is_no_loading_that_workers_could_do(tmp_path: Path) -> None:
    sampling = {
        "kind": "sampling",
        "function": "sampler",
        "calls": 50,
        "steps": 50,
        "first_steps": "11",
        "seconds": 2.0,
    }
    [found] = found_in(waiting_runs(tmp_path, lambda _: 0.040, rest_s=0.040, work=[sampling]))
    assert found.share == pytest.approx(0.5, rel=1e-3)
    assert found.evidence == "`RandomSampler` takes 40.0 ms of each step (50% of the time, called by train.py, line 12)"


@pytest.mark.parametrize(
    ("loader", "remedy"),
    [
        ({"num_workers": 2, "persistent_workers": True, "prefetch_factor": 2}, "longer passes"),
        ({"num_workers": 0}, "less work at the start of a pass"),
    ],
)
def test_a_first_batch_that_comes_late_for_another_reason_is_told(loader: Row, remedy: str, tmp_path: Path) -> None:
    [found] = found_in(waiting_runs(tmp_path, turning(0.300), pass_steps=10, loader=loader))
    assert found.share == pytest.approx(0.5)
    assert found.evidence == (
        "the first step of each pass waits 300 ms longer for data than others (50% of the time, with 10 steps in a "
        "pass)"
    )
    assert found.remedy.startswith(remedy)


# Single batches.


def test_single_slow_batches_ask_for_more_batches_ahead(tmp_path: Path) -> None:
    # A batch takes 290 ms, of which the four that are ready bridge 120. Three more for each worker bridge all.
    loader = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}
    results = waiting_runs(tmp_path, lambda number: 0.170 if number % 16 == 0 else 0.0, loader=loader)
    [found] = found_in(results)
    # Steps 16, 32 and 48 wait.
    assert stated(found) == (
        round(0.51 / 2.01, 3),
        "one of 17 steps waits 170 ms for data, and the others hardly (25% of the time): single batches take longer to "
        "load than the 4 batches that workers load ahead last",
        "about `prefetch_factor=5` (now 2)",
    )


# Measured by runs without loading.


@pytest.mark.parametrize(("without_s", "told"), [(0.045, True), (0.110, False)])
def test_what_runs_without_loading_show_takes_the_place_of_what_waits_suggest(
    without_s: float, told: bool, tmp_path: Path
) -> None:
    # A batch takes 90 ms alone, and a step without loading 45: two workers are enough.
    parts = ("none", "loader")
    alone = ({}, {"loader_alone_s": 0.090, "loader_workers": 0})
    columns = {"workload": "script", "command": ["train.py"], "folder": ".", "device": "cpu", "usable_cpus": 8}
    rows = [
        {
            **columns, "ablate": ablate, "repeat": repeat, "measured_steps": 50, "iteration_time_s": step_s,
            "throughput_samples_per_s": 64 / step_s * scatter, **measured,
        }
        for repeat, scatters in ((1, (0.999, 1.001)), (2, (1.0, 1.0)), (3, (1.001, 0.999)))
        for ablate, step_s, measured, scatter in zip(parts, (0.110, without_s), alone, scatters, strict=True)
    ]  # fmt: skip
    runs = [at for at, row in enumerate(rows) if row["ablate"] == "none"]
    steps = [
        {
            "at": at, "rank": 0, "epoch": 1, "step": step, "window": "measured", "start_s": 0.11 * step,
            "duration_s": 0.110, "data_s": 0.080,
        }
        for at in runs
        for step in range(FIRST, LAST + 1)
    ]  # fmt: skip
    loaders = [{"at": at, "rank": 0, "kind": "DataLoader", "num_workers": 0} for at in runs]
    results = make_results(tmp_path, rows, gpu=None, tables={"steps": steps, "loaders": loaders})
    found = found_in(results)
    assert [diagnosis.remedy for diagnosis in found] == (
        ["about 2 workers (`num_workers=2` with `persistent_workers=True`)"] if told else []
    )


# Copies.


@pytest.mark.parametrize(
    ("pin_memory", "transfer", "told"), [(False, 0.2, True), (True, 0.2, False), (False, 0.01, False)]
)
def test_copies_that_are_not_pinned_are_told_on_gpus(
    pin_memory: bool, transfer: float, told: bool, tmp_path: Path
) -> None:
    results = waiting_runs(
        tmp_path, no_wait, device="cuda", loader={"pin_memory": pin_memory}, memory_operations_share=transfer
    )
    found = found_in(results)
    assert [diagnosis.share for diagnosis in found] == ([pytest.approx(0.2, rel=1e-3)] if told else [])
    if told:
        assert found[0].evidence == (
            "copies from memory that is not pinned (`pin_memory=False`) take 6.00 ms of a step, 20% of the time"
        )


def test_copies_of_unpinned_memory_are_left_to_the_traces_that_show_them(tmp_path: Path) -> None:
    rows = vision_runs(100.0, iteration_time_s=0.030, memory_operations_share=0.2)
    loaders = [{"at": at, "rank": 0, "num_workers": 0, "pin_memory": False} for at in range(3)]
    plain = make_results(tmp_path / "plain", rows, tables={"loaders": loaders})
    assert [diagnosis.share for diagnosis in found_in(plain)] == [pytest.approx(0.2)]
    operation = {"operation": "host_to_device", "host_memory": "pageable", "bytes": 900, "total_s": 0.75}
    operations = [{"at": at, "report": "rank0", **operation} for at in range(3)]
    tables = {"loaders": loaders, "memory_operations": operations}
    assert found_in(make_results(tmp_path / "traced", rows, tables=tables)) == []


def test_an_iterator_in_each_step_is_told_with_its_wait_and_the_end_of_its_workers(tmp_path: Path) -> None:
    # `next(iter(loader))`: a pass has one step, which waits 60 ms for workers that start, and 20 of its other 40 ms for
    # those of the last step to stop.
    starts = {"kind": "starting workers", "function": "DataLoader", "calls": 50, "seconds": 2.0, "steps": 50}
    stops = starts | {"kind": "stopping workers", "phase": "forward", "seconds": 1.0}
    work = [row | {"first_steps": ""} for row in (starts, stops)]
    measures = {"data_s": 0.060, "data_share": 0.6}
    results = waiting_runs(
        tmp_path / "each", lambda _: 0.060, 0.040, pass_steps=1, loader={"num_workers": 2}, work=work, **measures
    )
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.8, rel=0.01)
    assert found.evidence == (
        "`DataLoader` (train.py, line 12) starts workers in each step and stops them after one batch: with the wait "
        "for it, this takes 80.0 ms of a step (80%)"
    )
    assert found.remedy.startswith("one iterator for all batches of a pass (`for batch in loader`)")
    # Workers that start in one of two steps belong to passes of two steps.
    half = [row | {"calls": 25, "steps": 25} for row in work]
    results = waiting_runs(
        tmp_path / "half", lambda _: 0.060, 0.040, pass_steps=1, loader={"num_workers": 2}, work=half, **measures
    )
    assert diagnoses(results.configurations()[0], results) == []


@pytest.mark.parametrize(
    ("devices", "workers", "others_s", "says"),
    [
        (2, 0, 0.004, "; rank 0 alone waits so: 80.0 ms of a step, the other 4.00 ms"),
        (4, 0, 0.004, "; rank 0 alone waits so: 80.0 ms of a step, the others at most 4.00 ms"),
        (2, 0, 0.070, None),
        (1, 0, 0.0, None),
        # The other rank's worker loads ahead while this one is waited for, and may be as slow.
        (2, 1, 0.004, None),
    ],
)
def test_a_rank_that_alone_waits_for_its_data_is_named(
    devices: int, workers: int, others_s: float, says: str | None, tmp_path: Path
) -> None:
    loader = {"num_workers": workers, "prefetch_factor": 2 if workers else None}
    results = waiting_runs(tmp_path, lambda _: 0.080, loader=loader, devices=devices, others_s=others_s)
    [found] = found_in(results)
    assert ("alone waits so" in found.evidence) is (says is not None)
    assert says is None or found.evidence.endswith(says)
