"""How the ranks of a configuration train, and how much longer the phases of their step take than on one device."""

from statistics import fmean
from typing import Any

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.scaling.growth import Growth, growths
from multicard.core.layout import BACKWARD
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup


def setup_of(configuration: Configuration, results: Results) -> TrainingSetup:
    """Return how the ranks of a configuration's completed runs train.

    Numbers per step are means over ranks and runs, other numbers the largest. Of back ends and debug switches it has
    all. Anything else is None if ranks differ, and all that no rank recorded is None.
    """
    table = results.table("training_setup")
    rows = table[table["run"].isin([run.run for run in configuration.completed])]
    return TrainingSetup.model_validate(
        {name: _joint(name, rows[name].tolist()) for name in TrainingSetup.model_fields}
    )


def _joint(name: str, cells: list[Any]) -> Any:
    """Return one value of a field of `TrainingSetup` for the cells of all ranks; None and NaN are unknown ones."""
    annotation = TrainingSetup.model_fields[name].annotation
    known = [cell for cell in cells if cell is not None and cell == cell]
    if annotation == tuple[str, ...]:
        return tuple(sorted({word for cell in known for word in cell.split(", ") if word}))
    if not known:
        return None
    if annotation == float | None:
        return fmean(known)
    if annotation == int | None:
        return int(max(known))
    return known[0] if len(set(known)) == 1 and len(known) == len(cells) else None


def growth_of(configuration: Configuration, results: Results) -> Growth | None:
    """Return how much longer the step is than the ideal step (see `growth.Growth`), by its phases.

    None if there is no run on one device, or if a trace divides the step.
    """
    growth = growths(results.configurations()).get(configuration.key)
    return growth if growth is not None and BACKWARD in growth.parts else None


def grown_share(configuration: Configuration, results: Results, phase: str) -> float | None:
    """Return the share of the step by which a phase is longer than in the ideal step.

    It is 0 if the phase is not longer, and None if that is not known (`growth_of`).
    """
    growth = growth_of(configuration, results)
    if growth is None or phase not in growth.parts:
        return None
    return max(0.0, growth.parts[phase]) / sum(growth.step_s.values())


def is_small(share: float | None) -> bool:
    """Return True if a share is known and too small for a cause to be named."""
    return share is not None and share < LEAST
