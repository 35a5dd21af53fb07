"""What grew: why a step on several devices takes longer than one device needs for the same work, part by part.

With ideal scaling, a device among several computes a sample as fast as one device alone. Then a step takes as long as
the baseline's step on one device, times the samples that a device computes in it over those in the baseline's
(`Growth.work_share`): 1 if every device computes as much as before (weak scaling), 1 / devices if the devices share the
work (strong scaling). This is the ideal step; what the step takes beyond it has grown.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from multicard.answers.answer import GREW, Answer
from multicard.answers.diagnoses.host.host_work import WorkOfSteps
from multicard.answers.diagnoses.user_code.code_lines import GrownPlace
from multicard.answers.doubt import scatter_words
from multicard.answers.phases import parts_of_mean_step, phases_of
from multicard.answers.pools import pool_of
from multicard.answers.scaling.speedup import speedups_of
from multicard.answers.scaling.work import STEP_TIME, is_same_work, samples_per_device
from multicard.core.layout import DATA, TRANSFER
from multicard.core.text import counted, listed
from multicard.core.units import duration
from multicard.core.values import Row
from multicard.results.breakdown import StepPart, parts_of
from multicard.results.configuration import DEVICE_WORDS, Configuration, MeasuredRun
from multicard.stats.interval import Interval, interval_columns, verdict

# A part is named if it grew by at least this share of what the step grew by, or shrank by as much.
NAMED = 0.1
# A step has grown if it is at least so many times as long as the ideal one, and not shown to be no longer.
LEAST_RATIO = 1.05
# A part is the only one named if its growth differs from that of the step by less than this share.
NEARLY_ALL = 0.05
# Work of the host, or a line of code, explains a part if it takes at least this share of what the part grew by.
EXPLAINED = 0.5
# A sentence names at most this many parts.
MOST_PARTS = 3

# The phases in which a rank computes, and their names in a sentence.
_COMPUTING = {"forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer"}
# Names of parts in a sentence, after "48 ms"; the other parts are in "in" and their name.
_NAMES = {
    **_COMPUTING,
    StepPart.DATA: "waiting for data",
    StepPart.RANKS: "waiting for other ranks",
    StepPart.OTHER: "outside of forward, backward and optimizer",
    StepPart.HOST_ELSEWHERE: "while the host makes no GPU call",
    StepPart.STALLS: "in stalled steps",
}

# The names of phases that are a `StepPart` by another name.
_PART_OF_PHASE = {DATA: StepPart.DATA, TRANSFER: StepPart.MEMORY_OPERATIONS}

# Seconds of a step by the name of the part: a `StepPart`, or a phase of `_COMPUTING`.
Parts = Mapping[str, float]


@dataclass(frozen=True)
class Growth:
    """How much longer a step on several devices takes than the ideal step. Made by `growths`.

    Parts are means over repeats by `parts_of_mean_step`, as in the figure `step_breakdown`: they add up to the
    iteration time that all tables and figures show.
    """

    configuration: Configuration
    baseline: Configuration
    # Samples that a device computes in a step, over those that it computes in a step of the baseline.
    work_share: float
    # Time of the step over that of the ideal step.
    ratio: Interval

    @cached_property
    def step_s(self) -> Parts:
        """Seconds of each part of the step."""
        return _mean_parts(self.configuration)

    @cached_property
    def ideal_s(self) -> Parts:
        """Seconds of each part of the ideal step."""
        return {name: seconds * self.work_share for name, seconds in _mean_parts(self.baseline).items()}

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds by which each part of the step is longer than in the ideal step, the largest first.

        Empty if the parts of either step are not known, or if a trace divides only one of the two steps.
        """
        if not self.step_s or not self.ideal_s or _is_traced(self.configuration) != _is_traced(self.baseline):
            return {}
        names = dict.fromkeys((*self.step_s, *self.ideal_s))
        grown = {name: self.step_s.get(name, 0.0) - self.ideal_s.get(name, 0.0) for name in names}
        return dict(sorted(grown.items(), key=lambda item: -item[1]))

    @property
    def seconds(self) -> float | None:
        """Seconds by which the step is longer than the ideal step; None if its parts are not known."""
        return sum(self.parts.values()) if self.parts else None

    @property
    def is_shown(self) -> bool:
        """True if the step has grown. A single repeat shows it, too, with no interval."""
        return self.ratio.value >= LEAST_RATIO and verdict(self.ratio) in ("more", "unknown")

    @property
    def words_of_doubt(self) -> str:
        """The words before the answer if the growth is not shown; empty if it is.

        The step may have grown, and the repeats do not decide it; or it takes about as long as the ideal one.
        """
        if self.is_shown:
            return ""
        return "not decided: " if verdict(self.ratio) == "none" and self.ratio.value >= LEAST_RATIO else "little: "

    def answer(
        self, work: Sequence[WorkOfSteps] = (), places: Sequence[GrownPlace] = (), caveats: tuple[str, ...] = ()
    ) -> Answer:
        """Return in one sentence how much longer than the ideal step the step is, and which parts of it are.

        `work`: the host's work that takes longer than in the baseline (`grown_work`). A part is said to be in it if the
        work explains at least `EXPLAINED` of its growth. `places`: places of the code outside of the phases, likewise
        (`grown_places`); they are told if no work of the host explains this part.
        """
        devices = counted(self.configuration["devices"], DEVICE_WORDS[self.configuration["device"]])
        if scattered := scatter_words(self.ratio):
            sentence = f"step times on {devices} and on one are {scattered}"
            return Answer(GREW, sentence, tuple(self._rows()), caveats, "step_breakdown")
        base = "as on one" if self.work_share == 1 else "as its share of the work on one"
        sentence = f"on {devices} a step takes {self.ratio.format(unit=f'× as long {base}')}"
        if self.seconds is not None and self.seconds > 0:
            sentence += f": {self._parts_words(self.seconds, work, places)}"
        return Answer(GREW, sentence, tuple(self._rows()), caveats, "step_breakdown")

    def _parts_words(self, growth_s: float, work: Sequence[WorkOfSteps], places: Sequence[GrownPlace]) -> str:
        """Return by how much the whole step grew, `growth_s`, which parts grew most, and which became much shorter."""
        # `parts` has what grew most first.
        named_s = NAMED * growth_s
        grown = [part for part, seconds in self.parts.items() if seconds >= named_s][:MOST_PARTS]
        shrunk = [part for part, seconds in self.parts.items() if seconds <= -named_s][-MOST_PARTS:]
        largest_s = next(iter(self.parts.values()))
        is_one_part = abs(largest_s - growth_s) < NEARLY_ALL * growth_s
        if is_one_part and not shrunk:
            return f"{duration(growth_s)} more {self._explained(grown[0], work, places)}"
        words = f"{duration(growth_s)} more"
        if grown:
            more = [f"{duration(self.parts[part])} {self._explained(part, work, places)}" for part in grown]
            words += f", {listed(more)}"
        if shrunk:
            most_shrunk_first = reversed(shrunk)
            less = [f"{duration(-self.parts[part])} less {self._name(part)}" for part in most_shrunk_first]
            words += f", but {listed(less)}"
        return words

    def _explained(self, part: str, work: Sequence[WorkOfSteps], places: Sequence[GrownPlace]) -> str:
        """Return the name of a part, with the work or the place that makes it longer, if that is known."""
        phase = None if part == StepPart.OTHER else part
        causes = [] if _is_traced(self.configuration) else [piece for piece in work if piece.phase == phase]
        is_explained = sum(cause.seconds for cause in causes) >= EXPLAINED * self.parts[part]
        name = self._name(part)
        if causes and is_explained:
            return f"{name}, in {causes[0].words}"
        if part == StepPart.OTHER and places and places[0].seconds >= EXPLAINED * self.parts[part]:
            return f"{name}, at {places[0].place.words}"
        return name

    def _name(self, part: str) -> str:
        """Return the name of a part as it follows a time in a sentence."""
        if part == StepPart.OTHER and _is_traced(self.configuration):
            return "idle for a reason that the trace does not show"
        return _NAMES.get(part, f"in {part}")

    def _rows(self) -> list[Row]:
        of_step = {
            "devices": self.configuration["devices"],
            "repeats": self.ratio.repeats,
            **interval_columns("step_ratio", self.ratio),
        }
        return [
            {
                **of_step,
                "part": str(name),
                "step_s": self.step_s.get(name, 0.0),
                "ideal_s": self.ideal_s.get(name, 0.0),
                "grown_s": grown_s,
            }
            for name, grown_s in self.parts.items()
        ]


