"""The kinds of jobs, and what each is told."""

from typing import Any

from multicard.experiment.llm_parameters import LlmParameters
from multicard.experiment.parameters import JobParameters
from multicard.experiment.vision_parameters import VisionParameters

WORKLOADS: dict[str, type[JobParameters]] = {"vision": VisionParameters, "llm": LlmParameters}

# Names of all parameters, those of the first workload first.
PARAMETERS = tuple(dict.fromkeys(name for model in WORKLOADS.values() for name in model.model_fields))


def parameters_of(values: dict[str, Any]) -> JobParameters:
    """Parameters of the workload that `values` names, `vision` unless stated."""
    return WORKLOADS[values.get("workload", "vision")].model_validate(values)
