"""Sides of a comparison of results, made from the iteration times of their configurations."""

from collections.abc import Sequence
from typing import Any

from factories import make_run
from multicard.answers.comparison.sides import Side
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.provenance import Provenance


def make_side(lost: Sequence[str] = (), record: dict[str, Any] | None = None, **times_s: Sequence[float]) -> Side:
    """Return results in which each configuration, by its name, has a run per iteration time.

    `lost`: names of further runs, which ran out of memory: that of their configuration and a repeat, as `a_r1`.
    `record`: fields of the record of every run.
    """
    runs: dict[str, list[MeasuredRun]] = {name: [] for name in times_s}
    for name, times_of_configuration_s in times_s.items():
        for repeat, seconds in enumerate(times_of_configuration_s):
            runs[name].append(_run(f"{name}_r{repeat}", outcome="completed", repeat=repeat, iteration_time_s=seconds))
    for run in lost:
        name = run.partition("_r")[0]
        runs.setdefault(name, []).append(_run(run, outcome="out_of_memory", repeat=9))
    return Side(
        records={run.run: make_run(**record or {}) for runs_of_one in runs.values() for run in runs_of_one},
        configurations={
            name: Configuration({"workload": "vision"}, Provenance(), tuple(runs_of_one))
            for name, runs_of_one in runs.items()
        },
    )


def _run(name: str, **values: Any) -> MeasuredRun:
    return MeasuredRun(name, {"workload": "vision"} | values, Provenance())
