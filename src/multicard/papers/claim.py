"""A claim of a paper, as `paper_a` and `paper_b` state the claims of the two papers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from multicard.papers.claim_tests import ClaimTest
from multicard.papers.conditions import Where

Hardware = Literal["gpu", "numa", "any"]

# The measurements that a claim is about, in words, by its `hardware`.
ABOUT: Mapping[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}


class Paper(NamedTuple):
    """A paper whose claims are checked: its name for readers, and its address."""

    name: str
    address: str


# The papers, by the letters that tables and captions call them.
PAPERS: Mapping[str, Paper] = {
    "A": Paper("Lawenda et al., arXiv 2503.15252", "https://arxiv.org/abs/2503.15252"),
    "B": Paper("Lawenda et al., arXiv 2505.22905", "https://arxiv.org/abs/2505.22905"),
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper in our words, with the tests that represent it.

    It is confirmed if all of its tests are, and refuted if one of them is.

    Attributes
    ----------
    id
        Name of the claim in tables.
    claim, paper, source
        What the paper says, which paper it is (of `PAPERS`, or several: "A, B"), and where it says so. The full texts
        were not available, so claims come from abstracts, summaries and captions.
    refuted_if
        The measurement that would refute the claim, in words.
    hardware
        The hardware on which runs must have been measured; see `ABOUT`.
    size
        Runs are judged only if they fit one of these conditions: their work must be as large as the paper's. Empty if
        work of any size may be judged.
    our_choice
        Limits and conditions of the tests that are not from the paper but chosen here, in words.
    tests
        The tests of the claim. Their intervals are corrected for the number of tests.
    """

    id: str
    claim: str
    paper: str
    source: str
    refuted_if: str
    hardware: Hardware
    size: tuple[Where, ...] = ()
    our_choice: str
    tests: tuple[ClaimTest, ...]
