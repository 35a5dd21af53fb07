"""The measures that only runs of scripts have."""

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

from multicard.core.values import Row
from multicard.programs.program import OwnMeasures
from multicard.programs.script.parameters import ScriptParameters
from multicard.runs.measures import PER_S, SECONDS, SHARE, Definition, Measures
from multicard.runs.record import RankRecord, RunRecord

if TYPE_CHECKING:
    import pandas as pd

MEASURES: dict[str, Definition] = {
    "steps_per_s": Definition(
        "1 / `iteration_time_s`: the throughput in steps, the only one if the number of samples is unknown.", PER_S
    ),
    "distinct_share": Definition(
        "Share of a step's samples that are distinct: less than 1 if the loaders of several ranks draw the same ones; "
        "empty if unknown.",
        SHARE,
    ),
    "tokens_per_s": Definition(
        "Distinct tokens of the measured window, without those that a mask leaves out, / `elapsed_s`; empty if "
        "[batches do not show them](own-training.md#what-is-seen), or if `samples_per_step` is given and ranks may "
        "repeat one another.",
        PER_S,
    ),
    "measured_passes": Definition("Passes over the data that the measured window spans."),
    "steps_per_pass": Definition("Steps of one pass over the data; empty if the loader's length is unknown."),
    "between_passes_s": Definition(
        "Mean time between two passes in the measured window, which is in no step; empty if it lies in one pass.",
        SECONDS,
    ),
    "steps_by": Definition("What ends the steps: `optimizer`, `marks`, or `backward passes` if no optimizer updates."),
    "steps_from": Definition(
        "How steps were detected in a run [made of traces](traces.md#existing-traces); empty if none were."
    ),
    "traced_devices": Definition("GPUs that these traces show at work, of all `devices`."),
}

# Ranks read the same samples if so many of their batches are the same.
FEWEST_BATCHES = 3


def _measure(record: RunRecord, common: Measures, steps: "pd.DataFrame", epochs: "pd.DataFrame") -> Row:
    """Return the measures of one completed run. Without steps, which only traces may lack, most are not known."""
    adopted = record.adopted
    of_traces: Row = {}
    if adopted is not None:
        of_traces = {"steps_from": adopted.steps_from, "traced_devices": adopted.traced_devices}
    measured = steps[steps["window"] == "measured"]
    if common.elapsed_s is None or common.iteration_time_s is None:
        return of_traces
    return {
        "steps_per_s": 1 / common.iteration_time_s,
        "distinct_share": distinct_share(record),
        "tokens_per_s": _tokens_per_s(record, common.elapsed_s, measured),
        "measured_passes": measured["epoch"].nunique(),
        "steps_per_pass": record.steps_per_pass,
        "between_passes_s": between_passes_s(measured),
        "steps_by": _steps_by(record.ranks),
        **of_traces,
    }


def _steps_by(ranks: Sequence[RankRecord]) -> str | None:
    """Return what ends the steps, as the first rank that reports it does; None if no rank does."""
    reports = (rank.observed.steps_by for rank in ranks if rank.observed)
    return next(filter(None, reports), None)


def between_passes_s(measured: "pd.DataFrame") -> float | None:
    """Return the mean seconds from the end of a pass over the data to the start of the next; None in a single pass.

    The mean is over all ranks and all pairs of successive passes in the measured window.
    """
    ends = measured.assign(end_s=measured["start_s"] + measured["duration_s"]).groupby(["rank", "epoch"])
    passes = ends.agg({"start_s": "min", "end_s": "max"})
    between = passes["start_s"] - passes.groupby("rank")["end_s"].shift()
    return None if between.isna().all() else float(between.mean())


def distinct_share(record: RunRecord) -> float | None:
    """Return distinct samples of a step divided by all its samples; None if unknown.

    It is 1 if the user states the samples of a step, because a stated number means distinct samples. A table of traces
    states them, too.
    """
    if record.adopted is not None:
        return 1.0
    assert isinstance(record.parameters, ScriptParameters)
    return _drawn_share(record.ranks) if record.parameters.stated_samples is None else 1.0


def _drawn_share(ranks: Sequence[RankRecord]) -> float | None:
    """Return distinct samples divided by all samples, as the loaders of the ranks report them.

    A loader reports True if each rank draws samples of its own, False if all ranks draw the same samples, or the number
    of ranks that draw distinct ones. With 4 ranks, True gives 1, False gives 1/4, and the number 2 gives 2/4. The share
    of a single rank is 1, because it repeats no samples.

    If a loader does not know, or if loaders differ, the batches may show that all ranks read the same ones, which gives
    1/4. Otherwise the result is None, and so it is if a rank has no loader.
    """
    if len(ranks) == 1:
        return 1.0
    loaders_of_ranks = [rank.observed.loaders if rank.observed else () for rank in ranks]
    if not all(loaders_of_ranks):
        return None
    reports = {loader.distinct for loaders in loaders_of_ranks for loader in loaders}
    distinct = reports.pop() if len(reports) == 1 else None
    if distinct is None:
        return 1 / len(ranks) if _read_the_same(ranks) else None
    return 1.0 if distinct is True else max(1, distinct) / len(ranks)


def _read_the_same(ranks: Sequence[RankRecord]) -> bool:
    """Return True if the first batches of all ranks are the same, and differ from each other.

    Constant data, such as zeros, are the same in all steps and show nothing.
    """
    of_ranks = {rank.observed.first_batches if rank.observed else () for rank in ranks}
    if len(of_ranks) != 1:
        return False
    batches = of_ranks.pop()
    return len(batches) >= FEWEST_BATCHES and len(set(batches)) == len(batches)


def _tokens_per_s(record: RunRecord, elapsed_s: float, measured: "pd.DataFrame") -> float | None:
    """Return the distinct tokens of all ranks in the measured window, divided by `elapsed_s`.

    None if a step has no number of tokens, or if the share of distinct tokens is unknown.
    """
    tokens = measured["tokens"].sum(skipna=False)
    share = _drawn_share(record.ranks)
    if share is None and distinct_share(record) is None:
        # Nothing is known about the samples, so they are assumed distinct, which a notice says, and so are the tokens.
        # If the user states the samples of a step, only the samples are known to be distinct, and the result is None.
        share = 1.0
    if share is None or isnan(tokens):
        return None
    return share * tokens / elapsed_s


SCRIPT_MEASURES = OwnMeasures(MEASURES, _measure, distinct_share)
