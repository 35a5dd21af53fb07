"""Two sets of results compared: what changed, what is missing, and what else differs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import pandas as pd

from multicard.answers.comparison.changes import (
    CANNOT_TELL,
    ONE_SESSION,
    Change,
    ChangeVerdict,
    judge,
    lost_runs,
)
from multicard.answers.comparison.environments import EnvironmentDifference, environment_differences
from multicard.answers.comparison.estimates import needed_repeats_of
from multicard.answers.comparison.pairs import SharedConfiguration, pairs_of, shared_configurations
from multicard.answers.comparison.sessions import identifies_machine, sessions_of
from multicard.answers.comparison.sides import Side, name_of
from multicard.answers.needed_repeats import NeededRepeats
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.notices import PROFILED, notices
from multicard.runs.record import RunRecord
from multicard.stats.interval import interval_columns

OTHER_HARDWARE = "measured on different hardware"

# Reports call the older results `a` and the newer ones `b`. The code calls them `before` and `after`.
SideName = Literal["a", "b"]


class Doubt(NamedTuple):
    """A run whose numbers are in doubt: its side, its name, and the reason: its notices, separated by semicolons."""

    side: SideName
    run: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """What changed from the older results, `a`, to the newer ones, `b`.

    Made by `compare`; its fields are those of `--json`.
    """

    # Share by which a measure may be worse, such as 0.05; None if every difference is reported.
    tolerance: float | None
    # Changes of configurations that both sides have, in the order of those of `a`: one for each measure of those that
    # were measured on both sides, and before these one with the measure `OUTCOME` if runs fail now (`lost_runs`).
    changes: list[Change]
    # Names of the configurations that only `a` has, and of those that only `b` has.
    missing: list[str]
    added: list[str]
    # Facts about hardware that differ, as far as both sides recorded them.
    hardware: list[EnvironmentDifference]
    # Other facts that differ: versions, variables, data, the name of the machine.
    environment: list[EnvironmentDifference]
    doubts: list[Doubt]
    # True if there is no tolerance, and `a` and `b` are not known to have run in the same sessions (hour and node).
    # Verdicts then do not take into account how much sessions differ from each other.
    apart: bool
    # Sides with a record that does not identify the machine of its run.
    unknown_machines: list[SideName]
    # How many repeats of each side would show a small change of the iteration time; None if that is not known.
    needed: NeededRepeats | None = None

    def with_verdict(self, verdict: ChangeVerdict) -> list[Change]:
        """Return the changes with a verdict."""
        return [change for change in self.changes if change.verdict == verdict]

    @property
    def undecidable(self) -> list[str]:
        """Measures for which no change was judged, nor could be judged after repeats in further sessions."""
        judged = [change for change in self.changes if change.verdict != CANNOT_TELL]
        with_interval = {change.measure for change in (*judged, *self.in_one_session)}
        measures = dict.fromkeys(change.measure for change in self.changes)
        return [measure for measure in measures if measure not in with_interval]

    @property
    def in_one_session(self) -> list[Change]:
        """Changes that are not judged because only repeats in further sessions could show how much sessions differ."""
        return [change for change in self.changes if change.reason == ONE_SESSION]

    @property
    def on_other_hardware(self) -> list[Change]:
        """Changes that are not judged because the sides were measured on different hardware."""
        return [change for change in self.changes if change.reason == OTHER_HARDWARE]

    @property
    def table(self) -> pd.DataFrame:
        """One row per change.

        Columns: `configuration`; `measure` (the column of measures.csv if there is one, else the name of the measure);
        `a`, `b`; `change` (a share, above 0 if b is worse) with its 95% interval from `low` to `high`; `repeats_a`,
        `repeats_b`; `verdict`; `reason`.
        """
        columns = [
            "configuration", "measure", "a", "b", "change", "low", "high", "repeats_a", "repeats_b",
            "verdict", "reason",
        ]  # fmt: skip
        return pd.DataFrame(map(_table_row, self.changes), columns=columns)

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False)


def compare(
    before: Side,
    after: Side,
    tolerance: float | None = None,
    measures: Sequence[str] | None = None,
    as_archived: Callable[[RunRecord], RunRecord] | None = None,
) -> Comparison:
    """Compare two sets of results.

    Parameters
    ----------
    before, after
        The older results, `a` in what is returned, and the newer ones, `b`.
    tolerance
        Share by which a measure may be worse, from 0 to below 1; None to report every difference.
    measures
        Names of `COMPARED_MEASURES`. By default those that were measured; throughput only without iteration times.
    as_archived
        Returns the part of a record that an archive keeps. It is needed if one of the sides is an archive: an archive
        lacks names and full versions, so it would seem to differ from the folder that it was made from.
    """
    shared = shared_configurations(before, after)
    pairs = pairs_of(shared, measures, sessions_of([before.records, after.records]))
    losses = [lost_runs(configurations) for configurations in shared]
    changes = [*filter(None, losses), *judge(pairs, tolerance)]
    records_before = [before.records[run.run] for configurations in shared for run in configurations.before.runs]
    records_after = [after.records[run.run] for configurations in shared for run in configurations.after.runs]
    differences = _differences(records_before, records_after, as_archived)
    # A fact that one side did not record may be equal on both, so it does not count as other hardware.
    hardware = [difference for difference in differences if difference.is_of_hardware and difference.is_recorded]
    if hardware and tolerance is not None:
        changes = [replace(change, verdict=CANNOT_TELL, reason=OTHER_HARDWARE) for change in changes]
    return Comparison(
        tolerance=tolerance,
        changes=_in_order(changes, shared),
        missing=_names_only_in(before, after),
        added=_names_only_in(after, before),
        hardware=hardware,
        environment=[difference for difference in differences if not difference.is_of_hardware],
        doubts=[
            *_doubts("a", [configurations.before for configurations in shared]),
            *_doubts("b", [configurations.after for configurations in shared]),
        ],
        apart=tolerance is None and not all(pair.has_same_sessions for pair in pairs),
        unknown_machines=_unknown_machines(records_before, records_after),
        needed=needed_repeats_of(pairs),
    )


def _table_row(change: Change) -> tuple[object, ...]:
    return (
        change.configuration,
        change.column or change.measure,
        change.a,
        change.b,
        *interval_columns("change", change.change).values(),
        *change.repeats,
        change.verdict,
        change.reason,
    )


def _in_order(changes: Sequence[Change], shared: Sequence[SharedConfiguration]) -> list[Change]:
    """Return changes in the order of their configurations in `shared`."""
    position = {configurations.name: index for index, configurations in enumerate(shared)}
    return sorted(changes, key=lambda change: position[change.configuration])


def _names_only_in(side: Side, other: Side) -> list[str]:
    """Return the names of the configurations that only `side` has."""
    only = side.configurations.keys() - other.configurations.keys()
    return [name_of(configuration) for key, configuration in side.configurations.items() if key in only]


def _differences(
    before: Sequence[RunRecord],
    after: Sequence[RunRecord],
    as_archived: Callable[[RunRecord], RunRecord] | None,
) -> list[EnvironmentDifference]:
    """Return how the environments of the runs of both sides differ.

    With `as_archived`, only what an archive keeps of a record is compared, and machines are not compared by name.
    """
    if as_archived is None:
        return environment_differences(before, after)
    return environment_differences(list(map(as_archived, before)), list(map(as_archived, after)), by_name=False)


def _doubts(side: SideName, configurations: Sequence[Configuration]) -> list[Doubt]:
    """Return the runs of a side whose numbers are in doubt."""
    runs = [run for configuration in configurations for run in configuration.runs]
    doubts = [Doubt(side, run.run, _why_doubted(run)) for run in runs]
    return [doubt for doubt in doubts if doubt.why]


def _why_doubted(run: MeasuredRun) -> str:
    """Return why the numbers of a run are in doubt: its notices, separated by semicolons; empty if it has none.

    Notices about the profiled window are left out, because no number of that window is compared.
    """
    return "; ".join(notice for notice in notices(run.values) if not notice.startswith(PROFILED))


def _unknown_machines(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> list[SideName]:
    """Return the sides with a record that does not identify the machine of its run."""
    sides: list[tuple[SideName, Sequence[RunRecord]]] = [("a", before), ("b", after)]
    return [side for side, records in sides if not all(map(identifies_machine, records))]