def growths(configurations: Sequence[Configuration], beside: Sequence[Configuration] = ()) -> dict[Hashable, Growth]:
    """Return the growth of the step of each configuration on several devices, by the configuration's key.

    A configuration without a baseline on one device has none, nor has one whose work per device is not known, there or
    in the baseline. Intervals follow from the scatter of the step times of all given configurations of the
    same scenario, those of `beside` included, which have no growth.
    """
    pool = pool_of(STEP_TIME, configurations, beside)
    by_configuration: dict[Hashable, Growth] = {}
    for speedup in speedups_of(configurations):
        configuration, baseline = speedup.configuration, speedup.baseline
        if baseline is None or configuration["devices"] == 1:
            continue
        work, baseline_work = samples_per_device(configuration), samples_per_device(baseline)
        if not work or not baseline_work:
            continue
        share = _rounded(work / baseline_work, configuration["devices"])
        of_baseline = pool.ratio(configuration.key, baseline.key, against=share)
        if of_baseline is not None:
            by_configuration[configuration.key] = Growth(configuration, baseline, share, _divided(of_baseline, share))
    return by_configuration


def _divided(ratio: Interval, divisor: float) -> Interval:
    return ratio.map(lambda times: times / divisor)


def _rounded(share: float, devices: int) -> float:
    """Return 1 or 1 / devices for a share that differs from it as last batches and lengths of texts differ."""
    for exact in (1.0, 1 / devices):
        if is_same_work(share, exact):
            return exact
    return share


def _mean_parts(configuration: Configuration) -> dict[str, float]:
    """Return the seconds of each part of the mean step of the completed runs; empty if no run shows its parts.

    They add up to the iteration time; see `Growth`.
    """
    return parts_of_mean_step([_parts_s(run) for run in configuration.completed], configuration.mean(STEP_TIME))


def _parts_s(run: MeasuredRun) -> Parts:
    """Return the seconds of each part of a run's step; empty if they are not known.

    They are the parts of a trace that divides the step, else the phases.
    """
    step_s = run.number(STEP_TIME)
    if step_s is None:
        return {}
    if _has_traced_parts(run):
        return {part: share * step_s for part, share in parts_of(run.values).items()}
    return {_PART_OF_PHASE.get(phase, phase): seconds for phase, seconds in phases_of(run).items()}


def _has_traced_parts(run: MeasuredRun) -> bool:
    """Return True if a trace divides the run's step: then it says how long a GPU was idle for launches."""
    return run.number(StepPart.LAUNCHES.column) is not None


def _is_traced(configuration: Configuration) -> bool:
    return any(_has_traced_parts(run) for run in configuration.completed)
