"""Two or more sets of results compared, the oldest first: what changed, what is missing, and what else differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pandas as pd

from multicard.analysis.comparison.changes import (
    CANNOT_TELL,
    MEASURES,
    ONE_SESSION,
    OUTCOME,
    REGRESSION,
    Change,
    Pair,
    Verdict,
    judge,
)
from multicard.analysis.comparison.sides import (
    DISTURBED_RUNS,
    HARDWARE,
    Configuration,
    Side,
    environment_differences,
    unlike_hardware,
)
from multicard.analysis.pooling import Pool
from multicard.analysis.runs.notices import PROFILED
from multicard.analysis.runs.sessions import sessions_of
from multicard.analysis.statistics import Interval
from multicard.core.text import counted


@dataclass(frozen=True)
class Comparison:
    """What changed over two or more sets of results, the oldest first.

    Attributes
    ----------
    tolerance
        As a share; None where every difference counts.
    changes
        Of configurations that completed before: in the order of their first runs, each since the version before and
        since the first.
    missing, added
        Configurations that only the last version but one has, and only the last.
    not_compared
        Configurations of the last version that completed in no version, or for the first time.
    hardware
        What differs in hardware between any two versions: what, and the two values.
    environment
        What else differs between the last two: versions, variables, data, the name of the machine.
    doubts
        Runs of the last two versions whose numbers are in doubt: `a` or `b`, their id, and why.
    apart
        Whether verdicts leave out that sessions differ.
    """

    tolerance: float | None
    changes: list[Change]
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    not_compared: dict[str, str] = field(default_factory=dict)
    hardware: list[tuple[str, str, str]] = field(default_factory=list)
    environment: list[tuple[str, str, str]] = field(default_factory=list)
    doubts: list[tuple[str, str, str]] = field(default_factory=list)
    apart: bool = False

    def of(self, verdict: Verdict) -> list[Change]:
        """The changes with a verdict."""
        return [each for each in self.changes if each.verdict == verdict]

    @property
    def undecidable(self) -> list[str]:
        """Measures of which nothing can be told: there is no interval of any configuration."""
        told = {each.measure: False for each in self.changes}
        for each in self.changes:
            told[each.measure] |= each.verdict != CANNOT_TELL or each.reason == ONE_SESSION
        return [measure for measure, is_told in told.items() if not is_told]

    @property
    def in_one_session(self) -> list[Change]:
        """Changes that only repeats in further sessions could decide."""
        return [each for each in self.changes if each.reason == ONE_SESSION]

    @property
    def table(self) -> pd.DataFrame:
        """One row per change.

        Columns: `configuration`, `measure`, `a`, `b`, `change` (a share, above zero if b is worse) with its 95%
        interval `low` to `high`, `repeats_a`, `repeats_b`, `verdict`, `reason`.
        """
        columns = ["configuration", "measure", "a", "b", "change", "low", "high", "repeats_a", "repeats_b", "verdict"]
        rows = [
            (
                each.configuration, each.column or each.measure, each.a, each.b, each.change.value, each.change.low,
                each.change.high, *each.repeats, each.verdict, each.reason,
            )
            for each in self.changes
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=[*columns, "reason"])

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False)


def compare(
    versions: Sequence[Side],
    tolerance: float | None = None,
    measures: Sequence[str] | None = None,
    session_spread: float | None = None,
) -> Comparison:
    """Compare sets of results, the oldest first: each with the one before it and with the first that has numbers.

    So a loss in steps below the tolerance is found as well. Repeats of two sets did not run in turn, so they are not
    paired.

    Parameters
    ----------
    versions
        Two or more.
    tolerance
        Share by which a measure may be worse, from 0 to below 1; None to tell every difference.
    measures
        Some of `MEASURES`; by default those that were measured.
    session_spread
        By how much sessions (days, nodes) differ, as a standard deviation of the logarithm; None for what the runs
        tell. Without a tolerance sessions are left out of account.
    """
    names = {key: one.name for side in versions for key, one in side.configurations.items()}
    sessions = sessions_of([side.records for side in versions])
    changes: list[Change] = []
    pairs: list[Pair] = []
    for key, name in names.items():
        known = [place for place, side in enumerate(versions) if _values(side, key)]
        steps = dict.fromkeys([*pairwise(known), *((known[0], place) for place in known[1:])])
        for at in steps:
            of = [versions[place].configurations[key] for place in at]
            places = [sessions[place] for place in at]
            pairs += [
                pair_of(name, measure, of, places, at)
                for measure in measures or [each for each in MEASURES if any(MEASURES[each].of(one) for one in of)]
            ]
        for place, side in enumerate(versions):
            earlier = [each for each in known if each < place]
            if earlier and key in side.configurations:
                before = versions[earlier[-1]].configurations[key]
                if why := failures(before, side.configurations[key]):
                    changes.append(failed(name, why, (earlier[-1], place)))
    own_session = tolerance is None and session_spread is None
    changes += judge(pairs, tolerance, 0.0 if own_session else session_spread)
    place = {name: index for index, name in enumerate(dict.fromkeys(names.values()))}
    before, last = versions[-2], versions[-1]
    shared = [key for key in before.configurations if key in last.configurations]
    return Comparison(
        tolerance=tolerance,
        changes=sorted(changes, key=lambda each: (place[each.configuration], each.versions[1], -each.versions[0])),
        missing=[one.name for key, one in before.configurations.items() if key not in last.configurations],
        added=[one.name for key, one in last.configurations.items() if key not in before.configurations],
        not_compared={
            one.name: "completed for the first time" if one.values else "completed in neither"
            for key, one in last.configurations.items()
            if any(key in side.configurations for side in versions[:-1])
            and not any(_values(side, key) for side in versions[:-1])
        },
        hardware=list(dict.fromkeys(row for two in combinations(versions, 2) for row in unlike_hardware(*two))),
        environment=[
            row
            for row in environment_differences(before.records_of(shared), last.records_of(shared))
            if row[0] not in HARDWARE and row[0] != DISTURBED_RUNS  # see doubts
        ],
        doubts=list(_doubts(before, last, shared)),
        apart=own_session
        and any(pair.sessions is None or set(pair.sessions[0]) != set(pair.sessions[1]) for pair in pairs),
    )


def _values(side: Side, key: str) -> dict[str, dict[str, float]]:
    return side.configurations[key].values if key in side.configurations else {}


def _doubts(before: Side, last: Side, shared: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for side, configurations in (("a", before.configurations), ("b", last.configurations)):
        for key in shared:
            for run, why in configurations[key].doubts.items():
                # No measure is of the profiled window.
                if shown := [each for each in why if not each.startswith(PROFILED)]:
                    yield side, run, "; ".join(shown)


def pair_of(
    name: str,
    measure: str,
    of: Sequence[Configuration],
    sessions: Sequence[dict[str, int]],
    versions: tuple[int, int] = (0, 1),
) -> Pair:
    """Values of a measure in two versions, with their sessions where all are known."""
    column = MEASURES[measure].of(of[0]) or MEASURES[measure].of(of[1])
    values = [each.values.get(column, {}) for each in of]
    places = [[own.get(run) for run in each] for own, each in zip(sessions, values, strict=True)]
    known = all(each and None not in each for each in places)
    sides = (list(each.values()) for each in values)
    return Pair(name, measure, *sides, tuple(places) if known else None, versions, column)


def failures(before: Configuration, after: Configuration) -> str | None:
    """How runs of a configuration end now that did not before: where all completed, or where none does any more."""
    ended = [[outcome for outcome in each.outcomes.values() if outcome != "completed"] for each in (before, after)]
    if not ended[1] or (ended[0] and after.values):
        return None
    kinds = ", ".join(dict.fromkeys(ended[1]))
    completed = len(before.outcomes) - len(ended[0])
    return f"{kinds} in {len(ended[1])} of {counted(len(after.outcomes), 'run')}; {completed} completed before"


def failed(name: str, why: str, versions: tuple[int, int]) -> Change:
    """The regression that runs of a configuration do not complete any more."""
    nothing = Interval(None, None, None, 0)
    return Change(name, OUTCOME, None, None, nothing, (0, 0), REGRESSION, why, versions=versions)


@dataclass(frozen=True)
class Point:
    """A measure of one configuration in one version.

    Attributes
    ----------
    configuration
        Id of its runs, less the repeat.
    parameters
        Those of its runs but the repeat.
    version
        Place of the version, from 0.
    mean
        Geometric mean of its repeats with its interval by the scatter of all points; empty where none completed.
    column
        The measure's, in whose unit the mean is; None where it was measured in no version.
    outcomes
        Of its runs in this version; empty where it was not run.
    """

    configuration: str
    parameters: Mapping[str, object]
    version: int
    mean: Interval
    column: str | None
    outcomes: Sequence[str]


def over_versions(versions: Sequence[Side], measure: str) -> list[Point]:
    """A measure of each configuration in each version."""
    found: list[tuple[str, int, Configuration, str | None]] = []
    for key in dict.fromkeys(key for side in versions for key in side.configurations):
        own = [side.configurations.get(key) for side in versions]
        column = next((each for one in own if one and (each := MEASURES[measure].of(one))), None)
        nothing = Configuration(next(one.name for one in own if one), {}, {}, {}, {})
        found += [(key, place, one or nothing, column) for place, one in enumerate(own)]
    values = [list(one.values.get(column, {}).values()) for *_, one, column in found]
    pools = {
        column: ([index for index, each in enumerate(found) if each[-1] == column])
        for column in {each[-1] for each in found}
    }
    means: dict[int, Interval] = {}
    for own in pools.values():
        pool = Pool([values[index] for index in own])
        means |= {index: pool.mean(place) for place, index in enumerate(own)}
    return [
        Point(one.name, one.parameters, place, means[index], column, list(one.outcomes.values()))
        for index, (_, place, one, column) in enumerate(found)
    ]
