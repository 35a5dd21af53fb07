"""Read and check a configuration file. Every error is a line with file, key, what was found and what was expected."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.config.added_repeats import with_added_repeats
from multicard.config.cluster import Cluster
from multicard.config.experiment import SHIPPED, Experiment, Fixed, Scenario, default_results
from multicard.config.figures import FIGURES
from multicard.config.repeats import Repeats
from multicard.config.runs import Run, expand_scenario
from multicard.config.strict_yaml import read_yaml
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.secrets import STANDALONE_TOKEN
from multicard.core.text import counted, listed, printable, quoted
from multicard.core.validation import choices_of, did_you_mean, expectation, is_empty, meant
from multicard.programs import PROGRAMS, parameters_of
from multicard.programs.datasets import SOURCES
from multicard.programs.machine import Machine
from multicard.programs.models import Model
from multicard.runs.parameters import ARGS, ARGS_PREFIX, JobParameters, as_columns, run_id

COMMAND = "command"
LIKE_SECRET = "holds what looks like a secret, which would be recorded; leave it out"
# Limits of messages, because they quote files that may come from anybody: most characters of a key, most characters of
# an error, and most errors.
LONGEST_KEY = 100
LONGEST_ERROR = 500
MOST_ERRORS = 50
UNDER_ARGS = "a parameter of your own script goes under args"


def read_experiment(path: Path, profile: Path | None = None, outside: bool = True) -> Experiment:
    """Read and check one configuration file.

    `profile`: a profile of Snakemake, as for `read_profile`. The values under its key `config` replace those of the
    file. `outside`: True to check also that data sets exist, that models state a folder where they need one, and that
    results can be written. Only runs need this. The experiment has the repeats that `with_added_repeats` adds.

    Raises `UserError` with one line per error.
    """
    return with_added_repeats(check(*read_config(path, profile), outside))


def read_config(path: Path, profile: Path | None = None) -> tuple[Any, str]:
    """Return a parsed configuration file with the values of a profile, and the names of the files for messages.

    The content is not checked, so it may be any value of YAML. If it is a mapping, `results` gets a default.

    Raises `UserError` if a file cannot be read or parsed.
    """
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
    """Return a configuration with the values `stated` in a profile; sections are merged key by key, as by Snakemake."""
    if not isinstance(config, dict) or not isinstance(stated, dict):
        return stated
    return config | {key: _merged(config.get(key), value) for key, value in stated.items()}


def read_profile(folder: Path) -> dict[str, Any]:
    """Read a profile of Snakemake; `folder`: the file, or the folder with its config.yaml.

    Raises `UserError` if the file is missing, does not parse, or is not a mapping.
    """
    file = folder if folder.is_file() else folder / "config.yaml"
    profile = read_yaml(file, of_snakemake=True)
    if not isinstance(profile, dict):
        raise UserError(f"{file}: found no mapping of options to values")
    return profile


def check(config: Any, source: str, outside: bool = True) -> Experiment:
    """Check a parsed configuration. `source`: name of the file in messages. `outside`, errors: as `read_experiment`."""
    if not isinstance(config, dict):
        what = "nothing" if config is None else type(config).__name__
        raise UserError(f"{source}: expected a mapping with the key scenarios, found {what}")
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as error:
        raise UserError(*_lines(source, map(_message, _without_misspelt(error.errors())))) from error
    errors = list(_secret_errors(config))
    for name in experiment.scenarios:
        errors += _scenario_errors(experiment, name)
    if outside:
        errors += _outside_errors(experiment)
    if errors:
        raise UserError(*_lines(source, errors))
    return experiment


def _lines(source: str, errors: Iterable[str]) -> list[str]:
    """Return a line `source: error` for each error, cut to `LONGEST_ERROR`.

    After `MOST_ERRORS` lines, a last one has the number of further errors.
    """
    lines = [f"{source}: {printable(error, LONGEST_ERROR)}" for error in errors]
    if len(lines) <= MOST_ERRORS:
        return lines
    return [*lines[:MOST_ERRORS], f"{source}: {counted(len(lines) - MOST_ERRORS, 'more error')}"]


def _secret_errors(value: Any, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for each key and text that has the form of a secret, because reports and folders would show it.

    `keys`: the keys that lead to `value` in the configuration. Commands and their parameters are left out, because
    `Checks.config_error` searches commands with the values of their parameters.
    """
    if isinstance(value, dict):
        for key, entry in value.items():
            if STANDALONE_TOKEN.search(str(key)):
                yield f"{'.'.join(keys)}: a name {LIKE_SECRET}"
            elif key not in (COMMAND, ARGS):
                yield from _secret_errors(entry, (*keys, str(key)))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _secret_errors(entry, (*keys, str(number)))
    elif isinstance(value, str) and STANDALONE_TOKEN.search(value):
        yield f"{'.'.join(keys)}: it {LIKE_SECRET}"


