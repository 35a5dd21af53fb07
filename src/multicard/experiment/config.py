"""The configuration model: the only truth about what a configuration file may say."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.fields import FieldInfo

from multicard.experiment.parameters import DATASET_NAME, VisionParameters

SCENARIO_NAME = r"^[a-z][a-z0-9_-]*$"

Figure = Literal["iteration_time", "speedup", "phases", "precision"]

# What must vary in a scenario for a figure to have an axis.
FIGURE_AXIS: dict[str, str] = {"iteration_time": "devices", "speedup": "devices", "precision": "precision"}


class Strict(BaseModel):
    """Base of every section: unknown keys and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _annotation(field: FieldInfo) -> Any:
    """Give a field's type with its constraints, as it can stand inside another type."""
    if field.metadata:
        return Annotated[(field.annotation, *field.metadata)]
    return field.annotation


def _fixed_model() -> type[Strict]:
    """Any part of the parameters, each at most once. `repeat` is counted by `repeats`."""
    fields: dict[str, Any] = {}
    for name, field in VisionParameters.model_fields.items():
        if name != "repeat":
            fields[name] = (_annotation(field), Field(default=field.default, description=field.description))
    return create_model("Fixed", __base__=Strict, **fields)


def _vary_model() -> type[Strict]:
    """Lists of values per parameter; the runs are their product."""
    fields: dict[str, Any] = {}
    for name, field in VisionParameters.model_fields.items():
        if name not in ("repeat", "workload"):
            values = list[_annotation(field)] | None
            fields[name] = (
                values,
                Field(default=None, min_length=1, description=f"Values of {name}, in order."),
            )
    return create_model("Vary", __base__=Strict, **fields)


Fixed = _fixed_model()
Vary = _vary_model()


class Digits(Strict):
    """The 1797 handwritten 8×8 digits inside scikit-learn; nothing is downloaded."""

    source: Literal["digits"]


class ImageFolder(Strict):
    """A folder with `train/<class>/<image>` and `test/<class>/<image>`."""

    source: Literal["imagefolder"]
    folder: Annotated[str, Field(min_length=1, description="The folder that holds train/ and test/.")]


Dataset = Annotated[Digits | ImageFolder, Field(discriminator="source")]


class Scenario(Strict):
    """A named question with fixed and varied parameters."""

    question: Annotated[str, Field(min_length=1, description="What the scenario asks, in one sentence.")]
    fixed: Annotated[Fixed, Field(description="Parameters that all runs of the scenario share.")] = Fixed()
    vary: Annotated[Vary, Field(description="Parameters whose values are combined.")] = Vary()
    repeats: Annotated[int, Field(ge=1, le=1000, description="Repetitions of each run.")] = 1
    figures: Annotated[list[Figure], Field(min_length=1, description="Figures to draw, by name.")]

    @model_validator(mode="after")
    def _has_something_to_run(self) -> "Scenario":
        if not self.fixed.model_fields_set and not self.varied:
            raise ValueError("an empty scenario: state parameters under fixed or vary")
        both = sorted(self.fixed.model_fields_set & self.varied.keys())
        if both:
            raise ValueError(f"{both[0]} is both fixed and varied")
        for name, values in self.varied.items():
            if len(set(values)) < len(values):
                raise ValueError(f"vary.{name} lists a value twice: {values}")
        if len(set(self.figures)) < len(self.figures):
            raise ValueError(f"figures lists a name twice: {self.figures}")
        for figure in self.figures:
            axis = FIGURE_AXIS.get(figure)
            if axis and len(self.varied.get(axis, [])) < 2:
                raise ValueError(f"the figure {figure} needs two or more values of vary.{axis}")
        return self

    @property
    def varied(self) -> dict[str, list[Any]]:
        """Values per varied parameter, in the order of the parameters."""
        return self.vary.model_dump(exclude_none=True)


ScenarioName = Annotated[str, StringConstraints(pattern=SCENARIO_NAME)]
DatasetName = Annotated[str, StringConstraints(pattern=DATASET_NAME)]


class Experiment(Strict):
    """One configuration file."""

    results: Annotated[str, Field(min_length=1, description="Folder that takes all that is made.")] = "results"
    time_limit_min: Annotated[
        int, Field(ge=1, description="Minutes after which a run is ended; its outcome is then timed_out.")
    ] = 60
    datasets: Annotated[
        dict[DatasetName, Dataset],
        Field(description="Data sets by name."),
    ] = {"digits": Digits(source="digits")}
    fixed: Annotated[Fixed, Field(description="Parameters of every scenario, unless it states its own.")] = Fixed()
    scenarios: Annotated[dict[ScenarioName, Scenario], Field(min_length=1, description="The questions, by name.")]


def json_schema() -> dict[str, Any]:
    """JSON schema of a configuration file, as `workflow/schemas/config.schema.json` holds it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Experiment.model_json_schema()}
