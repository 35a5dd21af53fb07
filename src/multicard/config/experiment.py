"""The model of configuration files. It alone defines which keys and values a configuration file may have."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from multicard.config.cluster import Cluster
from multicard.config.figures import FIGURES, FigureName, WidthName
from multicard.config.repeats import Repeats
from multicard.config.scenario_parameters import Fixed, Vary
from multicard.core.text import quoted
from multicard.programs.datasets import Dataset, Digits, Strict
from multicard.programs.models import Model
from multicard.runs.parameter_types import DATASET_NAME
from multicard.runs.parameters import ARGS_PREFIX, DEFAULT_WORKLOAD, flat

MOST_RUNS = 100_000  # most runs of a scenario
# Limited to harmless characters, because Snakemake puts names of modules into a command line without quotes.
MODULE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+/-]*$"
# Limited because Make and Snakemake put the path into commands and into patterns of file names. A path that begins with
# a dash would be taken for an option.
RESULTS_PATH = r"^[\w./+@=,][\w./+@=,-]*( +[\w./+@=,-]+)*$"
SHIPPED = Path("config/config.yaml")  # the configuration of the demo, the default of the pipeline
RESULTS = "results"
ARCHIVE = ".tar.gz"  # suffix of an archive of recorded runs

# Names of all parameters, in the order in which tables have them.
PARAMETERS = tuple(Fixed.model_fields)


def is_parameter(column: str) -> bool:
    """Return True if a column of a table is a parameter: multicard's, or one of the user's own (`args.batch_size`)."""
    return column in PARAMETERS or column.startswith(ARGS_PREFIX)


def parameters_in(columns: Iterable[str]) -> list[str]:
    """Return the columns that are parameters: multicard's in the order of `PARAMETERS`, then the user's own."""
    names = list(columns)
    ours = [name for name in PARAMETERS if name in names]
    users_own = [name for name in names if name.startswith(ARGS_PREFIX)]
    return [*ours, *users_own]


def configuration_key(values: Mapping[str, Any], ignored: Collection[str] = ("repeat",)) -> tuple[Any, ...]:
    """Return a hashable key that is equal for runs of the same configuration: names and values of their parameters.

    `values`: a row of a table. Columns that are not parameters, and empty cells (None, NaN), are left out. `ignored`:
    parameters that are left out, too.

    >>> configuration_key({"devices": 2, "repeat": 1, "args.batch": 8, "seed": None, "elapsed_s": 3.0})
    (('devices', 2), ('args.batch', 8))
    """
    stated = ((name, values[name]) for name in parameters_in(values) if name not in ignored)
    # `value == value` is False for NaN, the empty value of DataFrames.
    return tuple((name, value) for name, value in stated if value is not None and value == value)


class Scenario(Strict):
    """A named question with fixed and varied parameters."""

    question: str = Field(min_length=1, description="What the scenario asks, in one sentence.")
    fixed: Fixed = Field(default=Fixed(), description="Parameters that all runs of the scenario share.")
    vary: Vary = Field(default=Vary(), description="Parameters whose values are combined.")
    repeats: Repeats = Field(
        default=Repeats.once(),
        description="Number of repeats of each run, or `{until: 5%}` to add repeats until all is decided.",
    )
    figures: list[FigureName] = Field(min_length=1, description="Figures to draw, by name.")

    @model_validator(mode="after")
    def _is_consistent(self) -> "Scenario":
        stated, varied = flat(self.fixed.stated()), self.varied
        if not self.fixed.model_fields_set and not varied:
            raise ValueError("an empty scenario: state parameters under fixed or vary")
        run_count = math.prod(map(len, varied.values())) * self.repeats.most
        if run_count > MOST_RUNS:
            raise ValueError(f"asks for {run_count} runs, expected {MOST_RUNS} at most")
        both = sorted(stated.keys() & varied.keys())
        if both:
            raise ValueError(f"{both[0]} is both fixed and varied")
        for name, values in varied.items():
            if len(set(values)) < len(values):
                raise ValueError(f"vary.{name} lists a value twice: {quoted(values)}")
        if len(set(self.figures)) < len(self.figures):
            raise ValueError(f"figures lists a name twice: {self.figures}")
        for figure in self.figures:
            axis = FIGURES[figure].axis
            if axis and len(varied.get(axis, [])) < 2:
                raise ValueError(f"the figure {figure} needs two or more values of vary.{axis}")
        return self

    @property
    def varied(self) -> dict[str, list[Any]]:
        """The lists of values by parameter, in the order of `PARAMETERS`; the user's own last, as `args.batch_size`."""
        return flat(self.vary.model_dump(exclude_none=True))


