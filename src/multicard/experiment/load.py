"""Reading a configuration file; every error is one line with file, key, what was found and what was expected."""

import difflib
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.experiment.config import Experiment
from multicard.experiment.datasets import SOURCES
from multicard.experiment.figures import FIGURES
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import ARGS, ARGS_PREFIX, DEFAULT_WORKLOAD, JobParameters, run_id
from multicard.experiment.runs import Run, expand_scenario
from multicard.experiment.workload import WORKLOADS, parameters_of

PROFILE_FILE = re.compile(r"(?:profile|config)(?:\.v(\d+)\+)?\.yaml")  # as Snakemake names them
MOST_VALUES = 1_000_000  # of a YAML file, with what aliases repeat


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key which stands twice in one mapping, instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                mark = key_node.start_mark
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is not text", problem_mark=mark)
            if key in seen:
                mark = key_node.start_mark
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands here twice", problem_mark=mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """How many values a node makes with all that its aliases repeat."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1.0 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def read_yaml(path: Path) -> Any:
    """Parse a YAML file strictly.

    Raises
    ------
    UserError
        If the file is missing, is not valid YAML, repeats a key, or is made to grow without end.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if (values := _values(root, {})) > MOST_VALUES:
            raise UserError(f"{path}: its aliases (*name) make {values:.0e} values, expected {MOST_VALUES} at most")
        return None if root is None else loader.construct_document(root)
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply, or an alias (*name) contains itself") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}{where}: does not parse as YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: does not parse as YAML: {' '.join(str(error).split())}") from error


def read_experiment(path: Path, profile: Path | None = None, outside: bool = True) -> Experiment:
    """Read and check one configuration file, folders included.

    Parameters
    ----------
    profile
        Folder of a profile of Snakemake. The values that it states as `config` take precedence over the file's.
    outside
        Whether data, models, archives and the results folder are looked for, which only runs need.

    Raises
    ------
    UserError
        One line per error.
    """
    config = read_yaml(path)
    if profile is None or not isinstance(config, dict):
        return check(config, str(path), outside)
    stated = read_profile(profile).get("config") or {}
    if not isinstance(stated, dict):
        raise UserError(f"{profile}: config: found {stated!r}, expected a mapping")
    return check(_merged(config, stated), f"{path} + {profile}", outside)


def _merged(config: Any, stated: Any) -> Any:
    """A configuration with the values that a profile states, section by section, as Snakemake merges them."""
    if not isinstance(config, dict) or not isinstance(stated, dict):
        return stated
    return config | {key: _merged(config.get(key), value) for key, value in stated.items()}


def read_profile(folder: Path) -> dict[str, Any]:
    """Read a profile of Snakemake: a file, or of a folder the file for the newest version that Snakemake has reached.

    Raises
    ------
    UserError
        If there is none, or it is no mapping that parses.
    """
    files = {folder: 0} if folder.is_file() else {}
    major = int(version("snakemake").split(".")[0])
    for path in folder.iterdir() if folder.is_dir() else ():
        named = PROFILE_FILE.fullmatch(path.name)
        if named and int(named[1] or 0) <= major:
            files[path] = int(named[1] or 0)
    if not files:
        raise UserError(f"{folder}: holds no profile of Snakemake (config.yaml)")
    file = max(files, key=lambda path: files[path])
    profile = read_yaml(file)
    if not isinstance(profile, dict):
        raise UserError(f"{file}: found no mapping of options to values")
    return profile


def check(config: Any, source: str, outside: bool = True) -> Experiment:
    """Validate a parsed configuration; `source` names the file in messages, `outside` is as of `read_experiment`.

    Raises
    ------
    UserError
        One line per error.
    """
    if not isinstance(config, dict):
        found = "nothing" if config is None else type(config).__name__
        raise UserError(f"{source}: expected a mapping with the key scenarios, found {found}")
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as error:
        raise UserError(*(f"{source}: {_message(e)}{_own_hint(e, config)}" for e in error.errors())) from error
    found = [error for name in experiment.scenarios for error in _scenario_errors(experiment, name)]
    errors = [f"{source}: {error}" for error in (*found, *(_outside_errors(experiment) if outside else ()))]
    if errors:
        raise UserError(*errors)
    return experiment


def read_job(parameters: str, data: Path | None, model: Path | None, machine: Machine | None) -> JobParameters:
    """Read and check what one run is given: its parameters as JSON, and the folders that were prepared for it.

    Raises
    ------
    UserError
        One line per error; also if the run cannot run on `machine`, unless that is None.
    """
    try:
        values = json.loads(parameters)
    except ValueError as error:
        raise UserError(f"parameters: do not parse as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"parameters: found {values!r}, expected a mapping")
    workload = values.get("workload", DEFAULT_WORKLOAD)
    if workload not in list(WORKLOADS):
        raise UserError(f"parameters: workload: found {workload!r}, expected one of {', '.join(WORKLOADS)}")
    known = list(WORKLOADS[workload].parameters.model_fields)
    errors = [
        f"parameters: {key}: not a parameter of the workload {workload}{_hint(key, known)}"
        for key in values
        if key not in known
    ]
    if errors:
        raise UserError(*errors)
    try:
        p = parameters_of(values)
    except ValidationError as error:
        raise UserError(*(f"parameters: {_message(e)}" for e in error.errors())) from error
    needed = WORKLOADS[workload].inputs
    folders = (("data", data, "dataset", "data set"), ("model", model, "model", "language model"))
    for name, folder, parameter, what in folders:
        if parameter in needed and folder is None:
            raise UserError(f"{name}: missing, expected the folder of the prepared {what}")
    errors = [
        f"{name}: no such folder: {folder}"
        for name, folder, *_ in folders
        if folder is not None and not folder.is_dir()
    ]
    unsupported = Run(run_id(p), p).unsupported_reason(machine) if machine else None
    if unsupported:
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
    key = ".".join(location)
    match kind:
        case "extra_forbidden":
            known = list(source.model_fields) if source else _known_keys(location[:-1])
            return f"{key}: unknown key{_hint(location[-1], known)}"
        case "missing":
            return f"{key}: missing"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
            return f"{key}: found {found!r}, expected one of {', '.join(choices)}{_hint(str(found), choices)}"
        case "string_pattern_mismatch":
            return f"{key}: the name {found!r} does not match {error['ctx']['pattern']}"
        case "value_error":
            return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"])
        case "model_type" | "dict_type" | "model_attributes_type":
            if found is None:
                return f"{key}: is empty, expected a mapping"
            return f"{key}: found {found!r}, expected a mapping"
        case "too_short":
            return f"{key}: is empty"
        case "union_tag_not_found":
            return f"{key}.source: missing, expected one of {', '.join(SOURCES)}"
        case "union_tag_invalid":
            tag = error["ctx"]["tag"]
            return f"{key}.source: found {tag!r}, expected one of {', '.join(SOURCES)}{_hint(tag, list(SOURCES))}"
    expected = error["msg"][0].lower() + error["msg"][1:]
    if kind == "float_type" and isinstance(found, str) and re.fullmatch(r"\d+e[+-]?\d+", found):
        expected += f" (YAML wants a point: {found.replace('e', '.0e')})"
    return f"{key}: found {found!r}, {expected}"


def _own_hint(error: Any, config: dict[str, Any]) -> str:
    """What to do with an unknown key where the workload has parameters of the user's own; else nothing."""
    match error["type"], error["loc"]:
        case "extra_forbidden", ("scenarios", name, "fixed" | "vary" as section, key):
            stated = [_mapping(config["scenarios"], name), config]
            where = f"scenarios.{name}.{section}"
        case "extra_forbidden", ("fixed" as where, key):
            stated = [config]
        case _:
            return ""
    workloads = (_mapping(each, "fixed").get("workload") for each in stated)
    workload = next(filter(None, workloads), DEFAULT_WORKLOAD)
    return _state_under_args(where, str(key)) if _has_own(workload) else ""


