"""Types of parameters: the values that each may have, declared once for jobs and for the configuration files of users.

A workload's parameters (`JobParameters` and its subclasses) add defaults, labels and descriptions to these types; the
sections `fixed` and `vary` of a configuration (`scenario_parameters`) take the same values, stated or listed.
"""

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, StringConstraints

from multicard.core.text import quoted
from multicard.profilers.interface import UsedProfiler

Value = TypeVar("Value")
Values = Annotated[list[Value], Field(min_length=1)]

DATASET_NAME = r"^[a-z0-9][a-z0-9-]*$"
TEXT = r"^[^\x00]*$"  # no argument of a program holds a NUL

NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Text = Annotated[str, StringConstraints(pattern=TEXT)]
NonEmptyText = Annotated[str, StringConstraints(min_length=1, pattern=TEXT)]

# Every workload.
WorkloadName = Literal["vision", "llm", "script", "adopted"]
Device = Literal["cpu", "cuda"]
DeviceCount = Annotated[int, Field(ge=1, le=1024)]
NodeCount = Annotated[int, Field(ge=1, le=1024)]
Binding = Literal["none", "numa"]
Ablation = Literal["none", "loader", "communication", "loader+communication", "host", "communication+host"]
ProfilerName = Literal["auto", UsedProfiler]

# Image classification, and what it shares with the tuning of language models.
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

# Tuning of language models.
TechniqueName = Literal["lora", "qlora", "qat", "dpo", "full"]
SequenceLength = Annotated[int, Field(ge=16)]
QatTarget = Literal["adapters", "weights"]

# Scripts of users, and traces of programs that multicard did not launch.
LauncherName = Literal["auto", "python", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "command"]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# YAML has lists and no tuples, which strict models would refuse.
Command = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
VariableNames = Annotated[tuple[VariableName, ...], Field(strict=False)]
Folder = Annotated[str, Field(min_length=1, pattern=TEXT)]
ProgramName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,39}$")]


def own_value(value: Any) -> Any:
    """Return the value of a user's own parameter, with text that spells a number or boolean converted to it.

    Equal commands are then equal runs, however their values are written. Raises `ValueError` if the value is neither
    text nor a number nor a boolean.

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
        # Other spellings, such as 1e-3 or 007, stay text: the command gets what the user wrote.
        if str(number) == value and math.isfinite(number):
            return number
    return value


OWN_NAME = r"^[a-z][a-z0-9_]*$"
OwnName = Annotated[str, StringConstraints(pattern=OWN_NAME)]
OwnValue = Annotated[Text | int | float | bool, BeforeValidator(own_value)]
OwnParameters = Annotated[dict[OwnName, OwnValue], Field(json_schema_extra={"additionalProperties": False})]
OwnLists = Annotated[dict[OwnName, Values[OwnValue]], Field(json_schema_extra={"additionalProperties": False})]
