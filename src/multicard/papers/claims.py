"""The papers' claims, as resources/claims.yaml states them."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from multicard.core.errors import UserError
from multicard.core.pipeline import pipeline_folder
from multicard.experiment.datasets import Strict
from multicard.experiment.load import read_yaml
from multicard.experiment.workload import WORKLOADS
from multicard.papers.tests import KINDS, AnyTest, Where

Hardware = Literal["gpu", "numa", "any"]
Text = Annotated[str, Field(min_length=1)]

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
    size: dict[Literal[tuple(WORKLOADS)], Where] = Field(default_factory=dict)
    our_choice: str = ""
    tests: Annotated[list[AnyTest], Field(min_length=1)]


def read_claims(path: Path) -> list[Claim]:
    """Read the claims.

    Raises
    ------
    UserError
        One line per fault.
    """
    content = read_yaml(path)
    if not isinstance(content, list):
        raise UserError(f"{path}: expected a list of claims, found {type(content).__name__}")
    try:
        claims = TypeAdapter(list[Claim]).validate_python(content)
    except ValidationError as error:
        raise UserError(*(f"{path}: {_fault(each, content)}" for each in error.errors())) from None
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise UserError(f"{path}: the claim {twice[0]} is listed twice")
    return claims


def _fault(error: dict, content: list) -> str:
    """Format one pydantic error as `claim.key: found …, what is wrong`."""
    index, *keys = error["loc"]
    named = content[index].get("id", index) if isinstance(content[index], dict) else index
    place = ".".join(str(key) for key in (named, *keys) if key not in KINDS)  # pydantic's own part of the place
    match error["type"]:
        case "missing":
            return f"{place}: missing"
        case "extra_forbidden":
            return f"{place}: unknown key"
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
    return f"{place}: found {error['input']!r}, {error['msg'][0].lower()}{error['msg'][1:]}"
