"""A measure of each configuration over versions, and where it became worse."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from multicard.analysis.comparison.regressions import MEASURES, Judgement, failed, failures, judge, pair_of
from multicard.analysis.comparison.result_comparison import Configuration, Side
from multicard.analysis.pooling import Pool
from multicard.analysis.runs.sessions import sessions_of
from multicard.analysis.statistics import Interval


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
    values
        Over repeats; empty where none completed.
    mean
        Their geometric mean with its interval by the scatter of all points, in the unit of `column`.
    column
        The measure's; None without values.
    outcomes
        Of its runs in this version; empty where it was not run.
    since_previous, since_first
        What changed since the version before, and since the first one, of those with values; None in the first. Where
        runs do not complete any more, `since_previous` says so.
    previous, first
        These versions.
    """

    configuration: str
    parameters: Mapping[str, object]
    version: int
    values: Sequence[float]
    mean: Interval
    column: str | None
    outcomes: Sequence[str]
    since_previous: Judgement | None = None
    since_first: Judgement | None = None
    previous: int | None = None
    first: int | None = None


def history(
    versions: Sequence[Side],
    tolerance: float = 0.03,
    measure: str = "iteration_time",
    session_spread: float | None = None,
) -> list[Point]:
    """Follow a measure of each configuration over versions, given in their order.

    Each version is compared with the one before and with the first, so that a regression in steps below the tolerance
    is found as well. All comparisons are corrected together.
    """
    names = {key: one.name for side in versions for key, one in side.configurations.items()}
    lines = {
        key: _line(name, [side.configurations.get(key) for side in versions], measure) for key, name in names.items()
    }
    known = {key: [place for place, point in enumerate(line) if point.values] for key, line in lines.items()}
    steps = dict.fromkeys(
        (key, before, after)
        for key, places in known.items()
        for before, after in [*pairwise(places), *((places[0], place) for place in places[1:])]
    )
    sessions = sessions_of([side.records for side in versions])
    pairs = [
        pair_of(
            names[key],
            measure,
            [versions[each].configurations[key] for each in places],
            [sessions[each] for each in places],
        )
        for key, *places in steps
    ]
    judged = dict(zip(steps, judge(pairs, tolerance, session_spread), strict=True))
    means = _means([point for line in lines.values() for point in line])
    found = []
    for key, line in lines.items():
        for place, point in enumerate(replace(each, mean=means[id(each)]) for each in line):
            earlier = [each for each in known[key] if each < place]
            if not earlier:
                found.append(point)
                continue
            since = {"previous": earlier[-1], "first": earlier[0]}
            changes = {f"since_{name}": judged.get((key, before, place)) for name, before in since.items()}
            if point.outcomes:
                before, after = (versions[each].configurations[key] for each in (earlier[-1], place))
                if why := failures(before, after):
                    changes["since_previous"] = failed(point.configuration, why)
            found.append(replace(point, **since, **changes))
    return found


def _means(points: Sequence[Point]) -> dict[int, Interval]:
    """Means of points by their identity, by the scatter of all of the same column."""
    of_column: dict[str | None, list[Point]] = defaultdict(list)
    for each in points:
        of_column[each.column].append(each)
    pools = [(own, Pool([each.values for each in own])) for own in of_column.values()]
    return {id(each): pool.mean(index) for own, pool in pools for index, each in enumerate(own)}


def _line(name: str, versions: Sequence[Configuration | None], measure: str) -> list[Point]:
    """A configuration in each version, all by the same column."""
    columns = [MEASURES[measure].of(each) for each in versions if each]
    column = next((each for each in columns if each), None)
    return [_point(name, place, each, column) for place, each in enumerate(versions)]


def _point(name: str, version: int, configuration: Configuration | None, column: str | None) -> Point:
    values = configuration.values.get(column, []) if configuration else []
    return Point(
        configuration=name,
        parameters=configuration.parameters if configuration else {},
        version=version,
        values=values,
        mean=Interval(None, None, None, len(values)),
        column=column,
        outcomes=list(configuration.outcomes.values()) if configuration else [],
    )
