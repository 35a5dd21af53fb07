"""Configurations that two sets of results share, and the values of each measure that are compared.

The sides are called `a`, the older results, and `b`, the newer ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from multicard.answers.comparison.sides import COLUMNS, Side, name_of
from multicard.answers.scaling.speedup import RATES
from multicard.results.configuration import Configuration, MeasuredRun


@dataclass(frozen=True)
class ComparedMeasure:
    """A measure that results are compared by."""

    # Columns of measures.csv that may hold the measure, each in another unit of work. `column_of` picks one.
    columns: tuple[str, ...]
    # 1 if a larger value is worse, −1 if a smaller one is.
    worse_sign: Literal[1, -1]
    # Words for a change that is worse, and for one that is better.
    worse: str
    better: str
    # False if it does not depend on when and where a program runs, such as the memory that it allocates.
    differs_between_sessions: bool = True

    def column_of(self, configuration: Configuration) -> str | None:
        """Return the column that has values of a configuration, preferably in its workload's unit; None if none has."""
        unit = configuration.program.unit
        columns_of_unit = [column for column in self.columns if column in (unit.throughput, unit.energy)]
        for column in (*columns_of_unit, *self.columns):
            if configuration.values(column):
                return column
        return None

    def change_by(self, ratio: float) -> float:
        """Return by how much the newer side is worse, as a share of the older one; below 0 if it is better.

        `ratio`: the value of the newer side over that of the older one.

        >>> round(COMPARED_MEASURES["iteration_time"].change_by(1.1), 6)
        0.1
        >>> round(COMPARED_MEASURES["throughput"].change_by(1.1), 6)
        -0.1
        """
        return self.worse_sign * (ratio - 1)


COMPARED_MEASURES: dict[str, ComparedMeasure] = {
    "iteration_time": ComparedMeasure(("iteration_time_s",), 1, "slower", "faster"),
    "throughput": ComparedMeasure(RATES, -1, "less throughput", "more throughput"),
    "speedup": ComparedMeasure(("speedup",), -1, "less speed-up", "more speed-up"),
    "memory": ComparedMeasure(("peak_memory_bytes",), 1, "more memory", "less memory", False),
    "energy": ComparedMeasure(("energy_per_sample_j", "energy_per_token_j"), 1, "more energy", "less energy"),
    "accuracy": ComparedMeasure(("test_accuracy",), -1, "lower accuracy", "higher accuracy", False),
    "loss": ComparedMeasure(("test_loss", "loss_at_end"), 1, "higher loss", "lower loss", False),
}


@dataclass(frozen=True)
class Pair:
    """The values of one measure of one configuration, over the repeats of both sides.

    `sessions`: the session of each value of `a`, and of each value of `b`. None unless the sessions of all values are
    known. `column`: the column of measures.csv that the values are from. `looks`: how often the results of a side were
    looked at while repeats were added (`stats.looks`), the more often of both.
    """

    configuration: str
    measure: str
    a: Sequence[float]
    b: Sequence[float]
    sessions: tuple[Sequence[int], Sequence[int]] | None = None
    column: str | None = None
    looks: int = 1

    @property
    def repeats(self) -> tuple[int, int]:
        """Number of values of each side."""
        return len(self.a), len(self.b)

    @property
    def has_same_sessions(self) -> bool:
        """True if both sides are known to have been measured in the same sessions."""
        return self.sessions is not None and set(self.sessions[0]) == set(self.sessions[1])

    @property
    def is_of_one_session(self) -> bool:
        """True if all values of both sides are known to be from one and the same session."""
        return self.sessions is not None and self.has_same_sessions and len(set(self.sessions[0])) == 1


class SharedConfiguration(NamedTuple):
    """A configuration that both sides have, with the runs of each."""

    before: Configuration
    after: Configuration

    @property
    def name(self) -> str:
        """Id of its runs, without the repeat."""
        return name_of(self.before)

    @property
    def known_measures(self) -> list[str]:
        """Names of the measures that at least one side has.

        Throughput is left out if there is an iteration time, because both show the same change.
        """
        names = [name for name, measure in COMPARED_MEASURES.items() if any(map(measure.column_of, self))]
        if "iteration_time" in names and "throughput" in names:
            names.remove("throughput")
        return names


def shared_configurations(before: Side, after: Side) -> list[SharedConfiguration]:
    """Return the configurations that both sides have, in the order of those of the older side."""
    return [
        SharedConfiguration(configuration, after.configurations[key])
        for key, configuration in before.configurations.items()
        if key in after.configurations
    ]


def is_measured(configuration: Configuration) -> bool:
    """Return whether a completed run of a configuration has a number in any of `COLUMNS`."""
    return any(configuration.values(column) for column in COLUMNS)


def pairs_of(
    shared: Sequence[SharedConfiguration], measures: Sequence[str] | None, sessions: Sequence[Mapping[str, int]]
) -> list[Pair]:
    """Return the values to compare, for each configuration that was measured on both sides and each measure.

    `measures`: names of `COMPARED_MEASURES`; None for the `known_measures` of each configuration. `sessions`: for each
    side a mapping from the ids of its runs to their sessions. A run whose session is not known is not in the mapping,
    but its values are compared.
    """
    pairs = []
    for configurations in shared:
        if all(map(is_measured, configurations)):
            names = measures or configurations.known_measures
            pairs += [_pair(name, configurations, sessions) for name in names]
    return pairs


def _pair(name: str, shared: SharedConfiguration, sessions: Sequence[Mapping[str, int]]) -> Pair:
    """Return the values of a measure on both sides, with their sessions if all are known.

    The values of both sides are from the same column: the one that the older side has, else the one of the newer side.
    """
    measure = COMPARED_MEASURES[name]
    column = measure.column_of(shared.before) or measure.column_of(shared.after)
    runs_before, values_before = _values(shared.before, column)
    runs_after, values_after = _values(shared.after, column)
    session_of_before, session_of_after = sessions
    sessions_before = _sessions(runs_before, session_of_before)
    sessions_after = _sessions(runs_after, session_of_after)
    return Pair(
        configuration=shared.name,
        measure=name,
        a=values_before,
        b=values_after,
        sessions=(sessions_before, sessions_after) if sessions_before and sessions_after else None,
        column=column,
        looks=max(shared.before.looks, shared.after.looks),
    )


def _values(configuration: Configuration, column: str | None) -> tuple[list[MeasuredRun], list[float]]:
    """Return the completed runs that have a number in a column, and these numbers; none if `column` is None."""
    runs, values = [], []
    for run in configuration.completed:
        value = run.number(column) if column else None
        if value is not None:
            runs.append(run)
            values.append(value)
    return runs, values


def _sessions(runs: Sequence[MeasuredRun], session_of_run: Mapping[str, int]) -> list[int]:
    """Return the session of each run; an empty list unless the sessions of all runs are known."""
    sessions = [session_of_run[run.run] for run in runs if run.run in session_of_run]
    return sessions if len(sessions) == len(runs) else []
