"""The verdict on a job, made by `multicard.launch`."""

from typing import NamedTuple

from multicard.core.layout import Outcome
from multicard.core.reasons import Reason


class Verdict(NamedTuple):
    """The outcome of a job, and the reason for it; the reason is None if the job completed."""

    outcome: Outcome
    reason: Reason | None = None


COMPLETED = Verdict("completed")
