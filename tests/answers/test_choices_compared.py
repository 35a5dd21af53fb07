"""What recommendations compare, and how sure that is: groups of runs, choices among many, results beyond belief."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy.stats import studentized_range
from scipy.stats import t as student

from factories import make_results, make_run, recommendations, strong_scaling_runs, with_provenance
from multicard.answers.choice.answers import speedups
from multicard.answers.choice.applied import Request, proposed_choice
from multicard.answers.choice.choices import choices
from multicard.answers.choice.recommend import advise
from multicard.answers.scaling.headline import headline
from multicard.results.configuration import Block, MeasuredRun
from multicard.results.provenance import as_cells, from_cells, provenance_of
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.selection import dunnett_critical_value


def in_groups(evidence: Results, group_of: Callable[[MeasuredRun], tuple[str, ...]]) -> Results:
    return with_provenance(evidence, group=group_of)


def test_configurations_of_two_groups_are_not_paired_by_the_number_of_their_repeat(tmp_path: Path) -> None:
    # Each group has blocks of its own, which happen to differ alike; the layouts are 2% apart in each repeat.
    blocks = (0.96, 1.0, 1.04)
    rows = strong_scaling_runs(2, 100, blocks) + strong_scaling_runs(2, 100.3, (0.961, 1.0, 1.039), num_workers=1)
    rows += strong_scaling_runs(2, 102, blocks, layout="nhwc") + strong_scaling_runs(
        2, 102.2, (0.959, 1.0, 1.041), layout="nhwc", num_workers=1
    )
    evidence = make_results(tmp_path, rows)

    def worse(evidence: Results) -> set[tuple[str, bool]]:
        [job] = choices(evidence)
        return {(row.configuration["layout"], row.is_worse) for row in job.rows}

    together = in_groups(evidence, lambda run: ("scaling", "layouts"))
    apart = in_groups(evidence, lambda run: ("layouts",) if run.values["layout"] == "nhwc" else ("scaling",))
    assert ("nchw", True) in worse(together)
    assert worse(apart) == {("nchw", False), ("nhwc", False)}
    assert together.runs[0].block == Block(("scaling", "layouts"), 1)
    record = make_run(order={"seed": 0, "group": ["a", "b"], "block": 1, "position": 1})
    assert from_cells(as_cells(provenance_of(record))).group == ("a", "b")


def test_a_speed_up_says_among_how_many_it_is_the_best(tmp_path: Path) -> None:
    few = strong_scaling_runs(1, 100) + strong_scaling_runs(2, 190)
    many = few + [row for workers in range(1, 8) for row in strong_scaling_runs(2, 189, num_workers=workers)]
    many += [row for workers in range(1, 8) for row in strong_scaling_runs(1, 100, num_workers=workers)]
    alone, chosen = (choices(make_results(tmp_path / str(len(rows)), rows))[0] for rows in (few, many))
    assert "best of" not in recommendations(make_results(tmp_path / "few", few))
    assert "2 GPUs: 1.90× as fast as 1 GPU (95% CI " in recommendations(make_results(tmp_path / "many", many))
    assert "the best of 8" in recommendations(make_results(tmp_path / "again", many))
    for job, count in ((alone, 1), (chosen, 8)):
        [(row, ratio)] = speedups(job)
        widths = [math.log(each.high / each.low) for each in (row.speedup, ratio)]
        by_dunnett = dunnett_critical_value(count, ratio.freedom) / dunnett_critical_value(1, ratio.freedom)
        assert widths[1] / widths[0] == pytest.approx(by_dunnett, rel=1e-4) and (count == 1) == (row.speedup == ratio)


def test_a_speed_up_beyond_ideal_or_of_almost_nothing_is_doubted_where_it_is_told(tmp_path: Path) -> None:
    for name, rate, doubt in (
        ("above", 500, "125% efficient: more than ideal"),
        ("below", 4, "1.0% efficient: almost nothing of ideal; check that both sides do the same work"),
    ):
        rows = strong_scaling_runs(1, 100) + strong_scaling_runs(2, 190) + strong_scaling_runs(4, rate)
        evidence = make_results(tmp_path / name, rows)
        [many] = [line for line in recommendations(evidence).splitlines() if line.startswith("- How many devices")]
        assert doubt in many
        own = [row for row in rows if row["devices"] != 2]
        assert doubt in headline(make_results(tmp_path / f"{name} alone", own)).sentence
        job = advise(make_results(tmp_path / f"{name} tile", own)).jobs[0]
        assert any(doubt in tile.notes for tile in job.tiles)
    row, reason = proposed_choice(
        choices(make_results(tmp_path / "applied", strong_scaling_runs(1, 100) + strong_scaling_runs(4, 500)))[0],
        Request(1e6, "samples"),
    )
    assert row.devices == 4 and "It is 125% efficient: more than ideal." in reason


def test_a_gain_of_a_change_is_tested_among_all_that_it_was_chosen_from(tmp_path: Path) -> None:
    # Eight configurations in bf16 and eight in fp32, the best of each compared. Between two of sixteen a gain needs
    # about 1.4 times as much as between two alone.
    rows = []
    for number in range(16):
        of_block = (0.99, 1.0, 1.01)[number % 3 :] + (0.99, 1.0, 1.01)[: number % 3]
        precision = {"precision": "bf16" if number % 2 else "fp32"}
        rows += strong_scaling_runs(2, 103.0 if number == 1 else 100.0, of_block, num_workers=number // 2, **precision)
    [job] = choices(make_results(tmp_path, rows))
    [gain] = [row.gain.ratio for row in job.rows if row.gain is not None]
    statistic = -student.ppf(two_sided(gain) / 2, gain.freedom)
    expected = studentized_range.sf(math.sqrt(2) * statistic, 16, gain.freedom)
    assert gain.p_value == pytest.approx(expected, rel=0.02) and gain.p_value > 4 * two_sided(gain)


def two_sided(ratio: Interval) -> float:
    """The p-value of a t test, by the interval of the ratio."""
    reach = math.log(ratio.high / ratio.low) / 2
    error = reach / student.ppf(0.975, ratio.freedom)
    return 2 * student.sf(abs(math.log(ratio.value)) / error, ratio.freedom)
