"""Lines of the user's code that take time outside of the phases, of synthetic runs whose samples are stated."""

from pathlib import Path
from typing import Any

import pytest

from factories import Row, make_results, recommendations, vision_runs
from multicard.answers.diagnoses.user_code.code_lines import diagnoses, lines_in_words
from multicard.answers.diagnoses.user_code.code_places import places_of
from multicard.results.breakdown import StepPart
from multicard.results.results import Results

SAMPLES = 200  # of each rank and run
RUNS = 3
# Of a step of 100 ms 60 ms are in no phase.
PHASES = {"data_s": 0.010, "forward_s": 0.010, "backward_s": 0.015, "optimizer_s": 0.005}


def runs(devices: int = 1, device: str = "cpu", step_s: float = 0.1, **columns: Any) -> list[Row]:
    times = {"iteration_time_s": step_s, "mean_iteration_time_s": step_s, "measured_steps": 50} | PHASES | columns
    return vision_runs(
        devices * 64 / step_s, devices=devices, device=device, data_share=times["data_s"] / step_s, **times
    )


def samples(
    share: float, site: str | None = "train.py:57", function: str | None = "log_metrics", called: str | None = None,
    phase: str | None = None, rank: int = 0, runs: range = range(RUNS),
) -> list[Row]:  # fmt: skip
    """Rows of a line that has this share of the samples of each run."""
    line = {"site": site, "function": function, "called": called, "phase": phase, "rank": rank}
    return [{"at": at, **line, "samples_there": round(share * SAMPLES), "stack_samples": SAMPLES} for at in runs]


def results_of(folder: Path, rows: list[Row], *lines: list[Row], **tables: list[Row]) -> Results:
    all_lines = [row for of_line in lines for row in of_line]
    return make_results(folder, rows, gpu=None, tables={"code_lines": all_lines} | tables)


IN_FORWARD = samples(0.4, "train.py:40", "train", phase="forward")


def test_a_line_outside_of_the_phases_is_told_with_what_it_calls(tmp_path: Path) -> None:
    results = results_of(tmp_path, runs(), samples(0.6, called="json.dump"), IN_FORWARD)
    [found] = diagnoses(results.configurations()[0], results)
    # 360 of 600 samples; by Wilson's formula 56.03 to 63.84 %.
    assert found.evidence == (
        "60% of a step (60.0 ms; 95% CI 56% to 64%, n=360) is at train.py, line 57 (`log_metrics`, in `json.dump`), "
        "outside of loader, forward, backward and optimizer"
    )
    assert found.remedy == "less frequent logging, or a thread that writes"
    assert found.share == pytest.approx(0.6, rel=1e-3)
    # At least 19 of 20 parts of 56.03 ms go, and at most the 60 ms outside of the phases: 46.8 and 40 of 100 ms stay.
    gain = "at least 2.14× as fast with a 20th of it, up to 2.50× without it"
    assert f"- Try next: {found.remedy}, since {found.evidence}; {gain}" in recommendations(results)


@pytest.mark.parametrize(
    ("called", "remedy"),
    [
        ("copy.deepcopy", "an update in place, as by `torch.optim.swa_utils.AveragedModel`, instead of a copy"),
        ("torch.nn.modules.module.Module.state_dict",
         "an update in place, as by `torch.optim.swa_utils.AveragedModel`, instead of a copy"),
        ("PIL.Image.open", "this preparation of data in the data set, so that workers of the loader do it"),
        ("torch.nn.utils.clip_grad.clip_grad_norm_", "less work at train.py, line 57, or in one of many steps only"),
        (None, "less work at train.py, line 57, or in one of many steps only"),
    ],
)  # fmt: skip
def test_the_remedy_is_for_what_the_line_calls(called: str | None, remedy: str, tmp_path: Path) -> None:
    results = results_of(tmp_path, runs(), samples(0.5, called=called), IN_FORWARD)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.remedy == remedy
    # Only what is still to be done in some steps leaves a part.
    assert found.is_made_rare == remedy.startswith("less work at")


