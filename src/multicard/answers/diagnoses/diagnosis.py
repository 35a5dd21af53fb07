"""`Diagnosis`: a cause of lost time in a step."""

from dataclasses import dataclass

from multicard.answers.gain import gain_without

# The largest share of the time of which a gain is told: without a cause that takes nearly all, the rest is too
# uncertain.
MOST = 0.95
# What a remedy does more rarely, it does at most so often: in one of 20 steps.
RARE = 1 / 20
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
    # The least and the largest share that goes with the remedy; None for one that is not known. If both are None, the
    # largest is `share`, and the least is not known, because the remedy may leave some of it or add work of its own.
    least_share: float | None = None
    most_share: float | None = None
    # True if the remedy is to do more rarely what takes the time, as logging: `least_share` then leaves `RARE` of it.
    is_made_rare: bool = False

    @property
    def order_share(self) -> float | None:
        """The share by which causes are ordered, the largest first; None for those that come last."""
        return self.assumed_share if self.share is None else self.share

    @property
    def gain(self) -> float | None:
        """The speed of the job without the cause over its speed with it, if nothing else changed (`gain_without`).

        None if the share is not known, or larger than `MOST`. `gain_words` has its bounds.

        >>> Diagnosis("", "", share=0.75).gain
        4.0
        """
        return None if self.share is None or self.share > MOST else gain_without(self.share)

    @property
    def gain_words(self) -> str:
        """The least and the largest gain in words, as far as they are known; empty if the gain is not known.

        >>> Diagnosis("", "", share=0.75).gain_words, Diagnosis("", "", share=0.75, least_share=0.75).gain_words
        ('up to 4.00× as fast without it', 'at least 4.00× as fast without it')
        >>> Diagnosis("", "", share=0.75, least_share=0.7, most_share=0.8).gain_words
        '3.33 to 5.00× as fast without it'

        If a line takes 50%, and a 20th of it stays, 47.5% go, so that 52.5% of the step are left: 1 / 0.525.

        >>> Diagnosis("", "", share=0.5, least_share=0.475, most_share=0.5, is_made_rare=True).gain_words
        'at least 1.90× as fast with a 20th of it, up to 2.00× without it'
        """
        if self.share is None or self.gain is None:
            return ""
        least = None if self.least_share is None else f"{gain_without(self.least_share):.2f}"
        has_bounds = self.least_share is not None or self.most_share is not None
        most_share = self.most_share if has_bounds else self.share
        most = None if most_share is None or most_share > MOST else f"{gain_without(most_share):.2f}"
        if least is None:
            return f"up to {most}× as fast without it" if most else ""
        if most is None:
            return f"at least {least}× as fast without it"
        if self.is_made_rare:
            return f"at least {least}× as fast with a {1 / RARE:.0f}th of it, up to {most}× without it"
        return f"{least} to {most}× as fast without it"

    @property
    def sentence(self) -> str:
        """The remedy with its reason and, if it is known, its gain."""
        return f"{self.remedy}, since {self.cause}"

    @property
    def cause(self) -> str:
        """The evidence and, if it is known, the gain."""
        return f"{self.evidence}; {self.gain_words}" if self.gain_words else self.evidence
