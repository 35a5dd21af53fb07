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
# A type checker cannot evaluate names that are known only when the program runs.
if TYPE_CHECKING:
    WorkloadName = str
else:
    WorkloadName = Literal[tuple(WORKLOADS)]

# The claims that come with multicard.
SHIPPED = pipeline_folder() / "resources" / "claims.yaml"

# The measurements that a claim is about, in words, by its `hardware`.
ABOUT: dict[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}


class Claim(Strict):
    """A claim of a paper, with the tests that represent it; an entry of the file of claims.

    Attributes
    ----------
    id
        Name of the claim in tables.
    claim, paper, source
        What the paper says, which paper it is, and where it says so.
    refuted_if
        What would refute the claim, in words.
    hardware
        The hardware on which runs must have been measured; see `ABOUT`.
    size
        For each workload the values that its runs must have to be judged. Runs of a workload that is not named here
        need no particular values.
    our_choice
        Limits and conditions of the tests that are not from the paper but chosen here, in words.
    tests
        The tests of the claim. Their intervals are corrected for the number of tests.
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

    Raises `UserError` that names the first fault, if there is one.
    """
    try:
        return TypeAdapter(list[Claim]).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None