def read_job(parameters: str, data: Path | None, model: Path | None, machine: Machine | None) -> JobParameters:
    """Return the parameters of a run, after checking them and the folders that were prepared for it.

    `parameters`: as JSON. `data`, `model`: folders of the prepared data set and model; None if there is none.
    `machine`: the machine on which the run has to be able to run; None to leave out this check.

    Raises `UserError` with one line per error.
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
        if parameter in PROGRAMS[p.workload].inputs and (folder is None or not folder.is_dir()):
            errors.append(f"{name}: {'missing' if folder is None else f'no such folder: {folder}'}")
    if machine and (unsupported := Run(run_id(p), p).unsupported_reason(machine)):
        errors.append(f"parameters: cannot run here: {unsupported}")
    if errors:
        raise UserError(*errors)
    return p


def _message(fault: Any) -> str:
    """Return a fault that pydantic found as `key: found …, expected …`.

    `fault`: an entry of `ValidationError.errors()`.
    """
    location = [str(part) for part in fault["loc"] if part != "[key]"]
    source = None
    if location[:1] == ["datasets"] and len(location) > 2:
        # In the location, pydantic adds the source of a data set between its name and the key.
        source = SOURCES[location.pop(2)]
    key = ".".join(printable(part, LONGEST_KEY) for part in location)
    match fault["type"]:
        case "extra_forbidden":
            hint = did_you_mean(location[-1], source.model_fields if source else _KEYS)
            is_parameter = not {"fixed", "vary"}.isdisjoint(location)
            return f"{key}: unknown key{hint}{f'; {UNDER_ARGS}' if is_parameter else ''}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            return f"{key}: {expectation(fault)}" if key else expectation(fault)
        case "union_tag_not_found" | "union_tag_invalid":
            tag = fault["ctx"].get("tag", "nothing")
            expected = f"expected one of {', '.join(SOURCES)}"
            return f"{key}.source: found {quoted(tag)}{did_you_mean(tag, SOURCES)}, {expected}"
        case "too_short" | "string_too_short" if is_empty(fault["input"]):
            return f"{key}: is empty, expected {'text' if isinstance(fault['input'], str) else 'at least one'}"
    return f"{key}: {_found_and_expected(fault)}"


def _found_and_expected(fault: Any) -> str:
    """Return a fault as `found …, expected …`, with a hint at the value that was probably meant, or an example."""
    value, expected = fault["input"], expectation(fault)
    hint = example = ""
    match fault["type"]:
        case "literal_error" if isinstance(value, str):
            hint = did_you_mean(value, choices_of(fault))
        case "list_type" | "tuple_type" if isinstance(value, (str, int, float)):
            example = f" such as [{printable(str(value), LONGEST_KEY)}]"
        case "float_type" if isinstance(value, str) and re.fullmatch(r"\d+e[+-]?\d+", value):
            example = f" (YAML wants a point: {value.replace('e', '.0e')})"
    return f"found {'nothing' if value is None else quoted(value)}{hint}, {expected}{example}"


def _without_misspelt(faults: Sequence[Any]) -> list[Any]:
    """Return the faults without those of a missing key that was probably misspelt.

    If a section lacks a key, and has an unknown key that resembles it, only the fault of the unknown key is kept.
    """
    misspelt = {
        (*fault["loc"][:-1], meant(str(fault["loc"][-1]), _KEYS))
        for fault in faults
        if fault["type"] == "extra_forbidden"
    }
    return [fault for fault in faults if fault["type"] != "missing" or fault["loc"] not in misspelt]


# The keys of all sections except data sets.
_KEYS = [name for section in (Experiment, Scenario, Repeats, Fixed, Cluster, Model) for name in section.model_fields]


def _outside_errors(experiment: Experiment) -> list[str]:
    """Return the errors of inputs and of the results folder, most of which only the file system shows.

    They are: data sets whose files are missing, models that lack or must not have a folder, and a results folder that
    cannot be written to. Whether the weights of a model exist is not checked.
    """
    errors = []
    for name, dataset in experiment.datasets.items():
        try:
            missing = dataset.missing_files()
        except OSError as error:
            missing = f"source: {dataset.source} cannot be looked for: {error.strerror}"
        if missing:
            errors.append(f"datasets.{name}.{missing}")
    for name, model in experiment.models.items():
        if wrong := model.config_error():
            errors.append(f"models.{name}.{wrong}")
    if reason := unwritable(Path(experiment.results)):
        errors.append(f"results: cannot write to {experiment.results}: {reason}")
    return errors


def _scenario_errors(experiment: Experiment, name: str) -> list[str]:
    """Return the errors of a scenario: where it does not fit its program, the data sets or the models.

    Each check is valid only if the checks before it found no error. So the errors of the first check that finds some
    are returned, and later checks are not made.
    """
    where = f"scenarios.{name}"
    if errors := [*_unknown_parameters(experiment, name), *_unfit_figures(experiment, name)]:
        return [f"{where}{error}" for error in errors]
    try:
        runs = expand_scenario(experiment, name)
    except ValidationError as error:
        return _distinct(f"{where}: {_message(fault)}" for fault in error.errors())
    if errors := list(_undefined_inputs(experiment, name, runs)):
        return errors
    faults = [run.config_error() for run in runs]
    if errors := _distinct(f"{where}: {fault}" for fault in faults if fault):
        return errors
    if _differ_in_secrets(runs, experiment.scenarios[name].varied):
        return [f"{where}: configurations differ only in what looks like a secret, which tables leave out"]
    return []


def _distinct(errors: Iterable[str]) -> list[str]:
    """Return the errors in order, each once, because many runs have the same error."""
    return list(dict.fromkeys(errors))


def _unknown_parameters(experiment: Experiment, name: str) -> Iterator[str]:
    """Yield an error for each parameter of a scenario that its program does not have.

    The errors begin behind the name of the scenario: ".fixed.model: …".
    """
    scenario = experiment.scenarios[name]
    workload = experiment.workload(name)
    parameters = PROGRAMS[workload].parameters.model_fields
    hint = f"; {UNDER_ARGS}" if ARGS in parameters else ""
    sections: dict[str, Iterable[str]] = {"fixed": scenario.fixed.model_fields_set, "vary": scenario.varied}
    for section, keys in sections.items():
        for key in keys:
            parameter = ARGS if key.startswith(ARGS_PREFIX) else key
            if parameter not in parameters:
                yield f".{section}.{key}: not a parameter of the workload {workload}{hint}"


def _unfit_figures(experiment: Experiment, name: str) -> Iterator[str]:
    """Yield an error for each figure of a scenario whose program lacks what the figure needs.

    The errors begin behind the name of the scenario: ": the figure …".
    """
    workload = experiment.workload(name)
    for figure in experiment.scenarios[name].figures:
        workloads = FIGURES[figure].workloads
        if workload not in workloads:
            expected = listed(workloads, "or")
            yield f": the figure {figure} is about the workload {expected}, this one's is {workload}"


def _undefined_inputs(experiment: Experiment, name: str, runs: Sequence[Run]) -> Iterator[str]:
    """Yield an error for each data set or model that a run of a scenario uses and the configuration does not define."""
    for parameter in PROGRAMS[experiment.workload(name)].inputs:
        definitions = getattr(experiment, f"{parameter}s")
        for value in dict.fromkeys(getattr(run.parameters, parameter) for run in runs):
            if value not in definitions:
                what = parameter.replace("dataset", "data set")
                hint = did_you_mean(value, definitions)
                yield f"{_key_of(experiment, name, parameter)}: no {what} {quoted(value)} under {parameter}s{hint}"


def _differ_in_secrets(runs: Sequence[Run], varied: Collection[str]) -> bool:
    """Return True if two of the runs have equal rows in tables, because they differ only in secrets.

    Tables leave out secrets. Only the first repeats are compared, and only if the command or the user's own parameters
    are varied.
    """
    if not any(name == COMMAND or name.startswith(ARGS_PREFIX) for name in varied):
        return False
    rows = [as_columns(run.parameters.model_dump()) for run in runs if run.parameters.repeat == 1]
    return len({tuple(row.items()) for row in rows}) < len(rows)


def _key_of(experiment: Experiment, name: str, parameter: str) -> str:
    """Return the key of the configuration that states a scenario's value of a parameter.

    If none states it, the key is that of the section `fixed` of the scenario.
    """
    scenario = experiment.scenarios[name]
    if parameter in scenario.varied:
        return f"scenarios.{name}.vary.{parameter}"
    is_shared = parameter in experiment.fixed.model_fields_set and parameter not in scenario.fixed.model_fields_set
    return f"fixed.{parameter}" if is_shared else f"scenarios.{name}.fixed.{parameter}"