def test_shares_are_lower_bounds_where_many_samples_came_late(tmp_path: Path) -> None:
    results = results_of(tmp_path, runs(), samples(0.3), samples(0.2, "train.py:40", "train", phase="forward"))
    [found] = diagnoses(results.configurations()[0], results)
    assert found.evidence.startswith("at least 30% of a step (30.0 ms; ")


def test_lines_of_one_function_are_one_place_unless_one_has_most_samples(tmp_path: Path) -> None:
    lines = [samples(0.2, f"metrics.py:{line}", "Metrics.update") for line in (10, 12)]
    inner = samples(0.2, "metrics.py:17", "Metrics.update.<locals>.<listcomp>")
    results = results_of(tmp_path / "three", runs(), *lines, inner, IN_FORWARD)
    [place] = places_of(results.configurations()[0], results, None)
    assert place.words == "metrics.py, lines 10 to 17 (`Metrics.update`)"
    assert place.share.value == pytest.approx(0.6)
    # 40 of 60 samples of a function that does nothing else are less than nearly all of it.
    half = results_of(
        tmp_path / "half", runs(), samples(0.2, "metrics.py:10", "log"), samples(0.4, "metrics.py:14", "log")
    )
    [place] = places_of(half.configurations()[0], half, None)
    assert (place.lines, place.share.value) == ((14, 10), pytest.approx(0.6))
    # The function of the training loop computes, too, so that only its line can be left out.
    trains = [samples(0.2, "train.py:10", "train"), samples(0.3, "train.py:14", "train")]
    loop = results_of(tmp_path / "loop", runs(), *trains, IN_FORWARD)
    [place] = places_of(loop.configurations()[0], loop, None)
    assert (place.lines, place.share.value) == ((14,), pytest.approx(0.3))


def timed_steps(rank: int = 0, count: int = 50, **phases: float) -> list[Row]:
    """Measured steps of 100 ms of each run, with these times of phases."""
    return [
        {"at": at, "rank": rank, "epoch": 1, "step": step, "window": "measured", "duration_s": 0.1} | PHASES | phases
        for at in range(RUNS)
        for step in range(1, count + 1)
    ]  # fmt: skip


def test_the_clock_divides_a_phase_among_the_lines_seen_in_it(tmp_path: Path) -> None:
    # Half of the samples came too late to show a line: 60 of 200 are seen outside, 45 of them at one line.
    lines = [
        samples(0.225),
        samples(0.075, "train.py:70", "save"),
        samples(0.2, "train.py:40", "train", phase="forward"),
    ]
    results = results_of(tmp_path, runs(), *lines, steps=timed_steps())
    first, second = places_of(results.configurations()[0], results, None)
    # 60 of 100 ms are outside of the phases: 45 / 60 and 15 / 60 of them.
    assert (first.seconds, second.seconds) == (pytest.approx(0.045, rel=0.01), pytest.approx(0.015, rel=0.01))
    found = next(iter(diagnoses(results.configurations()[0], results)))
    # 135 of 180 samples; Wilson's formula by hand: 68.19 to 80.76 %, times 0.6.
    assert found.evidence.startswith("about 45% of a step (45.0 ms; 95% CI 41% to 48%, n=135) is at train.py, line 57 ")


def test_the_time_of_a_phase_is_that_of_the_rank_with_the_samples(tmp_path: Path) -> None:
    # Rank 0 logs for 60 ms, while rank 1 waits for it in its backward pass.
    steps = timed_steps(0) + timed_steps(1, backward_s=0.075)
    waits = samples(0.9, "train.py:41", "train", phase="backward", rank=1)
    results = results_of(tmp_path, runs(2), samples(0.5, rank=0), waits, steps=steps)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.6, rel=0.01)


def test_two_samples_are_too_few_whatever_the_clock_says(tmp_path: Path) -> None:
    few = [row | {"samples_there": 2, "stack_samples": 5} for row in samples(0.2)[:1]]
    results = results_of(tmp_path, runs()[:1], few, steps=[row for row in timed_steps() if row["at"] == 0])
    assert list(diagnoses(results.configurations()[0], results)) == []