# Most characters of a name. Files are named after it, and so are temporary files, whose names are longer. File systems
# allow 255.
LONGEST_NAME = 100
ScenarioName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=LONGEST_NAME)]
InputName = Annotated[str, StringConstraints(pattern=DATASET_NAME, max_length=LONGEST_NAME)]


def _default_datasets() -> dict[str, Dataset]:
    return {"digits": Digits(source="digits")}


def _default_models() -> dict[str, Model]:
    return {"tiny": Model(architecture="tiny")}


class Experiment(Strict):
    """One configuration file."""

    results: str = Field(
        default=RESULTS,
        pattern=RESULTS_PATH,
        description="Folder for all results: letters, digits, spaces and `_./+@=,-`, no dash first; default: "
        "`results-NAME` for NAME.yaml, and `results` for config/config.yaml.",
    )
    time_limit_min: int = Field(
        default=60, ge=1, description="Time limit per run in minutes; a run that exceeds it is ended as timed_out."
    )
    timing: Literal["exclusive", "shared"] = Field(
        default="exclusive",
        description="On a cluster: `exclusive` gives each run whole nodes, so that no other job disturbs the "
        "measurements; `shared` lets several jobs share a node. On a single machine, runs never overlap.",
    )
    order_seed: int = Field(
        default=0,
        ge=0,
        description="Seed of the order in which runs start: of scenarios that share runs every configuration once, "
        "shuffled, then again for the next repeat. Another seed reruns nothing.",
    )
    figure_width: WidthName = Field(
        default="page",
        description="Width of figures in print: `page` is 7 inches, `column` 3.3; text has the same size in both.",
    )
    cluster: Cluster | None = Field(
        default=None,
        description="Hardware of the cluster's nodes (set in profiles/slurm). Without it, this machine determines "
        "which runs can run.",
    )
    modules: list[Annotated[str, Field(pattern=MODULE_NAME)]] = Field(
        default_factory=list,
        description="Environment modules that runs load, such as cuda/13.0, under `snakemake --sdm env-modules`.",
    )
    datasets: dict[InputName, Dataset] = Field(default_factory=_default_datasets, description="Data sets by name.")
    models: dict[InputName, Model] = Field(default_factory=_default_models, description="Language models by name.")
    fixed: Fixed = Field(
        default=Fixed(),
        description="Default parameters for all scenarios; a scenario can override them, and ignores those that "
        "its workload does not have.",
    )
    repeats: Repeats = Field(default=Repeats.once(), description="The same for scenarios that state none.")
    scenarios: dict[ScenarioName, Scenario] = Field(min_length=1, description="Scenarios by name.")

    @model_validator(mode="before")
    @classmethod
    def _with_shared_repeats(cls, config: Any) -> Any:
        """Return the configuration with its `repeats` in each scenario that states none."""
        if not isinstance(config, dict) or "repeats" not in config or not isinstance(config.get("scenarios"), dict):
            return config
        try:
            Repeats.model_validate(config["repeats"])
        except ValidationError:
            # The fault is reported once, for the key of all scenarios.
            return config
        scenarios = {
            name: {"repeats": config["repeats"]} | scenario if isinstance(scenario, dict) else scenario
            for name, scenario in config["scenarios"].items()
        }
        return config | {"scenarios": scenarios}

    def workload(self, scenario: str) -> str:
        """Return the name of the program of a scenario; `scenario`: the scenario's name.

        The section `fixed` of the scenario states it, else the section `fixed` of the file. If neither does, it is
        `DEFAULT_WORKLOAD`.

        Raises `KeyError` if the file has no such scenario.
        """
        stated = {**self.fixed.stated(), **self.scenarios[scenario].fixed.stated()}
        return stated.get("workload", DEFAULT_WORKLOAD)


def default_results(file: Path) -> str:
    """Return the results folder of a configuration file that states none.

    Files of different names have different folders, so that an experiment does not overwrite the report of another.

    >>> default_results(Path("config/config.yaml")), default_results(Path("config/my birds.yaml"))
    ('results', 'results-my-birds')
    """
    if file.parts[-2:] == SHIPPED.parts:
        return RESULTS
    name = re.sub(r"[^\w.-]+", "-", file.stem)
    return f"{RESULTS}-{name}"
