"""The table of configurations: means over repeats, each configuration once, in all scenarios."""

import math
from pathlib import Path

import pytest
from made import PLANS, results

from factories import make_results, vision_runs
from multicard.report.configurations import configurations, configurations_table
from multicard.report.results import read_contents


def test_a_configuration_has_the_means_of_its_repeats_with_intervals(tmp_path: Path) -> None:
    rows = vision_runs(100.0, (1.0, 1.21), forward_s=0.2) + vision_runs(220.0, (1.0, 1.21), devices=2, forward_s=0.1)
    table = configurations(make_results(tmp_path, rows))
    assert list(table["devices"]) == [1, 2]
    # The geometric mean of 100 and 121 is 110, the speed-up 2.2 in both pairs of repeats.
    assert list(table["throughput_samples_per_s"]) == pytest.approx([110.0, 242.0])
    assert (table["throughput_samples_per_s_low"] < table["throughput_samples_per_s"]).all()
    assert table["speedup"][1] == pytest.approx(2.2)
    # Arithmetic means of 0.2 and 0.242 s, and of half of these, so that phases add up to a step.
    assert list(table["forward_s"]) == pytest.approx([0.221, 0.1105])


def test_configurations_of_all_scenarios_are_in_one_table_with_those_that_were_lost(tmp_path: Path) -> None:
    table = configurations_table(read_contents(results(tmp_path / "results"), PLANS))
    names = [row[:2] for row in table.rows]
    # No run of the third scenario could run, so that nothing of it was measured.
    assert [scenario for _, scenario in names] == ["processes", "processes", "techniques", "techniques"]
    assert table.choices == ("Scenario", "Devices", "Repeats", "Outcome")
    times = [row[table.headings.index("Iteration time (s)")] for row in table.rows]
    assert times[0].startswith(f"{math.sqrt(0.100 * 0.120):.4f} [")  # two repeats
    assert times[1:] == ["0.08", "1.5", "10.25"]  # one repeat each
