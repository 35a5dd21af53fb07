"""Repeats in a configuration: a fixed number, or added until all is decided, and how far that is in the results."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.config.added_repeats import (
    AddedRepeats,
    open_scenarios,
    read_added,
    with_added_repeats,
    write_added,
)
from multicard.config.experiment import Experiment
from multicard.config.load import check
from multicard.config.plan import Plan
from multicard.config.repeats import Repeats
from multicard.config.runs import expand
from multicard.core.errors import UserError

SCENARIO = {"question": "?", "vary": {"precision": ["fp32", "fp64"]}, "figures": ["step_times"]}


def experiment(repeats: Any = None, results: Path = Path("results"), **shared: Any) -> Experiment:
    stated = {} if repeats is None else {"repeats": repeats}
    config = {"fixed": {"device": "cpu"}, "scenarios": {"a": SCENARIO | stated}, "results": str(results), **shared}
    return check(config, "mine.yaml", outside=False)


def test_a_number_of_repeats_is_fixed_and_until_states_the_least_and_the_most() -> None:
    assert experiment().scenarios["a"].repeats == experiment(1).scenarios["a"].repeats
    fixed = experiment(4).scenarios["a"].repeats
    assert (fixed.least, fixed.most, fixed.until, fixed.looks) == (4, 4, None, 1)
    open_ended = experiment({"until": "2.5%", "least": 4, "most": 8}).scenarios["a"].repeats
    # A look after each of the repeats 2 to 8.
    assert (open_ended.least, open_ended.most, open_ended.until, open_ended.looks) == (4, 8, 0.025, 7)


def test_the_repeats_of_all_scenarios_hold_where_a_scenario_states_none() -> None:
    assert experiment(repeats={"until": "5%"}).scenarios["a"].repeats.until == 0.05
    shared = {"scenarios": {"a": SCENARIO, "b": SCENARIO | {"repeats": 2}}, "repeats": {"until": "5%", "most": 6}}
    scenarios = check({"fixed": {"device": "cpu"}} | shared, "mine.yaml", outside=False).scenarios
    assert [scenario.repeats.most for scenario in scenarios.values()] == [6, 2]


def test_a_configuration_is_written_as_it_was_stated() -> None:
    for stated in (3, {"until": "2.5%", "least": 4, "most": 8}):
        assert experiment(stated).scenarios["a"].model_dump()["repeats"] == stated


@pytest.mark.parametrize(
    ("repeats", "line"),
    [
        (0, "repeats: found 0, expected 1 or more"),
        (1001, "repeats: found 1001, expected 1000 or less"),
        ("5%", "repeats: found '5%', expected a whole number, or a mapping with until"),
        (True, "repeats: found True, expected a whole number, or a mapping with until"),
        (2.5, "repeats: found 2.5, expected a whole number, or a mapping with until"),
        ({"most": 5}, "repeats.until: missing"),
        ({"until": 5}, "repeats.until: found 5, expected a percentage above 0% and below 100% such as 5%"),
        ({"until": "0%"}, "repeats.until: found '0%', expected a percentage above 0% and below 100% such as 5%"),
        ({"until": "5%", "least": 1}, "repeats.least: found 1, expected 2 or more"),
        ({"until": "5%", "most": 101}, "repeats.most: found 101, expected 100 or less"),
        ({"until": "5%", "most": 2}, "repeats: least: found 3, expected no more than most: 2"),
        ({"untl": "5%"}, "repeats.untl: unknown key (did you mean 'until'?)"),
    ],
)
def test_invalid_repeats_get_one_line_with_their_key(repeats: Any, line: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment(repeats)
    assert str(refused.value) == f"mine.yaml: scenarios.a.{line}"


def test_invalid_repeats_of_all_scenarios_get_one_line() -> None:
    with pytest.raises(UserError) as refused:
        config = {"scenarios": {"a": SCENARIO, "b": SCENARIO}, "repeats": {"until": "5"}}
        check(config, "mine.yaml", outside=False)
    assert str(refused.value).startswith("mine.yaml: repeats.until: found '5', expected a percentage")
    assert len(str(refused.value).splitlines()) == 1


def test_the_least_repeats_are_planned_and_further_runs_are_those_up_to_the_most(tmp_path: Path) -> None:
    stated = experiment({"until": "5%", "least": 2, "most": 5}, tmp_path)
    plan = Plan.make(stated)
    assert {run.parameters.repeat for run in plan.runs.values()} == {1, 2}
    # Two configurations, three repeats each.
    assert sorted(run.parameters.repeat for run in plan.further_runs()) == [3, 3, 4, 4, 5, 5]
    assert Plan.make(experiment(3, tmp_path)).further_runs() == []


def test_added_repeats_are_planned_by_every_later_start(tmp_path: Path) -> None:
    stated = experiment({"until": "5%", "least": 2, "most": 5}, tmp_path)
    assert open_scenarios(stated) == ["a"] and with_added_repeats(stated) == stated
    write_added(tmp_path, {"a": AddedRepeats(repeats=4)})
    added = with_added_repeats(stated)
    assert {run.parameters.repeat for run in expand(added)["a"]} == {1, 2, 3, 4}
    assert open_scenarios(added) == ["a"]
    # The number of looks, and so the width of intervals, is the same.
    assert added.scenarios["a"].repeats.looks == stated.scenarios["a"].repeats.looks
    write_added(tmp_path, {"a": AddedRepeats(repeats=9)})
    most = with_added_repeats(stated)
    assert most.scenarios["a"].repeats.least == 5 and open_scenarios(most) == []
    # A fixed number stays.
    assert with_added_repeats(experiment(3, tmp_path)) == experiment(3, tmp_path)


def test_a_decided_scenario_is_open_again_where_a_narrower_interval_is_asked_for(tmp_path: Path) -> None:
    write_added(tmp_path, {"a": AddedRepeats(repeats=3, decided=0.05)})
    for until, names in (("5%", []), ("8%", []), ("2%", ["a"])):
        assert open_scenarios(experiment({"until": until}, tmp_path)) == names


def test_how_far_other_scenarios_are_is_kept(tmp_path: Path) -> None:
    write_added(tmp_path, {"a": AddedRepeats(repeats=4), "b": AddedRepeats(repeats=3)})
    write_added(tmp_path, {"a": AddedRepeats(repeats=5)})
    assert {name: entry.repeats for name, entry in read_added(tmp_path).items()} == {"a": 5, "b": 3}


def test_a_damaged_file_of_added_repeats_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "repeats.json").write_text(json.dumps({"a": {"repeats": "many"}}))
    with pytest.raises(UserError, match=r"repeats\.json: repeats: found 'many', expected a whole number; delete it"):
        read_added(tmp_path)


def test_repeats_are_compared_by_value() -> None:
    assert Repeats.model_validate(3) == Repeats.model_validate(3) != Repeats.model_validate({"until": "5%"})
