"""The phases of a step, as parts that add up to the iteration time: the one division that figures and answers show.

Answers on a traced step show the parts of the trace instead; data, evaluation and stalls are equal in both.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd

from multicard.answers.scaling.speedup_tables import columns_of
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.layout import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER, PHASES, TRANSFER
from multicard.results.breakdown import StepPart
from multicard.results.configuration import MeasuredRun
from multicard.results.results import Results

STALLS, OTHER = "stalls", "other"
PARTS = (*PHASES, EVALUATION, STALLS, OTHER)
# Parts that are known of the rank for which the others wait, by the column with their share of the step.
_OF_SLOWEST_LOADER = {
    DATA: StepPart.DATA.column,
    EVALUATION: StepPart.EVALUATION.column,
    STALLS: StepPart.STALLS.column,
}
# Parts in which the other ranks wait for it, the likeliest first: gradients are averaged in the backward pass.
_WAITING = (BACKWARD, OTHER, OPTIMIZER, FORWARD, TRANSFER)

# Seconds of a step by the name of the part, one of `PARTS`.
PartTimes = Mapping[str, float]


def mean_phases(results: Results) -> pd.DataFrame:
    """Return the iteration time of each configuration with a completed run, and the parts that add up to it.

    The iteration time is the geometric mean over repeats, as everywhere. Parts are those of `phases_of`, averaged over
    repeats by `parts_of_mean_step`.

    Columns: the parameters, `repeats`, `iteration_time_s` with its bounds (`…_low`, `…_high`), and the seconds of each
    of `PARTS` (`data_s`, …, `stalls_s`, `other_s`). A part that no repeat recorded is empty.

    Below, half of the steps is the forward pass. The geometric mean of 0.1 and 0.4 s is 0.2 s:

    >>> runs = {"run": ["a", "b"], "workload": "vision", "outcome": "completed", "repeat": [1, 2]}
    >>> times = {"iteration_time_s": [0.1, 0.4], "forward_s": [0.05, 0.2]}
    >>> phases = mean_phases(Results(pd.DataFrame(runs | times)))
    >>> phases[["iteration_time_s", "forward_s", "other_s"]].round(3).to_dict("records")
    [{'iteration_time_s': 0.2, 'forward_s': 0.1, 'other_s': 0.1}]
    """
    completed = results.on_any_machine().completed()
    configurations = completed.configurations()
    repeats = [len(configuration.completed) for configuration in configurations]
    rows = [
        parts_of_mean_step([phases_of(run) for run in configuration.completed], configuration.mean(STEP_TIME))
        for configuration in configurations
    ]
    parts = pd.DataFrame(rows, index=range(len(rows)), columns=list(PARTS), dtype=float)
    return (
        completed.parameters()
        .assign(repeats=repeats, **columns_of(STEP_TIME, completed.means(STEP_TIME)))
        .join(parts.add_suffix("_s"))
    )


def parts_of_mean_step(parts_of_runs: Sequence[PartTimes], step_s: float | None) -> dict[str, float]:
    """Return the mean of each part over the runs of a configuration, scaled so that the parts add up to `step_s`.

    Means are arithmetic. A run without any part does not count; a part that a run lacks took no time there. `step_s`:
    the configuration's iteration time; None if it is not known, then nothing is scaled.

    >>> parts_of_mean_step([{"forward": 1.0, "other": 1.0}, {"forward": 2.0}, {}], step_s=4.0)
    {'forward': 3.0, 'other': 1.0}
    """
    recorded = [parts for parts in parts_of_runs if parts]
    names = dict.fromkeys(name for parts in recorded for name in parts)
    means_s = {name: fmean(parts.get(name, 0.0) for parts in recorded) for name in names}
    sum_s = sum(means_s.values())
    factor = step_s / sum_s if step_s and sum_s else 1.0
    return {name: seconds * factor for name, seconds in means_s.items()}


def phases_of(run: MeasuredRun) -> dict[str, float]:
    """Return the seconds of each part of a run's mean step, which add up to its iteration time; empty without phases.

    A step lasts as long as its slowest rank. So data and evaluation are those of the rank that waited for data and
    evaluated longest in each step, and stalls are apart, as in the shares of measures.csv. The other phases are means
    over ranks, less the time for which the other ranks wait for that one, and scaled to the rest of the step. What is
    in no phase is `OTHER`.

    Of two ranks that take turns, one waits for data during 3/4 of each step, and the other waits for it in its backward
    pass. On average they wait for data during 3/8 of the step, and are in the backward pass during 9/16, of which 3/8
    is waiting:

    >>> from multicard.results.provenance import Provenance
    >>> means = {"data_s": 0.375, "forward_s": 0.0625, "backward_s": 0.5625}
    >>> run = MeasuredRun("a", means | {"iteration_time_s": 1.0, "data_loading_share": 0.75}, Provenance())
    >>> phases_of(run)
    {'forward': 0.0625, 'backward': 0.1875, 'other': 0.0, 'data': 0.75}
    """
    names = [*PHASES, EVALUATION]
    recorded = {name: seconds for name in names if (seconds := run.number(f"{name}_s")) is not None}
    step_s, other_s = run.number(STEP_TIME), run.number(f"{OTHER}_s")
    if not recorded and other_s is None:
        return {}
    if step_s is None:
        return recorded if other_s is None else recorded | {OTHER: other_s}
    # Phases that the clocks of a script count twice may take longer than the step.
    means_s = recorded | {OTHER: max(0.0, step_s - sum(recorded.values()))}
    shares = {part: share for part, column in _OF_SLOWEST_LOADER.items() if (share := run.number(column)) is not None}
    slowest_s = {part: share * step_s for part, share in shares.items()}
    return _of_slowest_loader(means_s, slowest_s, step_s)


def _of_slowest_loader(means_s: PartTimes, slowest_s: PartTimes, step_s: float) -> dict[str, float]:
    """Return the parts of a step with those of `slowest_s` as they are, and the others so that all add up to `step_s`.

    `means_s`: the means over ranks. `slowest_s`: the parts of the rank for which the others wait.
    """
    fixed_s = {part: means_s[part] for part in (DATA, EVALUATION) if part in means_s}
    fixed_s.update(slowest_s)
    others_s = {part: seconds for part, seconds in means_s.items() if part not in fixed_s}
    waited_s = sum(fixed_s.get(part, 0.0) - means_s.get(part, 0.0) for part in (DATA, EVALUATION))
    for part in _WAITING:
        taken_s = min(others_s.get(part, 0.0), max(0.0, waited_s))
        if taken_s > 0:
            others_s[part] -= taken_s
            waited_s -= taken_s
    rest_s = max(0.0, step_s - sum(fixed_s.values()))
    sum_s = sum(others_s.values())
    if sum_s > 0:
        others_s = {part: seconds / sum_s * rest_s for part, seconds in others_s.items()}
    else:
        others_s[OTHER] = rest_s
    return others_s | fixed_s