def test_a_line_between_the_batch_and_the_model_prepares_data(tmp_path: Path) -> None:
    # The forward pass is timed with what comes before the model: 50 ms, 30 of 50 samples of which are before it.
    augments = samples(0.3, "train.py:16", "Augmenter.__call__", phase="transfer")
    model = samples(0.2, "model.py:8", "Net.forward", phase="forward")
    steps = timed_steps(forward_s=0.05)
    results = results_of(tmp_path / "cpu", runs(forward_s=0.05), augments, model, steps=steps)
    [found] = diagnoses(results.configurations()[0], results)
    assert "30% of a step (30.0 ms; " in found.evidence
    assert found.evidence.endswith(
        "train.py, line 16 (`Augmenter.__call__`), between the batch and the first call of the model"
    )
    assert found.remedy == "this preparation of data in the data set, so that workers of the loader do it"
    # On a GPU the line may wait for what the last step has launched.
    gpu = results_of(tmp_path / "gpu", runs(device="cuda"), augments, model, steps=steps)
    assert list(diagnoses(gpu.configurations()[0], gpu)) == []


def test_a_module_and_functions_within_functions_have_the_names_that_users_know(tmp_path: Path) -> None:
    results = results_of(
        tmp_path, runs(), samples(0.3, "train.py:3", "<module>", "copy.deepcopy"),
        samples(0.2, "train.py:9", "main.<locals>.log.<locals>.<listcomp>"),
    )  # fmt: skip
    words = [place.words for place in places_of(results.configurations()[0], results, None)]
    assert words == ["train.py, line 3 (in `copy.deepcopy`)", "train.py, line 9 (`log`)"]


def test_few_samples_and_small_parts_are_not_told(tmp_path: Path) -> None:
    rare = samples(0.01)  # 6 of 600 samples: 0.46 to 2.2 %
    few = [row | {"samples_there": 1, "stack_samples": 5} for row in samples(0.2)[:1]]  # 1 of 5: 3.6 to 62 %
    for name, lines in (("rare", rare), ("few", few)):
        results = results_of(tmp_path / name, runs(), lines)
        assert list(diagnoses(results.configurations()[0], results)) == []
    small = results_of(tmp_path / "part", runs(data_s=0.066), samples(0.5))  # 4 of 100 ms are in no phase
    assert list(diagnoses(small.configurations()[0], small)) == []


def test_a_line_in_which_the_model_computes_is_not_told(tmp_path: Path) -> None:
    fits = [samples(0.3, "train.py:80", "main", "Trainer.fit", phase) for phase in (None, "forward", "backward")]
    results = results_of(tmp_path / "fit", runs(), *fits)
    assert list(diagnoses(results.configurations()[0], results)) == []
    rows = [{name: value for name, value in row.items() if name != "forward_s"} for row in runs()]
    unknown = results_of(tmp_path / "unknown", rows, samples(0.5, called="json.dump"))
    assert list(diagnoses(unknown.configurations()[0], unknown)) == []


def test_what_the_hosts_work_explains_is_not_told_twice(tmp_path: Path) -> None:
    for site, seconds in (("other.py:1", 0.040), ("train.py:57", 0.020)):
        work = [
            {
                "at": at, "rank": 0, "kind": "garbage collection", "function": "gc.collect", "phase": None, "calls": 50,
                "seconds": seconds * 50, "bytes": 0, "steps": 50, "first_steps": "11", "site": site,
            }
            for at in range(RUNS)
        ]  # fmt: skip
        # 40 of the 60 ms outside of the phases; then 20 of the 30 ms at the line.
        results = results_of(tmp_path / site, runs(), samples(0.3), IN_FORWARD, host_work=work)
        assert list(diagnoses(results.configurations()[0], results)) == []


