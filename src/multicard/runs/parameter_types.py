"""Types of parameters: the values that each parameter may have.

They are used twice. The parameters of a program (`JobParameters` and its subclasses) add defaults, labels and
descriptions. The sections `fixed` and `vary` of a configuration file (`scenario_parameters`) take a value, or a list of
values, of the same type.
"""

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, StringConstraints

from multicard.core.text import quoted
from multicard.profilers.interface import UsedProfiler

Value = TypeVar("Value")
Values = Annotated[list[Value], Field(min_length=1)]

DATASET_NAME = r"^[a-z0-9][a-z0-9-]*$"
TEXT = r"^[^\x00]*$"  # without NUL, which no argument of a program can hold

NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Text = Annotated[str, StringConstraints(pattern=TEXT)]
NonEmptyText = Annotated[str, StringConstraints(min_length=1, pattern=TEXT)]

# Parameters of every program.
WorkloadName = Literal["vision", "llm", "script"]
Device = Literal["cpu", "cuda"]
DeviceCount = Annotated[int, Field(ge=1, le=1024)]
NodeCount = Annotated[int, Field(ge=1, le=1024)]
Binding = Literal["none", "numa"]
Ablation = Literal["none", "loader", "communication", "loader+communication"]
ProfilerName = Literal["auto", UsedProfiler]

# Parameters of image classification; some of them are also parameters of the tuning of language models.
DatasetName = Annotated[str, Field(pattern=DATASET_NAME)]
ImageSize = Annotated[int, Field(ge=8, le=4096)]
StrategyName = Literal["single", "dp", "ddp", "ddp-ds", "fsdp"]
Precision = Literal["fp64", "fp32", "bf16", "fp16"]
ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
WidthMultiplier = Annotated[float, Field(gt=0, le=4)]
Scaling = Literal["weak", "strong"]
LoaderName = Literal["torch", "dali"]
Layout = Literal["nchw", "nhwc"]
Preset = Literal["paper", "tuned"]
Tf32 = Literal["default", "on", "off"]

# Parameters of the tuning of language models.
TechniqueName = Literal["lora", "qlora", "qat", "dpo", "full"]
LibraryName = Literal["trl", "torchtune"]
SequenceLength = Annotated[int, Field(ge=16)]
QatTarget = Literal["adapters", "weights"]

# Parameters of users' scripts, and of runs that are made of traces.
LauncherName = Literal["auto", "python", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "command", "traces"]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Not strict, because YAML has lists and no tuples, and a strict model refuses a list for a tuple.
Command = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
VariableNames = Annotated[tuple[VariableName, ...], Field(strict=False)]
Folder = Annotated[str, Field(min_length=1, pattern=TEXT)]


def own_value(value: Any) -> Any:
    """Return the value of a user's own parameter; text becomes a number or boolean if Python writes that so.

    So the value 32 and the text "32", which make the same command, also make the same run. Other text stays text.

    Raises `ValueError` if the value is neither text nor a number nor a boolean.

    >>> [own_value(text) for text in ("32", "1e-3", "0.001", "True", "nan")]
    [32, '1e-3', 0.001, True, 'nan']
    """
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, str):
        raise ValueError(f"found {quoted(value)}, expected text, a number or a boolean")
    if value in ("True", "False"):
        return value == "True"
    for convert in (int, float):
        try:
            number = convert(value)
        except ValueError:
            continue
        # Another spelling, such as 1e-3 or 007, stays text, because the command must get what the user wrote.
        if str(number) == value and math.isfinite(number):
            return number
    return value


OWN_NAME = r"^[a-z][a-z0-9_]*$"
OwnName = Annotated[str, StringConstraints(pattern=OWN_NAME)]
OwnValue = Annotated[Text | int | float | bool, BeforeValidator(own_value)]
OwnParameters = Annotated[dict[OwnName, OwnValue], Field(json_schema_extra={"additionalProperties": False})]
OwnLists = Annotated[dict[OwnName, Values[OwnValue]], Field(json_schema_extra={"additionalProperties": False})]
