"""`multicard tune --vary`: a scenario with other values, of which one may be the batch sizes to choose from."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli.scale import parse_vary
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.units import ARGS_PREFIX

if TYPE_CHECKING:
    from multicard.experiment.config import Experiment

AUTO, BATCH_SIZE = "auto", "batch_size"
LARGEST = 65_536
WORDS = {"true": True, "false": False}  # as a configuration states them
OF_ONE_BATCH = ("samples_per_step", "samples_per_device")  # parameters that are right for one batch size only


@dataclass(frozen=True)
class Auto:
    """The parameter whose values are batch sizes to choose from, and the one to begin with."""

    parameter: str
    start: int
    largest: int

    def stem(self, scenario: str) -> str:
        """Name of the files of the search."""
        return f"{scenario}-{self.parameter.removeprefix(ARGS_PREFIX)}"


def add_vary(parser: argparse.ArgumentParser) -> None:
    """Add other values of the scenario's parameters."""
    parser.add_argument(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help=f"other values of a parameter than the scenario's; batch-size={AUTO}: find the largest that fits, and "
        "the one from which larger ones gain nothing",
    )  # fmt: skip
    parser.add_argument(
        "--largest", type=int, metavar="N", help=f"with --vary NAME={AUTO}: largest batch to try (default: {LARGEST})"
    )


def with_values(
    config: dict[str, Any], experiment: "Experiment", name: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], Auto | None]:
    """A configuration with that scenario alone and the values of `--vary`, and what of it is `auto`.

    Raises `UserError` if the options do not fit together, or the scenario's batch size cannot be chosen.
    """
    from multicard.experiment.figures import FIGURES
    from multicard.experiment.parameters import ARGS, flat, nested
    from multicard.experiment.workload import WORKLOADS
    from multicard.search.batch import MOST_REPEATS, sizes

    scenario, fields = config["scenarios"][name], WORKLOADS[experiment.workload(name)].parameters.model_fields
    values: dict[str, list[Any]] = {}
    for parameter, listed in map(parse_vary, arguments.vary):
        own = ARGS in fields and parameter not in fields
        key = f"{ARGS_PREFIX}{parameter}" if own else parameter
        if key in values:
            raise UserError(f"--vary: names {parameter} twice, expected --vary NAME=VALUE,... once for each")
        values[key] = listed if own else [WORDS.get(str(value), value) for value in listed]
    found = [key for key in values if AUTO in values[key] and (key == BATCH_SIZE or key.startswith(ARGS_PREFIX))]
    auto, repeats = None, scenario.get("repeats", 1)
    if found:
        if arguments.goal != "throughput":
            raise UserError(f"--goal: found {arguments.goal}, expected throughput with --vary NAME={AUTO}")
        if len(found) > 1 or values[found[0]] != [AUTO]:
            raise UserError(f"--vary: {AUTO} is to be the only value, and of one parameter")
        auto = _auto(experiment, name, found[0], LARGEST if arguments.largest is None else arguments.largest)
        values[auto.parameter], repeats = sizes(auto.start, auto.largest), max(repeats, MOST_REPEATS)
    elif arguments.largest is not None:
        raise UserError(f"--largest: expected with --vary NAME={AUTO}")
    fixed = {key: value for key, value in flat(scenario.get("fixed") or {}).items() if key not in values}
    vary = flat(scenario.get("vary") or {}) | values
    needs = {figure: FIGURES[figure].axis for figure in scenario["figures"]}
    figures = [figure for figure, axis in needs.items() if not axis or len(vary.get(axis, [])) > 1]
    if auto and (others := [key for key, listed in vary.items() if len(listed) > 1 and key != auto.parameter]):
        option = f"--vary {others[0].removeprefix(ARGS_PREFIX)}={vary[others[0]][0]}"
        raise UserError(f"scenarios.{name}: varies {others[0]} too; choose one value, such as {option}")
    changed = {"fixed": nested(fixed), "vary": nested(vary), "repeats": repeats}
    return config | {"scenarios": {name: scenario | changed | {"figures": figures or ["step_breakdown"]}}}, auto


def _auto(experiment: "Experiment", name: str, parameter: str, largest: int) -> Auto:
    """Where the choice of a batch size begins: at the scenario's own."""
    from multicard.experiment.parameters import flat
    from multicard.experiment.runs import expand_scenario

    stated = flat(expand_scenario(experiment, name)[0].parameters.model_dump())
    start = stated.get(parameter)
    if type(start) is not int or start < 1:
        raise UserError(f"--vary {AUTO}: {parameter} of {name} is {start!r}, expected a batch size to begin with")
    if largest < 1:
        raise UserError(f"--largest: found {largest}, expected 1 or more")
    if counts := next((key for key in OF_ONE_BATCH if stated.get(key) is not None), None):
        raise UserError(
            f"scenarios.{name}: {counts} is right for one batch size only; leave it out: PyTorch's loader tells the "
            "samples, or multicard.marks.step(samples=...) in the script"
        )
    return Auto(parameter, min(start, largest), largest)


def write_config(config: dict[str, Any], stem: Path) -> Path:
    """Write the configuration whose runs the search makes."""
    import yaml

    path = stem.with_name(f"{stem.name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
