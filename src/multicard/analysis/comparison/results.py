"""Two sets of results compared: what changed, what is missing, and what else differs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from multicard.analysis.comparison.sessions import sessions_of, tells_machine
from multicard.analysis.comparison.sides import COLUMNS, HARDWARE, NOT_RECORDED, Side, environment_differences, name_of
from multicard.analysis.evidence import Configuration
from multicard.analysis.runs.notices import PROFILED, notices
from multicard.core.text import counted
from multicard.runs.record import RunRecord
from multicard.stats.interval import interval_columns

OTHER_HARDWARE = "measured on different hardware"


@dataclass(frozen=True)
class Comparison:
    """What changed from one set of results to a newer one."""

    tolerance: float | None  # a share; None where every difference counts
    changes: list[Change]  # of configurations that completed before, in the order of their first runs
    missing: list[str]  # configurations that only the old results have
    added: list[str]  # those that only the new ones have
    hardware: list[tuple[str, str, str]]  # what differs, and the two values
    environment: list[tuple[str, str, str]]  # the same of versions, variables, data, the name of the machine
    doubts: list[tuple[str, str, str]]  # runs whose numbers are in doubt: `a` or `b`, their id, and why
    apart: bool  # whether verdicts leave out that sessions differ
    unknown_machines: list[str]  # the sides, `a` or `b`, whose records do not identify their machines

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
    def on_other_hardware(self) -> list[Change]:
        """Changes that are not judged since the sides were measured on different hardware."""
        return [each for each in self.changes if each.reason == OTHER_HARDWARE]

    @property
    def table(self) -> pd.DataFrame:
        """One row per change.

        Columns: `configuration`, `measure`, `a`, `b`, `change` (a share, above zero if b is worse) with its 95%
        interval `low` to `high`, `repeats_a`, `repeats_b`, `verdict`, `reason`.
        """
        columns = ["configuration", "measure", "a", "b", "change", "low", "high", "repeats_a", "repeats_b", "verdict"]
        rows = [
            (
                each.configuration, each.column or each.measure, each.a, each.b,
                *interval_columns("change", each.change).values(), *each.repeats, each.verdict, each.reason,
            )
            for each in self.changes
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=[*columns, "reason"])

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False)


def compare(
    before: Side,
    after: Side,
    tolerance: float | None = None,
    measures: Sequence[str] | None = None,
    as_archived: Callable[[RunRecord], RunRecord] | None = None,
) -> Comparison:
    """Compare two sets of results. Their repeats did not run in turn, so they are not paired.

    `tolerance`: share by which a measure may be worse, from 0 to below 1; None to tell every difference.
    `measures`: some of `MEASURES`; by default those that were measured, throughput only without iteration times.
    `as_archived`: gives what an archive contains of a record; needed where one of the sides is an archive, which else
    would differ from the folder that it was made of, by names and versions in full.
    """
    sessions = sessions_of([before.records, after.records])
    changes: list[Change] = []
    pairs: list[Pair] = []
    shared = [key for key in before.configurations if key in after.configurations]
    for key in shared:
        of = before.configurations[key], after.configurations[key]
        if all(map(_is_measured, of)):
            pairs += [_pair(measure, of, sessions) for measure in measures or _known(of)]
        if _is_measured(of[0]) and (why := _failures(*of)):
            changes.append(Change(name_of(of[0]), OUTCOME, None, None, None, (0, 0), REGRESSION, why))
    changes += judge(pairs, tolerance)
    place = {name_of(before.configurations[key]): index for index, key in enumerate(shared)}
    records = [
        [side.records[run.run] for key in shared for run in side.configurations[key].runs] for side in (before, after)
    ]
    shown = [list(map(as_archived, own)) for own in records] if as_archived else records
    differences = environment_differences(*shown, by_name=as_archived is None)
    hardware = [row for row in differences if row[0] in HARDWARE and NOT_RECORDED not in row]
    if hardware and tolerance is not None:
        changes = [replace(each, verdict=CANNOT_TELL, reason=OTHER_HARDWARE) for each in changes]
    return Comparison(
        tolerance=tolerance,
        changes=sorted(changes, key=lambda each: place[each.configuration]),
        missing=[name_of(each) for key, each in before.configurations.items() if key not in shared],
        added=[name_of(each) for key, each in after.configurations.items() if key not in shared],
        hardware=hardware,
        environment=[row for row in differences if row[0] not in HARDWARE],
        doubts=[
            (name, run.run, "; ".join(why))
            for name, side in (("a", before), ("b", after))
            for key in shared
            for run in side.configurations[key].runs
            if (why := [each for each in notices(run.values) if not each.startswith(PROFILED)])  # which is not compared
        ],
        apart=tolerance is None
        and any(pair.sessions is None or set(pair.sessions[0]) != set(pair.sessions[1]) for pair in pairs),
        unknown_machines=[side for side, own in zip("ab", records, strict=True) if not all(map(tells_machine, own))],
    )


def _known(of: tuple[Configuration, Configuration]) -> list[str]:
    """The measures that a side has; not throughput beside the time of an iteration, which is the same comparison."""
    known = [name for name, each in MEASURES.items() if any(map(each.of, of))]
    return [name for name in known if name != "throughput" or "iteration_time" not in known]


def _is_measured(configuration: Configuration) -> bool:
    return any(configuration.values(column) for column in COLUMNS)


def _pair(measure: str, of: tuple[Configuration, Configuration], sessions: Sequence[dict[str, int]]) -> Pair:
    """Values of a measure on both sides, with their sessions where all are known."""
    column = MEASURES[measure].of(of[0]) or MEASURES[measure].of(of[1]) or ""
    runs = [[run for run in each.completed if run.number(column) is not None] for each in of]
    places = [[session.get(run.run) for run in own] for session, own in zip(sessions, runs, strict=True)]
    known = all(each and None not in each for each in places)
    sides = ([run.number(column) for run in own] for own in runs)
    return Pair(name_of(of[0]), measure, *sides, tuple(places) if known else None, column or None)


def _failures(before: Configuration, after: Configuration) -> str | None:
    """How runs of a configuration end now that did not before: where all completed, or where none does any more."""
    outcomes = [[run.values["outcome"] for run in each.runs] for each in (before, after)]
    ended = [[outcome for outcome in own if outcome != "completed"] for own in outcomes]
    if not ended[1] or (ended[0] and _is_measured(after)):
        return None
    kinds = ", ".join(dict.fromkeys(ended[1]))
    of = counted(len(after.runs), "run")
    return f"{kinds} in {len(ended[1])} of {of}; {len(before.completed)} completed before"
