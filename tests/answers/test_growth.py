"""What grew in a step on several devices, of synthetic runs whose steps are stated part by part."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from factories import STEADY, Row, make_results, recommendations, vision_runs
from multicard.answers.answer import GREW
from multicard.answers.choice.recommend import advise
from multicard.answers.scaling.growth import Growth, growths
from multicard.figures.draw import draw
from multicard.results.breakdown import StepPart

BATCH = 64


def steps(devices: int, batch: int = BATCH, factors: tuple[float, ...] = STEADY, **phases_ms: float) -> list[Row]:
    """Repeats of runs whose step has these phases and takes their sum; `batch`: images of a step on each device."""
    step_s = sum(phases_ms.values()) / 1000
    timed = {f"{name}_s": value / 1000 for name, value in phases_ms.items()}
    return steps_of(devices, step_s, batch, factors, data_share=timed["data_s"] / step_s, **timed)


def steps_of(
    devices: int, step_s: float, batch: int = BATCH, factors: tuple[float, ...] = STEADY, **columns: Any
) -> list[Row]:
    times = {"iteration_time_s": step_s, "mean_iteration_time_s": step_s}
    return vision_runs(devices * batch / step_s, factors, devices=devices, **times | columns)


def growth_of(folder: Path, *runs: list[Row]) -> Growth:
    results = make_results(folder, [row for each in runs for row in each])
    [growth] = growths(results.configurations()).values()
    return growth


def in_ms(growth: Growth) -> dict[str, float]:
    return {str(name): 1000 * seconds for name, seconds in growth.parts.items() if abs(seconds) > 1e-4}


ONE = {"data": 2.0, "forward": 20.0, "backward": 40.0, "optimizer": 10.0, "other": 8.0}


def test_a_step_of_equal_work_grows_by_what_its_phases_take_longer(tmp_path: Path) -> None:
    growth = growth_of(tmp_path, steps(1, **ONE), steps(2, **ONE | {"backward": 100.0, "other": 48.0}))
    # 180 ms in place of 80.
    assert growth.ratio.value == pytest.approx(180 / 80, rel=1e-3)
    assert growth.work_share == 1
    assert in_ms(growth) == pytest.approx({"backward": 60, "other": 40}, rel=0.02)
    sentence = growth.answer().sentence
    assert sentence.startswith("on 2 GPUs a step takes 2.25× as long as on one (95% CI 2.2")
    assert sentence.endswith(
        ": 100 ms more, 60.0 ms in the backward pass; and 40.0 ms outside of forward, backward and optimizer"
    )


def test_devices_that_share_the_work_are_compared_with_their_share_of_the_step(tmp_path: Path) -> None:
    # Half of the 80 ms is ideal. All but the optimizer takes half as long; a wait for data is added.
    halved = {name: value / 2 for name, value in ONE.items()} | {"optimizer": 10.0, "data": 11.0}
    growth = growth_of(tmp_path, steps(1, **ONE), steps(2, batch=BATCH // 2, **halved))
    assert growth.work_share == 0.5
    assert growth.ratio.value == pytest.approx(55 / 40, rel=1e-3)
    assert in_ms(growth) == pytest.approx({"data loading": 10, "optimizer": 5}, rel=0.02)
    assert "as long as its share of the work on one" in growth.answer().sentence
    assert growth.answer().sentence.endswith("15.0 ms more, 10.0 ms waiting for data and 5.00 ms in the optimizer")


def test_traced_steps_grow_by_their_parts_and_what_became_shorter_is_told(tmp_path: Path) -> None:
    def traced(devices: int, step_s: float, **shares: float) -> list[Row]:
        columns = {StepPart[name].column: share for name, share in shares.items()}
        return steps_of(devices, step_s, **columns)

    one = traced(1, 0.100, COMPUTE=0.7, LAUNCHES=0.3)
    four = traced(4, 0.200, COMPUTE=0.35, LAUNCHES=0.05, COMMUNICATION=0.4, RANKS=0.2)
    growth = growth_of(tmp_path, one, four)
    # 70, 10, 80 and 40 ms in place of 70, 30, 0 and 0.
    expected = {"exposed communication": 80, "waiting for other ranks": 40, "launch overhead": -20}
    assert in_ms(growth) == pytest.approx(expected, rel=0.02)
    assert growth.answer().sentence.endswith(
        ": 100 ms more, 80.0 ms in exposed communication and 40.0 ms waiting for other ranks, "
        "but 20.0 ms less in launch overhead"
    )
    rows = growth.answer().table().set_index("part")
    assert rows.loc["launch overhead", ["step_s", "ideal_s"]].tolist() == pytest.approx([0.010, 0.030], rel=0.01)
    assert rows["grown_s"].sum() == pytest.approx(0.1, rel=0.01)


def test_the_figure_of_a_step_and_the_answer_have_equal_parts(tmp_path: Path) -> None:
    one = {"data": 10.0, "forward": 20.0, "backward": 40.0, "optimizer": 10.0, "other": 20.0}
    # In each step of 100 ms one of two ranks waits 30 ms for data, and the other 10 ms for data and 20 ms longer in its
    # backward pass. So on average they wait 20 ms, and their backward pass of 40 ms lasts 50 ms.
    two = {"data": 20.0, "forward": 20.0, "backward": 50.0, "optimizer": 10.0}
    # Stalls leave 60 of the 70 ms that are not data.
    slowest = {"data_loading_share": 0.3, "stalls_share": 0.1}
    expected = {"data": 30, "stalls": 10, "forward": 6 / 7 * 20, "backward": 6 / 7 * 40, "optimizer": 6 / 7 * 10}
    runs = steps(1, factors=(1.0,), **one) + [row | slowest for row in steps(2, factors=(1.0,), **two)]
    results = make_results(tmp_path, runs)
    plot, figure = draw("step_breakdown", results)
    plt.close(plot)
    [of_one], [of_two] = (figure[figure["devices"] == devices].to_dict("records") for devices in (1, 2))
    [growth] = growths(results.configurations()).values()
    of_answer = growth.answer().table().set_index("part").rename(index={"data loading": "data"})
    for part, milliseconds in expected.items():
        assert 1000 * of_two[f"{part}_s"] == pytest.approx(milliseconds)
        assert 1000 * of_answer.loc[part, "step_s"] == pytest.approx(milliseconds)
    for part, milliseconds in one.items():
        assert 1000 * of_one[f"{part}_s"] == pytest.approx(milliseconds)
        assert 1000 * of_answer.loc[part, "ideal_s"] == pytest.approx(milliseconds)


def test_what_only_one_of_two_steps_shows_in_a_trace_is_not_divided(tmp_path: Path) -> None:
    traced = steps_of(2, 0.160, **{StepPart.COMPUTE.column: 0.6, StepPart.LAUNCHES.column: 0.4})
    growth = growth_of(tmp_path, steps(1, **ONE), traced)
    assert growth.parts == {}
    assert growth.seconds is None
    assert growth.answer().sentence.startswith("on 2 GPUs a step takes 2.00× as long as on one (95% CI ")


def test_the_answer_follows_the_speed_up_where_the_step_is_shown_to_have_grown(tmp_path: Path) -> None:
    grown = steps(2, **ONE | {"backward": 100.0})
    results = make_results(tmp_path / "grown", steps(1, **ONE) + grown)
    [job] = advise(results).jobs
    questions = [answer.question for answer in job.first_screen]
    assert questions.index(GREW) == 1
    assert "- What grew: on 2 GPUs a step takes 1.750× as long as on one (95% CI" in recommendations(results)
    scattered = (1.0, 1.6, 0.6)
    for name, rows in (
        ("ideal", steps(1, **ONE) + steps(2, **ONE)),
        ("undecided", steps(1, factors=scattered, **ONE) + steps(2, factors=scattered[::-1], **ONE | {"other": 16.0})),
    ):
        assert "What grew" not in recommendations(make_results(tmp_path / name, rows))
    once = steps(1, factors=(1.0,), **ONE) + steps(2, factors=(1.0,), **ONE | {"backward": 100.0})
    assert "takes 1.75× as long as on one (n=1): 60.0 ms more in the backward pass" in recommendations(
        make_results(tmp_path / "once", once)
    )


def test_a_growth_of_scattered_repeats_is_no_number_with_an_interval_from_nothing_to_a_thousand(tmp_path: Path) -> None:
    growth = growth_of(tmp_path, steps(1, factors=(0.5, 2.0), **ONE), steps(2, factors=(0.6, 2.1), **ONE))
    sentence = growth.words_of_doubt + growth.answer().sentence
    assert "step times on 2 GPUs and on one are too scattered to tell" in sentence and "CI" not in sentence
