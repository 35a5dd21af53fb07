"""The order of what to try next, and what a measured cost of a part changes in it."""

from pathlib import Path

import pytest

from factories import make_results, repeats_of
from multicard.answers.ablation import PartCost
from multicard.answers.bottlenecks.bottlenecks import Bottleneck, BottleneckReport
from multicard.answers.choice.advice import BottleneckAdvice
from multicard.answers.choice.candidates import Candidate, Kind, candidates, in_order
from multicard.answers.choice.next_steps import part_of
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.results.configuration import Configuration
from multicard.stats.interval import Interval


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    """A script on two processes."""
    row = {"workload": "script", "command": ["train.py"], "device": "cpu", "devices": 2}
    rows = repeats_of(row | {"iteration_time_s": 0.1, "throughput_samples_per_s": 320.0}, (1.0,))
    [configuration] = make_results(tmp_path, rows, gpu=None).configurations()
    return configuration


def told(configuration: Configuration, shares: dict[str, float], *causes: Diagnosis) -> list[Candidate]:
    """What to try for bottlenecks with these shares, and for these causes."""
    bottlenecks = [Bottleneck(name, share, "") for name, share in shares.items()]
    parts = [part_of(bottleneck, configuration, [configuration]) for bottleneck in bottlenecks]
    return candidates(BottleneckReport(configuration, bottlenecks, {}, "step"), parts, causes)


def first_words(found: list[Candidate]) -> list[str]:
    return [candidate.sentence.split(",")[0].split(";")[0] for candidate in found]


WORKERS, AUTOCAST = "more loader workers (`num_workers`)", "`torch.compile`"


def test_what_gains_most_comes_first_and_a_cause_before_a_part_of_which_it_may_be_half(
    configuration: Configuration,
) -> None:
    half, tenth = Diagnosis("", "half", 0.3), Diagnosis("", "tenth", 0.1)
    found = told(configuration, {"data loading": 0.5, "exposed communication": 0.4}, half, tenth)
    assert first_words(found)[:2] == ["half", WORKERS]
    assert [candidate.share for candidate in found] == pytest.approx([0.3, 0.5, 0.4, 0.1])


@pytest.mark.parametrize(
    ("shares", "causes", "kinds"),
    [
        ({"compute": 0.95}, [], [Kind.GENERAL]),
        ({"compute": 0.6, "data loading": 0.4}, [], [Kind.PART]),
        ({"compute": 0.94, "data loading": 0.06}, [], [Kind.PART, Kind.GENERAL]),
        ({"compute": 0.9}, [Diagnosis("", "save less", 0.09)], [Kind.CAUSE, Kind.GENERAL]),
        ({"compute": 0.9}, [Diagnosis("", "save less", 0.2)], [Kind.CAUSE]),
        ({"compute": 0.9}, [Diagnosis("", "fewer threads", None)], [Kind.CAUSE]),
        ({"memory": 1.0, "compute": 0.9}, [], [Kind.PART, Kind.GENERAL]),
        ({"stalls": 0.4, "compute": 0.6}, [], [Kind.GENERAL, Kind.GENERAL]),
    ],
    ids=[
        "nothing",
        "loading",
        "little loading",
        "a small cause",
        "a large cause",
        "of unknown gain",
        "memory",
        "stalls",
    ],
)
def test_options_that_fit_any_program_come_last_and_only_where_nothing_large_is_found(
    shares: dict[str, float], causes: list[Diagnosis], kinds: list[Kind], configuration: Configuration
) -> None:
    assert [candidate.kind for candidate in told(configuration, shares, *causes)] == kinds


def test_causes_of_unknown_gain_come_after_those_of_known_gain_and_fewer_devices_before_all() -> None:
    unknown, known = Candidate("threads", Kind.CAUSE), Candidate("workers", Kind.PART, 0.06)
    assert in_order([Candidate("bf16", Kind.GENERAL), unknown, known]) == [known, unknown]


def test_each_candidate_says_why_and_how_much(configuration: Configuration) -> None:
    # Without half of its time a step takes half as long.
    [found] = told(configuration, {"data loading": 0.5})
    assert found.sentence.endswith(", since 50% of the step is data loading; up to 2.00× as fast if it took no time")


SHOWN = Interval(2.0, 1.8, 2.2, 3, p_value=0.001)
LITTLE = Interval(1.015, 1.005, 1.025, 3, p_value=0.02)  # shown, and a gain of 2% is not excluded
EXCLUDED = Interval(1.0, 0.99, 1.01, 3, p_value=0.9)
WIDE = Interval(1.0, 0.3, 3.0, 2, p_value=0.9)
ONCE, ONCE_SLOWER = Interval(1.4, None, None, 1), Interval(0.98, None, None, 1)


@pytest.mark.parametrize(
    ("ratio", "is_advised", "gain"),
    [
        (None, True, 1 / 0.7),
        (SHOWN, True, 2.0),
        (LITTLE, True, 1.015),
        (EXCLUDED, False, 1 / 0.7),
        (WIDE, True, 1 / 0.7),
        (ONCE, True, 1 / 0.7),
        (ONCE_SLOWER, True, 1 / 0.7),
    ],
    ids=["not measured", "shown", "shown to be little", "excluded", "wide", "one repeat", "one slower repeat"],
)
def test_only_a_measurement_that_excludes_a_gain_removes_advice(
    ratio: Interval | None, is_advised: bool, gain: float, configuration: Configuration
) -> None:
    cost = None if ratio is None else PartCost(configuration, configuration, "loader", ratio)
    part: BottleneckAdvice = part_of(Bottleneck("data loading", 0.3, ""), configuration, [configuration], cost)
    assert bool(part.options) == is_advised
    assert part.gain == pytest.approx(gain)
    assert bool(part.measured) == (ratio in (SHOWN, LITTLE))
