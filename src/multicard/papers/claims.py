"""The papers' claims, as resources/claims.yaml states them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from multicard.core.errors import UserError
from multicard.core.pipeline import pipeline_folder
from multicard.core.validation import first_fault
from multicard.experiment.datasets import Strict
from multicard.experiment.load import read_yaml
from multicard.experiment.workload import WORKLOADS
from multicard.papers.claim_tests import AnyTest, Where

Hardware = Literal["gpu", "numa", "any"]
Text = Annotated[str, Field(min_length=1)]
if TYPE_CHECKING:
    WorkloadName = str
else:
    WorkloadName = Literal[tuple(WORKLOADS)]

# The claims that come with multicard.
SHIPPED = pipeline_folder() / "resources" / "claims.yaml"

ABOUT: dict[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}


class Claim(Strict):
    """One claim: what a paper says, where, what would refute it, and the tests that represent it.

    `size` has the values that runs of a workload must have to be judged.
    """

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    claim: Text
    paper: Text
    source: Text
    refuted_if: Text
    hardware: Hardware
    size: dict[WorkloadName, Where] = Field(default_factory=dict)
    our_choice: str = ""
    tests: Annotated[list[AnyTest], Field(min_length=1)]


def read_claims(path: Path) -> list[Claim]:
    """Read the claims of a YAML file.

    Raises `UserError` for the first fault.
    """
    try:
        return TypeAdapter(list[Claim]).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None
