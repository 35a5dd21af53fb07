"""The verdict on a job: given by the launcher, and refined by what the job's workload knows."""

from typing import NamedTuple

from multicard.core.layout import Outcome
from multicard.core.reasons import Reason


class Verdict(NamedTuple):
    """The outcome of a job, and the reason unless it completed."""

    outcome: Outcome
    reason: Reason | None = None


COMPLETED = Verdict("completed")
