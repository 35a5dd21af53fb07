"""The configuration model: the single source of truth for what a configuration file may say."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from multicard.core.text import quoted
from multicard.experiment.cluster import Cluster
from multicard.experiment.datasets import Dataset, Digits, Strict
from multicard.experiment.figures import FIGURES
from multicard.experiment.models import Model
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import ARGS, ARGS_PREFIX, DATASET_NAME, DEFAULT_WORKLOAD, OwnName, OwnValue, flat

MOST_RUNS = 100_000  # of a scenario
# Snakemake puts the names of modules into a command line as they are.
MODULE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+/-]*$"
# Make and Snakemake put these into commands and patterns of file names; one that begins with a dash would be an option.
RESULTS_PATH = r"^[\w./+@=,][\w./+@=,-]*( +[\w./+@=,-]+)*$"
SHIPPED = Path("config/config.yaml")  # the configuration of the demo, which the pipeline takes by default
RESULTS = "results"
ARCHIVE = ".tar.gz"  # how the name of an archive of recorded runs ends

FigureName = Literal[tuple(FIGURES)]

# Names of all parameters, those of the first workload first.
PARAMETERS = tuple(dict.fromkeys(name for work in WORKLOADS.values() for name in work.parameters.model_fields))


def is_parameter(column: str) -> bool:
    """Whether a column of a table is a parameter: one of multicard's, or one of the user's own (`args.batch_size`)."""
    return column in PARAMETERS or column.startswith(ARGS_PREFIX)


def parameters_in(columns: Iterable[str]) -> list[str]:
    """Those of the columns that are parameters: multicard's in their order, then the user's own."""
    there = list(columns)
    return [*(name for name in PARAMETERS if name in there), *(name for name in there if name.startswith(ARGS_PREFIX))]


def configuration_key(values: Mapping[str, Any], besides: Collection[str] = ("repeat",)) -> tuple[Any, ...]:
    """What tells configurations apart: names and values of their parameters but some; of empty ones nothing.

    >>> configuration_key({"devices": 2, "repeat": 1, "args.batch": 8, "seed": None, "elapsed_s": 3.0})
    (('devices', 2), ('args.batch', 8))
    """
    stated = ((name, values[name]) for name in parameters_in(values) if name not in besides)
    return tuple((name, value) for name, value in stated if value is not None and value == value)


# Parameters that workloads share under one name, with values of their own; each workload checks its own.
SHARED: dict[str, Any] = {
    "workload": Literal[tuple(WORKLOADS)],
    "model": Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")],
    "precision": Literal["fp64", "fp32", "bf16", "fp16"],
    "learning_rate": Annotated[float, Field(gt=0)] | None,
}


def _annotation(name: str) -> Any:
    """Give a parameter's type with its constraints, as it can stand inside another type."""
    if name in SHARED:
        return SHARED[name]
    field = _fields(name)[0][1]
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _fields(name: str) -> list[tuple[str, FieldInfo]]:
    """The field of each workload that has the parameter."""
    fields = {name: work.parameters.model_fields for name, work in WORKLOADS.items()}
    return [(work, own[name]) for work, own in fields.items() if name in own]


def _fixed_model() -> type[Strict]:
    """Any part of the parameters, each at most once. `repeat` is counted by `repeats`."""
    fields = {}
    for name in PARAMETERS:
        texts: dict[str, list[str]] = {}
        for work, field in _fields(name):
            texts.setdefault(field.description or "", []).append(work)
        words = texts if len(texts) == 1 else [f"{', '.join(works)}: {text}" for text, works in texts.items()]
        # The default is each workload's own.
        extra = {"additionalProperties": False} if name == ARGS else {}
        fields[name] = (_annotation(name), Field(default=None, description=" ".join(words), json_schema_extra=extra))
    return create_model("Fixed", __base__=Strict, **fields)


def _vary_model() -> type[Strict]:
    """Lists of values per parameter; the runs are their product."""
    fields = {}
    for name in PARAMETERS:
        if name not in ("repeat", "workload", ARGS):
            field = Field(default=None, min_length=1, description=f"Values of {name}, in order.")
            fields[name] = (list[_annotation(name)], field)
    about, extra = "Values of the script's own parameters, by name.", {"additionalProperties": False}
    own = dict[OwnName, Annotated[list[OwnValue], Field(min_length=1)]]
    fields[ARGS] = (own, Field(default={}, description=about, json_schema_extra=extra))
    return create_model("Vary", __base__=Strict, **fields)


Fixed = _fixed_model()
Vary = _vary_model()


