"""The measures that only runs of scripts have."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from multicard.runs.record import RankRecord, RunRecord
from multicard.workloads.script.parameters import ScriptParameters

MEASURES: dict[str, str] = {
    "steps_per_s": "1 / iteration_time_s: the throughput in steps, where samples are not known",
    "distinct_share": "part of the samples of a step that are distinct: less than 1 where the loaders of several ranks "
    "draw the same ones, empty where that is not known",
    "tokens_per_s": "distinct tokens of the measured window, without those that a mask leaves out, / elapsed_s; empty "
    "where batches do not show them",
    "measured_passes": "passes over the data that the measured window spans",
    "steps_per_pass": "steps of one pass over the data",
    "between_passes_s": "mean time between two passes in the measured window, which is in no step; empty in one pass",
    "steps_by": "what ends the steps: `optimizer`, `marks`, or `backward passes` where no optimizer updates",
    "evaluation_s": "mean time per measured step and rank in evaluations inside a pass; empty where none was seen",
}


def measure(record: RunRecord, common: Mapping[str, Any], steps: pd.DataFrame, epochs: Any) -> dict[str, Any]:
    """Measures of one completed run from its record, the measures of every workload and its steps."""
    measured = steps[steps["window"] == "measured"]
    evaluation = measured.get("evaluation_s", pd.Series(dtype=float))
    return {
        "steps_per_s": 1 / common["iteration_time_s"],
        "distinct_share": distinct_share(record),
        "tokens_per_s": _tokens_per_s(record, common["elapsed_s"], measured),
        "measured_passes": measured["epoch"].nunique(),
        "steps_per_pass": record.steps_per_pass,
        "between_passes_s": between_passes_s(measured),
        "steps_by": next(
            (rank.observed.steps_by for rank in record.ranks if rank.observed and rank.observed.steps_by), None
        ),
        "evaluation_s": evaluation.fillna(0.0).mean() if evaluation.notna().any() else None,
    }


def _steps_by(ranks: Sequence[RankRecord]) -> str | None:
    """Return what ends the steps, by the first rank that reports it."""
    reports = (rank.observed.steps_by for rank in ranks if rank.observed)
    return next(filter(None, reports), None)


def between_passes_s(measured: pd.DataFrame) -> float | None:
    """Mean time from the end of a pass to the start of the next, over all ranks; None where there is one pass."""
    ends = measured.assign(end_s=measured["start_s"] + measured["duration_s"]).groupby(["rank", "epoch"])
    passes = pd.DataFrame({"start_s": ends["start_s"].min(), "end_s": ends["end_s"].max()})
    between = passes["start_s"] - passes.groupby("rank")["end_s"].shift()
    return None if between.isna().all() else float(between.mean())


def distinct_share(record: RunRecord) -> float | None:
    """Return the part of the samples of a step that are distinct; None if unknown.

    A stated number of samples per step counts distinct ones.
    """
    assert isinstance(record.parameters, ScriptParameters)
    return _drawn_share(record.ranks) if record.parameters.stated_samples is None else 1.0


def _drawn_share(ranks: Sequence[RankRecord]) -> float | None:
    """Return the part of the samples drawn by loaders that are distinct; None if unknown, or if loaders disagree.

    Each loader reports how many of the ranks draw samples of their own: all of them (True), none (False), or a number.
    """
    if len(ranks) == 1:
        return 1.0
    loaders_of_ranks = [rank.observed.loaders if rank.observed else () for rank in ranks]
    reports = {loader.distinct for loaders in loaders_of_ranks for loader in loaders}
    if not all(loaders_of_ranks) or len(reports) != 1:
        return None
    distinct = reports.pop()
    if distinct is None:
        return None
    return 1.0 if distinct is True else max(1, distinct) / len(ranks)


def _tokens_per_s(record: RunRecord, elapsed_s: float, measured: pd.DataFrame) -> float | None:
    """Return the tokens of all ranks over the time of the window, those that ranks repeat once; None if unknown."""
    tokens = measured["tokens"].sum(skipna=False)
    share = _drawn_share(record.ranks)
    if share is None and distinct_share(record) is None:
        # The samples are taken as distinct, too, which a notice says. A number of samples that the user states leaves
        # the distinct share of the tokens unknown.
        share = 1.0
    if share is None or pd.isna(tokens):
        return None
    return share * tokens / elapsed_s
