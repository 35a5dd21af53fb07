"""Repeats that were added to scenarios whose repeats go on until they are decided; the file `repeats.json` of results.

The pipeline runs the repeats of a plan. Whether they are enough is known after they ran, so `multicard run` writes here
how many repeats each scenario has then, and every later start plans them.
"""

from pathlib import Path

from pydantic import Field, ValidationError

from multicard.config.experiment import Experiment
from multicard.core.errors import UserError
from multicard.core.files import read_object, write_json
from multicard.core.layout import ADDED_REPEATS
from multicard.core.validation import first_fault
from multicard.programs.datasets import Strict


class AddedRepeats(Strict):
    """How far a scenario is."""

    repeats: int = Field(ge=1, description="Repeats that are planned.")
    # The `until` by which its comparisons were decided by these repeats; None if they are not, or it is not known yet.
    decided: float | None = None


def read_added(results: Path) -> dict[str, AddedRepeats]:
    """Return by scenario how far it is; empty if no repeats were added in these results.

    Raises `UserError` if the file is damaged.
    """
    path = results / ADDED_REPEATS
    if not path.is_file():
        return {}
    try:
        return {name: AddedRepeats.model_validate(value) for name, value in read_object(path).items()}
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}; delete it to have it made again") from None


def write_added(results: Path, added: dict[str, AddedRepeats]) -> None:
    """Write how far scenarios are; what the file says of other scenarios stays."""
    known = read_added(results) | added
    write_json(results / ADDED_REPEATS, {name: entry.model_dump() for name, entry in known.items()})


def with_added_repeats(experiment: Experiment) -> Experiment:
    """Return an experiment whose scenarios have as many repeats at least as were added in its results.

    Scenarios with a fixed number of repeats are unchanged.
    """
    added = read_added(Path(experiment.results)) if _until_decided(experiment) else {}
    repeats = {name: added[name].repeats for name in _until_decided(experiment) if name in added}
    return with_least(experiment, repeats)


def with_least(experiment: Experiment, repeats: dict[str, int]) -> Experiment:
    """Return an experiment in which some scenarios have so many repeats at least, but not more than their most."""
    scenarios = dict(experiment.scenarios)
    for name, count in repeats.items():
        scenario = scenarios[name]
        least = min(max(count, scenario.repeats.least), scenario.repeats.most)
        more = scenario.repeats.model_copy(update={"least": least})
        scenarios[name] = scenario.model_copy(update={"repeats": more})
    return experiment.model_copy(update={"scenarios": scenarios}) if repeats else experiment


def open_scenarios(experiment: Experiment) -> list[str]:
    """Return the scenarios to which repeats may be added: not shown to be decided, and with fewer than their most."""
    added = read_added(Path(experiment.results)) if _until_decided(experiment) else {}
    names = []
    for name in _until_decided(experiment):
        repeats = experiment.scenarios[name].repeats
        decided = added[name].decided if name in added else None
        is_decided = decided is not None and repeats.until is not None and decided <= repeats.until
        if not is_decided and repeats.least < repeats.most:
            names.append(name)
    return names


def _until_decided(experiment: Experiment) -> list[str]:
    """Return the scenarios whose repeats go on until they are decided."""
    return [name for name, scenario in experiment.scenarios.items() if scenario.repeats.until is not None]
