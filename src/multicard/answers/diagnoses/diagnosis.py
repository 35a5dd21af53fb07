"""`Diagnosis`: a cause of lost time in a step."""

from dataclasses import dataclass

from multicard.answers.gain import gain_without

# The largest share of the time of which a gain is told: without a cause that takes nearly all, the rest is too
# uncertain.
MOST = 0.95
# Name of the time of a step that is in none of its phases.
OUTSIDE = "outside"


@dataclass(frozen=True)
class Diagnosis:
    """A cause of lost time in the steps of a configuration. Texts are plain and without a full stop."""

    # What takes the time, how much, and where in the user's code, with numbers.
    evidence: str
    # What to do instead, in Markdown.
    remedy: str
    # Share of the time of the training that the cause takes, from 0 to 1; None if that is not known.
    share: float | None
    # Share by which the cause is ordered if its share is not known; None if it comes after those with a known share.
    assumed_share: float | None = None
    # Name of the part of the step that it explains, such as "launch overhead"; None if it explains no part as a whole.
    part: str | None = None
    # Phase of the step that the time is lost in, or `OUTSIDE`; None if it is in several, or not known.
    phase: str | None = None

    @property
    def order_share(self) -> float | None:
        """The share by which causes are ordered, the largest first; None for those that come last."""
        return self.assumed_share if self.share is None else self.share

    @property
    def gain(self) -> float | None:
        """The speed of the job without the cause over its speed with it, if nothing else changed (`gain_without`).

        It is the most that the remedy can gain. None if the share is not known, or larger than `MOST`.

        >>> Diagnosis("", "", share=0.75).gain
        4.0
        """
        return None if self.share is None or self.share > MOST else gain_without(self.share)

    @property
    def sentence(self) -> str:
        """The remedy with its reason and, if it is known, its gain."""
        return f"{self.remedy}, since {self.cause}"

    @property
    def cause(self) -> str:
        """The evidence and, if it is known, the gain."""
        if self.gain is None:
            return self.evidence
        return f"{self.evidence}; up to {self.gain:.2f}× as fast without it"