def test_the_rank_counts_that_is_there_most(tmp_path: Path) -> None:
    # Rank 0 logs, while rank 1 waits for it in the backward pass.
    waits = samples(0.9, "train.py:41", "train", phase="backward", rank=1)
    results = results_of(tmp_path, runs(2), samples(0.6, rank=0), samples(0.02, rank=1), waits)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.6, rel=1e-3)


def test_on_gpus_a_call_of_a_library_counts_as_far_as_they_are_idle_for_the_host(tmp_path: Path) -> None:
    parts = {StepPart.COMPUTE.column: 0.7, StepPart.HOST_ELSEWHERE.column: 0.3}
    idle = runs(device="cuda", **parts)
    results = results_of(tmp_path / "idle", idle, samples(0.5, called="json.dump"), IN_FORWARD)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.3, rel=1e-3)
    assert found.evidence.endswith("and for 30% the GPU is idle while the host makes no GPU call")
    # `loss.item()` waits for the GPU, which may be busy.
    for called in (None, "torch._tensor.Tensor.__format__"):
        waiting = results_of(tmp_path / str(called), idle, samples(0.5, called=called), IN_FORWARD)
        assert list(diagnoses(waiting.configurations()[0], waiting)) == []


def test_lines_of_the_data_set_are_told_as_shares_of_loading(tmp_path: Path) -> None:
    # 40 of 100 ms are waits for data: 80 of 200 samples.
    rows = runs(data_s=0.040)
    get = samples(0.32, "data.py:31", "Images.__getitem__", "PIL.Image.open", "data")
    collate = samples(0.08, "train.py:12", "train", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", "data")
    results = results_of(tmp_path / "all", rows, get, collate)
    configuration = results.configurations()[0]
    told = "80% of the loading is at data.py, line 31 (`Images.__getitem__`, in `PIL.Image.open`)"
    assert lines_in_words(configuration, results, "data", "the loading") == told
    # If the clock knows of 80 samples, and only 48 are seen in this phase, the others may be elsewhere.
    lost = results_of(tmp_path / "lost", rows, samples(0.24, "data.py:31", "Images.__getitem__", phase="data"))
    words = lines_in_words(lost.configurations()[0], lost, "data", "the loading")
    assert words == "60% of the loading is at data.py, line 31 (`Images.__getitem__`)"
    waits = results_of(tmp_path / "waits", rows, samples(0.4, called="torch.utils.data.x", phase="data"))
    assert lines_in_words(waits.configurations()[0], waits, "data", "the loading") is None
    none = results_of(tmp_path / "none", rows)
    assert lines_in_words(none.configurations()[0], none, "data", "the loading") is None


def test_what_grew_outside_of_the_phases_has_its_line(tmp_path: Path) -> None:
    # 40 of 80 ms in place of none of 40.
    one, two = runs(1, step_s=0.040), runs(2, step_s=0.080)
    both = range(2 * RUNS)
    computing = samples(0.5, "train.py:40", "train", phase="forward", runs=both)
    grown = samples(0.5, called="json.dump", runs=range(RUNS, 2 * RUNS))
    said = recommendations(results_of(tmp_path / "grown", one + two, computing, grown))
    assert (
        "40.0 ms more outside of forward, backward and optimizer, at train.py, line 57 (`log_metrics`, in `json.dump`)"
    ) in said
    # A line that takes all of the step on one device, too, explains no growth.
    same = [*samples(1.0, runs=range(RUNS)), *samples(0.5, runs=range(RUNS, 2 * RUNS))]
    said = recommendations(results_of(tmp_path / "same", one + two, same))
    assert "40.0 ms more outside of forward, backward and optimizer" in said
    assert "optimizer, at train.py" not in said


def test_an_archive_without_sites_tells_no_line(tmp_path: Path) -> None:
    results = results_of(tmp_path, runs(), samples(0.6, site=None, function=None), samples(0.4, None, phase="data"))
    [configuration] = results.configurations()
    assert list(diagnoses(configuration, results)) == []
    assert lines_in_words(configuration, results, "data", "the loading") is None
