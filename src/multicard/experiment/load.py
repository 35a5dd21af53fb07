"""Reading a configuration file; every error is one line with file, key, what was found and what was expected."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.secrets import STANDALONE_TOKEN
from multicard.core.text import counted, printable, quoted
from multicard.core.validation import choices_of, did_you_mean, expectation, is_empty, meant
from multicard.experiment.cluster import Cluster
from multicard.experiment.config import SHIPPED, Experiment, Fixed, Scenario, default_results
from multicard.experiment.datasets import SOURCES
from multicard.experiment.figures import FIGURES
from multicard.experiment.machine import Machine
from multicard.experiment.models import Model
from multicard.experiment.runs import Run, expand_scenario
from multicard.experiment.strict_yaml import read_yaml
from multicard.experiment.workload import WORKLOADS, parameters_of
from multicard.runs.parameters import ARGS, ARGS_PREFIX, JobParameters, as_columns, run_id

COMMAND = "command"
LIKE_SECRET = "holds what looks like a secret, which would be recorded; leave it out"
LONGEST_KEY, LONGEST_ERROR, MOST_ERRORS = 100, 500, 50  # characters of a key and of a line, and lines
UNDER_ARGS = "a parameter of your own script goes under args"


def read_experiment(path: Path, profile: Path | None = None, outside: bool = True) -> Experiment:
    """Read and check one configuration file, folders included.

    `profile`: folder of a profile of Snakemake. The values that it states as `config` take precedence over the file's.
    `outside`: whether data, models, archives and the results folder are looked for, which only runs need.
    Raises `UserError` with one line per error.
    """
    return check(*read_config(path, profile), outside)


def read_config(path: Path, profile: Path | None = None) -> tuple[Any, str]:
    """Parse a configuration file, with what a profile states, and name both for messages; it is not checked."""
    if path == SHIPPED and not path.exists():
        raise UserError(
            "found no multicard.yaml or config/config.yaml in this folder, expected the name of a configuration file; "
            "multicard scale --devices 1,2 -- SCRIPT.py writes one"
        )
    config = read_yaml(path)
    if not isinstance(config, dict):
        return config, str(path)
    config = {"results": default_results(path)} | config
    if profile is None:
        return config, str(path)
    stated = read_profile(profile).get("config") or {}
    if not isinstance(stated, dict):
        raise UserError(f"{profile}: config: found {quoted(stated)}, expected a mapping")
    return _merged(config, stated), f"{path} + {profile}"


def _merged(config: Any, stated: Any) -> Any:
    """A configuration with the values that a profile states, section by section, as Snakemake merges them."""
    if not isinstance(config, dict) or not isinstance(stated, dict):
        return stated
    return config | {key: _merged(config.get(key), value) for key, value in stated.items()}


def read_profile(folder: Path) -> dict[str, Any]:
    """Read a profile of Snakemake: a file, or of a folder its config.yaml.

    Raises `UserError` if there is none, or it is no mapping that parses.
    """
    file = folder if folder.is_file() else folder / "config.yaml"
    profile = read_yaml(file, of_snakemake=True)
    if not isinstance(profile, dict):
        raise UserError(f"{file}: found no mapping of options to values")
    return profile


def check(config: Any, source: str, outside: bool = True) -> Experiment:
    """Validate a parsed configuration; `source` names the file in messages, all else is as of `read_experiment`."""
    if not isinstance(config, dict):
        found = "nothing" if config is None else type(config).__name__
        raise UserError(f"{source}: expected a mapping with the key scenarios, found {found}")
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as error:
        raise UserError(*_lines(source, map(_message, _without_misspelt(error.errors())))) from error
    errors = [
        *_secret_errors(config),
        *(error for name in experiment.scenarios for error in _scenario_errors(experiment, name)),
    ]
    if outside:
        errors += _outside_errors(experiment)
    if errors:
        raise UserError(*_lines(source, errors))
    return experiment


def _lines(source: str, errors: Iterable[str]) -> list[str]:
    """Lines of some errors, each cut to a readable length, and how many more there are."""
    lines = [f"{source}: {printable(error, LONGEST_ERROR)}" for error in errors]
    more = [f"{source}: {counted(len(lines) - MOST_ERRORS, 'more error')}"] if len(lines) > MOST_ERRORS else []
    return lines[:MOST_ERRORS] + more


def _secret_errors(value: Any, place: tuple[str, ...] = ()) -> Iterator[str]:
    """Refuse names and texts that have the form of a secret: they name folders, and stand in reports.

    A command and its parameters are looked at with its values in place (`Workload.config_error`).
    """
    if isinstance(value, dict):
        for key, each in value.items():
            if STANDALONE_TOKEN.search(str(key)):
                yield f"{'.'.join(place)}: a name {LIKE_SECRET}"
            elif key not in (COMMAND, ARGS):
                yield from _secret_errors(each, (*place, str(key)))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _secret_errors(each, (*place, str(number)))
    elif isinstance(value, str) and STANDALONE_TOKEN.search(value):
        yield f"{'.'.join(place)}: it {LIKE_SECRET}"


def read_job(parameters: str, data: Path | None, model: Path | None, machine: Machine | None) -> JobParameters:
    """Read and check what one run is given: its parameters as JSON, and the folders that were prepared for it.

    Raises `UserError` with one line per error, also if the run cannot run on `machine`, unless that is None.
    """
    try:
        values = json.loads(parameters)
        p = parameters_of(values)
    except ValidationError as error:
        raise UserError(*_lines("parameters", map(_message, error.errors()))) from error
    except ValueError as error:
        raise UserError(f"parameters: do not parse as JSON: {error}") from error
    except (AttributeError, KeyError, TypeError):
        raise UserError(
            f"parameters: found {quoted(values)}, expected a mapping of one workload's parameters"
        ) from None
    errors = []
    for name, folder, parameter in (("data", data, "dataset"), ("model", model, "model")):
        if parameter in WORKLOADS[p.workload].inputs and (folder is None or not folder.is_dir()):
            errors.append(f"{name}: {'missing' if folder is None else f'no such folder: {folder}'}")
    if machine and (unsupported := Run(run_id(p), p).unsupported_reason(machine)):
        errors.append(f"parameters: cannot run here: {unsupported}")
    if errors:
        raise UserError(*errors)
    return p


def _message(error: Any) -> str:
    """Word one pydantic error as `key: found …, expected …`."""
    location = [str(part) for part in error["loc"] if part != "[key]"]
    kind, found = error["type"], error["input"]
    source = None
    if location[:1] == ["datasets"] and len(location) > 2:
        source = SOURCES[location.pop(2)]  # pydantic places the kind of a data set between its name and its keys
    key = ".".join(printable(part, LONGEST_KEY) for part in location)
    match kind:
        case "extra_forbidden":
            own = f"; {UNDER_ARGS}" if {"fixed", "vary"} & set(location) else ""
            return f"{key}: unknown key{did_you_mean(location[-1], source.model_fields if source else _KEYS)}{own}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            return f"{key}: {expectation(error)}" if key else expectation(error)
        case "union_tag_not_found" | "union_tag_invalid":
            tag = error["ctx"].get("tag", "nothing")
            return (
                f"{key}.source: found {quoted(tag)}{did_you_mean(tag, SOURCES)}, expected one of {', '.join(SOURCES)}"
            )
    if kind in ("too_short", "string_too_short") and is_empty(found):
        return f"{key}: is empty, expected {'text' if isinstance(found, str) else 'at least one'}"
    hint, expected = "", expectation(error)
    if kind == "literal_error":
        hint = did_you_mean(found, choices_of(error)) if isinstance(found, str) else ""
    elif kind in ("list_type", "tuple_type") and isinstance(found, (str, int, float)):
        expected += f" such as [{printable(str(found), LONGEST_KEY)}]"
    elif kind == "float_type" and isinstance(found, str) and re.fullmatch(r"\d+e[+-]?\d+", found):
        expected += f" (YAML wants a point: {found.replace('e', '.0e')})"
    return f"{key}: found {'nothing' if found is None else quoted(found)}{hint}, {expected}"


def _without_misspelt(errors: Sequence[Any]) -> list[Any]:
    """Leave out that a key is missing where an unknown one stands in its place that was probably meant to be it."""
    misspelt = {
        (*error["loc"][:-1], meant(str(error["loc"][-1]), _KEYS))
        for error in errors
        if error["type"] == "extra_forbidden"
    }
    return [error for error in errors if error["type"] != "missing" or error["loc"] not in misspelt]


# Of all sections that are not data sets.
_KEYS = [name for section in (Experiment, Scenario, Fixed, Cluster, Model) for name in section.model_fields]


def _outside_errors(experiment: Experiment) -> list[str]:
    """Errors that only the file system shows."""
    errors = []
    for name, dataset in experiment.datasets.items():
        try:
            missing = dataset.missing_files()
        except OSError as error:
            missing = f"source: {dataset.source} cannot be looked for: {error.strerror}"
        if missing:
            errors.append(f"datasets.{name}.{missing}")
    errors += [f"models.{name}.{error}" for name, model in experiment.models.items() if (error := model.config_error())]
    if unwritten := unwritable(Path(experiment.results)):
        errors.append(f"results: cannot write to {experiment.results}: {unwritten}")
    return errors


def _scenario_errors(experiment: Experiment, name: str) -> list[str]:
    """What of a scenario does not fit its workload, the data sets or the models."""
    scenario, workload = experiment.scenarios[name], experiment.workload(name)
    known, where = WORKLOADS[workload].parameters.model_fields, f"scenarios.{name}"
    errors = [
        f"{where}.{section}.{key}: not a parameter of the workload {workload}"
        + (f"; {UNDER_ARGS}" if ARGS in known else "")
        for section, keys in (("fixed", scenario.fixed.model_fields_set), ("vary", scenario.varied))
        for key in keys
        if (ARGS if key.startswith(ARGS_PREFIX) else key) not in known
    ]
    for figure in scenario.figures:
        about = FIGURES[figure].workload or workload
        if about != workload:
            errors.append(f"{where}: the figure {figure} is about the workload {about}, this one's is {workload}")
    if errors:
        return errors
    try:
        runs = expand_scenario(experiment, name)
    except ValidationError as error:
        return list(dict.fromkeys(f"{where}: {_message(e)}" for e in error.errors()))
    for key in WORKLOADS[workload].inputs:
        entries = getattr(experiment, f"{key}s")
        for value in dict.fromkeys(getattr(run.parameters, key) for run in runs):
            if value not in entries:
                what = key.replace("dataset", "data set")
                hint = did_you_mean(value, entries)
                errors.append(f"{_place(experiment, name, key)}: no {what} {quoted(value)} under {key}s{hint}")
    if not errors:
        errors = list(dict.fromkeys(f"{where}: {error}" for run in runs if (error := run.config_error())))
    if not errors and _differ_in_secrets(runs, scenario.varied):
        errors.append(f"{where}: configurations differ only in what looks like a secret, which tables leave out")
    return errors


def _differ_in_secrets(runs: Sequence[Run], varied: Collection[str]) -> bool:
    """True if several configurations would have the same row in tables."""
    if not any(name == COMMAND or name.startswith(ARGS_PREFIX) for name in varied):
        return False
    rows = [as_columns(run.parameters.model_dump()) for run in runs if run.parameters.repeat == 1]
    return len({tuple(row.items()) for row in rows}) < len(rows)


def _place(experiment: Experiment, name: str, key: str) -> str:
    """Where in the file a scenario's value of a parameter stands."""
    scenario = experiment.scenarios[name]
    if key in scenario.varied:
        return f"scenarios.{name}.vary.{key}"
    stated = key in scenario.fixed.model_fields_set or key not in experiment.fixed.model_fields_set
    return f"scenarios.{name}.fixed.{key}" if stated else f"fixed.{key}"