def _mapping(values: Any, key: str) -> dict[str, Any]:
    found = values.get(key) if isinstance(values, dict) else None
    return found if isinstance(found, dict) else {}


def _has_own(workload: Any) -> bool:
    return workload in list(WORKLOADS) and ARGS in WORKLOADS[workload].parameters.model_fields


def _state_under_args(where: str, key: str) -> str:
    name = key.removeprefix(f"{ARGS}.").replace("-", "_")
    return f"; if it is a parameter of your own, state it under args ({where}.{ARGS}.{name})"


def _hint(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _known_keys(location: list[str]) -> list[str]:
    """Keys allowed in the section at `location`, read off the model."""
    section: Any = Experiment
    for part in location:
        if isinstance(section, dict):
            section = section["*"]
            continue
        annotation = section.model_fields[part].annotation
        if hasattr(annotation, "model_fields"):
            section = annotation
        else:
            arguments = [a for a in getattr(annotation, "__args__", ()) if hasattr(a, "model_fields")]
            if not arguments:
                return []
            section = {"*": arguments[0]}
    return [] if isinstance(section, dict) else list(section.model_fields)


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
        + (_state_under_args(f"{where}.{section}", key) if _has_own(workload) else "")
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
                hint = _hint(value, list(entries))
                errors.append(f"{_place(experiment, name, key)}: no {what} {value!r} under {key}s{hint}")
    if not errors:
        errors = list(dict.fromkeys(f"{where}: {error}" for run in runs if (error := run.config_error())))
    return errors


def _place(experiment: Experiment, name: str, key: str) -> str:
    """Where in the file a scenario's value of a parameter stands."""
    scenario = experiment.scenarios[name]
    if key in scenario.varied:
        return f"scenarios.{name}.vary.{key}"
    stated = key in scenario.fixed.model_fields_set or key not in experiment.fixed.model_fields_set
    return f"scenarios.{name}.fixed.{key}" if stated else f"fixed.{key}"
