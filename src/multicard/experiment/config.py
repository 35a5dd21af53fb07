"""The configuration model: the only truth about what a configuration file may say."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.fields import FieldInfo

from multicard.experiment.parameters import DATASET_NAME, VisionParameters

SCENARIO_NAME = r"^[a-z][a-z0-9_-]*$"

# The names under which MNIST is published.
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

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


def _without_defaults(schema: dict[str, Any]) -> None:
    """Drop the defaults from a data set's schema.

    Snakemake fills in those of every kind of data set before it asks which kind fits, and then none does.
    """
    for field in schema["properties"].values():
        field.pop("default", None)


class Source(Strict):
    """Base of every data set."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    def fault(self) -> str | None:
        """Say which key the file system contradicts, as `key: what is wrong`; None where all is there."""
        return None


class SmallGreys(Source):
    """Base of the sets of small grey images: how many of them to take, and how to keep them."""

    stored_size: Annotated[
        int | None,
        Field(
            ge=8,
            le=4096,
            description="Write every image, upsampled to this edge length in pixels, as a JPEG file that training "
            "decodes; null keeps the small images in arrays.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        Field(ge=1, description="Take the first so many training images, and a fifth as many test images."),
    ] = None


class Digits(SmallGreys):
    """The 1797 handwritten 8×8 digits inside scikit-learn; nothing is downloaded."""

    source: Literal["digits"]


class Mnist(SmallGreys):
    """MNIST in its four IDX files, split as it is published."""

    source: Literal["mnist"]
    folder: Annotated[
        str,
        Field(min_length=1, description="The folder that holds the IDX files, here or in MNIST/raw, gzipped or not."),
    ]
    download: Annotated[
        bool, Field(description="Fetch the files into the folder where they are missing; false unless stated.")
    ] = False

    def files(self) -> dict[str, Path | None]:
        """The four files by the names they are published under, each where it lies; None where it does not."""
        places = [Path(self.folder) / "MNIST" / "raw", Path(self.folder)]
        found: dict[str, Path | None] = {}
        for name in MNIST_FILES:
            candidates = [place / f"{name}{suffix}" for place in places for suffix in ("", ".gz")]
            found[name] = next((path for path in candidates if path.is_file()), None)
        return found

    def fault(self) -> str | None:
        """Name the files that are missing, unless they may be downloaded."""
        missing = [name for name, path in self.files().items() if path is None]
        if missing and not self.download:
            return f"folder: {self.folder} lacks {', '.join(missing)}; download: true would fetch them"
        return None


class KaggleMnist(SmallGreys):
    """MNIST as Kaggle ships it; every tenth sample is a test image, since Kaggle keeps the test labels."""

    source: Literal["kaggle-mnist"]
    path: Annotated[
        str,
        Field(
            min_length=1,
            description="train.csv, or a folder that holds it, or one with the folders 0 to 9 of JPEG files, here or "
            "in trainingSet/trainingSet.",
        ),
    ]

    def fault(self) -> str | None:
        """Say where there is nothing at the path."""
        return None if Path(self.path).exists() else f"path: no such file or folder: {self.path}"


class ImageFolder(Source):
    """A folder with `train/<class>/<image>` and `test/<class>/<image>`."""

    source: Literal["imagefolder"]
    folder: Annotated[str, Field(min_length=1, description="The folder that holds train/ and test/.")]
    unreadable: Annotated[
        Literal["refuse", "skip"],
        Field(
            description="What becomes of images that cannot be read: `refuse` the folder, as it does unless stated, or "
            "`skip` them. In folders of more than 50 000 images only their headers are read."
        ),
    ] = "refuse"

    def fault(self) -> str | None:
        """Name the first folder that is missing."""
        folder = Path(self.folder)
        missing = [path for path in (folder, folder / "train", folder / "test") if not path.is_dir()]
        return f"folder: no such folder: {missing[0]}" if missing else None


class Synthetic(Source):
    """Random images that cost nothing to load: the upper bound of every loader."""

    source: Literal["synthetic"]
    classes: Annotated[int, Field(ge=2, description="Number of classes, 10 unless stated.")] = 10
    samples: Annotated[int, Field(ge=1, description="Training samples; a tenth as many are tested.")]


SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "imagefolder": ImageFolder,
    "kaggle-mnist": KaggleMnist,
    "mnist": Mnist,
    "synthetic": Synthetic,
}
Dataset = Annotated[Digits | ImageFolder | KaggleMnist | Mnist | Synthetic, Field(discriminator="source")]


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
        if "scaling" in self.varied:
            raise ValueError("weak and strong scaling are two questions: give each a scenario of its own")
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