class Scenario(Strict):
    """A named question with fixed and varied parameters."""

    question: str = Field(min_length=1, description="What the scenario asks, in one sentence.")
    fixed: Fixed = Field(Fixed(), description="Parameters that all runs of the scenario share.")
    vary: Vary = Field(Vary(), description="Parameters whose values are combined.")
    repeats: int = Field(1, ge=1, le=1000, description="Number of repeats of each run.")
    figures: list[FigureName] = Field(min_length=1, description="Figures to draw, by name.")

    @model_validator(mode="after")
    def _has_something_to_run(self) -> "Scenario":
        if not self.fixed.model_fields_set and not self.varied:
            raise ValueError("an empty scenario: state parameters under fixed or vary")
        runs = math.prod(map(len, self.varied.values())) * self.repeats
        if runs > MOST_RUNS:
            raise ValueError(f"asks for {runs} runs, expected {MOST_RUNS} at most")
        both = sorted(flat(self.fixed.model_dump(exclude_unset=True)).keys() & self.varied.keys())
        if both:
            raise ValueError(f"{both[0]} is both fixed and varied")
        for name, values in self.varied.items():
            if len(set(values)) < len(values):
                raise ValueError(f"vary.{name} lists a value twice: {quoted(values)}")
        if "scaling" in self.varied:
            raise ValueError("weak and strong scaling are two questions: give each a scenario of its own")
        if len(set(self.figures)) < len(self.figures):
            raise ValueError(f"figures lists a name twice: {self.figures}")
        for figure in self.figures:
            axis = FIGURES[figure].axis
            if axis and len(self.varied.get(axis, [])) < 2:
                raise ValueError(f"the figure {figure} needs two or more values of vary.{axis}")
        return self

    @property
    def varied(self) -> dict[str, list[Any]]:
        """Values per varied parameter, in the order of the parameters; the user's own last, as `args.batch_size`."""
        return flat(self.vary.model_dump(exclude_none=True))


LONGEST_NAME = 100  # characters: they name files, and temporary ones beside these, which may have 255
ScenarioName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=LONGEST_NAME)]
InputName = Annotated[str, StringConstraints(pattern=DATASET_NAME, max_length=LONGEST_NAME)]


class Experiment(Strict):
    """One configuration file."""

    results: str = Field(
        RESULTS,
        pattern=RESULTS_PATH,
        description="Folder for all results: letters, digits, spaces and `_./+@=,-`, no dash first; default: "
        "`results-NAME` for NAME.yaml, and `results` for config/config.yaml.",
    )
    time_limit_min: int = Field(
        60, ge=1, description="Time limit per run in minutes; a run that exceeds it is ended as timed_out."
    )
    timing: Literal["exclusive", "shared"] = Field(
        "exclusive",
        description="On a cluster: `exclusive` gives each run whole nodes, so that no other job disturbs the "
        "measurements; `shared` lets several jobs share a node. On a single machine, runs never overlap.",
    )
    order_seed: int = Field(
        0,
        ge=0,
        description="Seed of the order in which runs start: of scenarios that share runs every configuration once, "
        "shuffled, then again for the next repeat. Another seed reruns nothing.",
    )
    cluster: Cluster | None = Field(
        None,
        description="Hardware of the cluster's nodes (set in profiles/slurm). Without it, this machine determines "
        "which runs can run.",
    )
    modules: list[Annotated[str, Field(pattern=MODULE_NAME)]] = Field(
        default_factory=list,
        description="Environment modules that runs load, such as cuda/13.0, under `snakemake --sdm env-modules`.",
    )
    datasets: dict[InputName, Dataset] = Field(
        default_factory=lambda: {"digits": Digits(source="digits")}, description="Data sets by name."
    )
    models: dict[InputName, Model] = Field(
        default_factory=lambda: {"tiny": Model(architecture="tiny")}, description="Language models by name."
    )
    fixed: Fixed = Field(
        Fixed(),
        description="Default parameters for all scenarios; a scenario can override them, and ignores those that "
        "its workload does not have.",
    )
    scenarios: dict[ScenarioName, Scenario] = Field(min_length=1, description="Scenarios by name.")

    def workload(self, name: str) -> str:
        """Workload of a scenario."""
        return self.scenarios[name].fixed.workload or self.fixed.workload or DEFAULT_WORKLOAD


def default_results(file: Path) -> str:
    """Return the results folder of a configuration file that states none.

    Every file has a folder of its own, so that an experiment does not replace the report of another one.

    >>> default_results(Path("config/config.yaml")), default_results(Path("config/my birds.yaml"))
    ('results', 'results-my-birds')
    """
    if file.parts[-2:] == SHIPPED.parts:
        return RESULTS
    name = re.sub(r"[^\w.-]+", "-", file.stem)
    return f"{RESULTS}-{name}"


class _Schema(GenerateJsonSchema):
    """Without the titles that only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON schema of a configuration file, as `workflow/schemas/config.schema.json` holds it.

    A list under `vary` holds what `fixed` takes, by reference, so that an editor shows there too what that means.
    """
    schema = Experiment.model_json_schema(schema_generator=_Schema)
    del schema["properties"]["results"]["default"]  # it depends on the name of the file
    for parameter in schema["$defs"]["Fixed"]["properties"].values():
        del parameter["default"]
    for name, listed in schema["$defs"]["Vary"]["properties"].items():
        if name == ARGS:
            continue
        listed["items"] = {"$ref": f"#/$defs/Fixed/properties/{name}"}
        del listed["default"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
