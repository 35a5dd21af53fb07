"""Diagnoses of lines of the user's code that take time in no phase of a step, or between a batch and the model.

`phase_samples` says how the time at a line is measured, and `code_places` which lines are one place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts
from multicard.answers.diagnoses.diagnosis import OUTSIDE, RARE, Diagnosis
from multicard.answers.diagnoses.host.host_work import WorkOfSteps, work_of
from multicard.answers.diagnoses.user_code.code_places import MAIN_SHARE, CodePlace, places_of
from multicard.answers.diagnoses.user_code.phase_samples import (
    FEWEST_SAMPLES,
    sample_count,
    sample_rows,
    samples_in_phase,
)
from multicard.core.layout import TRANSFER
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.proportion import proportion

# Shares of lines are called lower bounds, or approximate, if fewer of the samples than this show a line.
NEARLY_ALL = 0.9
# At most so many lines are reported of a part of a step.
MOST_REPORTED = 2
# A line of a phase is reported if it surely takes this share of the phase.
LEAST_OF_PHASE = 0.2
# Work of the host that explains this share of a part, or of a line, is reported in place of the line.
EXPLAINED = 0.5

_OUTSIDE = "outside of loader, forward, backward and optimizer"
_BEFORE_MODEL = "between the batch and the first call of the model"
_IN_DATA_SET = "this preparation of data in the data set, so that workers of the loader do it"
_IN_PLACE = "an update in place, as by `torch.optim.swa_utils.AveragedModel`, instead of a copy"
_LESS_LOGGING = "less frequent logging, or a thread that writes"
# What to do about a line, by the beginnings of names of functions that it calls.
_REMEDIES = {
    ("copy.",): _IN_PLACE,
    ("json.", "csv.", "logging.", "pickle.", "yaml.", "tqdm.", "wandb.", "mlflow.", "torch.utils.tensorboard.",
     "tensorboard", "matplotlib.", "pandas."): _LESS_LOGGING,
    ("PIL.", "cv2.", "torchvision.transforms.", "torchvision.io.", "albumentations.", "transformers.tokenization"):
        _IN_DATA_SET,
    ("torch.profiler.", "torch.autograd.profiler"): "no profiler, or one with a `schedule` of a few steps",
}  # fmt: skip
# What to do about a line that calls none of these functions.
_LESS_AT_LINE = "less work at {}, or in one of many steps only"
# The ends of names of methods that copy the state of a model or of an optimizer.
_COPY_STATE = (".state_dict", ".load_state_dict")
# The module whose functions wait for the workers of a loader.
_LOADER_MODULE = "torch.utils.data."


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take most of what a step spends outside of its phases, or before the model is called."""
    yield from _outside_of_phases(configuration, results)
    yield from _before_the_model(configuration, results)


def _before_the_model(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take time between a batch and the first call of a module, as those that augment it do.

    On GPUs a line may wait there for the GPU, so that there is no diagnosis.
    """
    if configuration["device"] != "cpu":
        return
    for place in _places_beside_training(configuration, results, TRANSFER)[:MOST_REPORTED]:
        if _takes_long(place):
            evidence = f"{_share_words(place, _shows_nearly_all(configuration, results))} is at {place.words}"
            yield Diagnosis(
                f"{evidence}, {_BEFORE_MODEL}",
                _IN_DATA_SET,
                place.share.value,
                most_share=place.share.high,
            )


def _outside_of_phases(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take most of what a step spends outside of its phases, unless the host's work explains it.

    On GPUs only as far as they are idle for the host, and only calls of other libraries than PyTorch: another line may
    wait for the GPU.
    """
    is_gpu = configuration["device"] != "cpu"
    step_s = configuration.mean("iteration_time_s")
    outside_share = mean_parts(configuration).get(StepPart.HOST_ELSEWHERE if is_gpu else StepPart.OTHER, 0.0)
    # Where the forward pass is not known, it is outside of the phases, too.
    has_forward = bool(configuration.mean("forward_s"))
    if step_s is None or outside_share < LEAST or not has_forward:
        return
    work = [piece for piece in work_of(configuration, results) if piece.phase is None]
    work_s = sum(piece.seconds for piece in work)
    if work_s >= EXPLAINED * outside_share * step_s:
        return
    for place in _places_beside_training(configuration, results, None)[:MOST_REPORTED]:
        is_explained = _work_at(place, work) >= EXPLAINED * place.seconds
        may_wait_for_gpu = is_gpu and (place.called is None or place.called.startswith("torch."))
        if is_explained or may_wait_for_gpu or not _takes_long(place):
            continue
        share_words = _share_words(place, _shows_nearly_all(configuration, results))
        evidence = f"{share_words} is at {place.words}, {_OUTSIDE}"
        if is_gpu:
            evidence += f", and for {percent(outside_share)} the GPU is idle while the host makes no GPU call"
        remedy = remedy_of_call(place)
        # A GPU may be idle for another reason while the host is there, so that nothing is sure to be gained.
        is_made_rare = remedy in (None, _LESS_LOGGING) and not is_gpu
        yield Diagnosis(
            evidence,
            remedy or _LESS_AT_LINE.format(place.position),
            min(place.share.value, outside_share),
            phase=OUTSIDE,
            least_share=(1 - RARE) * (place.share.low or 0.0) if is_made_rare else None,
            most_share=min(place.share.high or 1.0, outside_share),
            is_made_rare=is_made_rare,
        )


def place_of_long_steps(configuration: Configuration, results: Results, share: float) -> CodePlace | None:
    """Return the place of what long steps take outside of the phases; None if it is not known.

    `share`: of the time, what the long steps take there. Samples do not show of which step they are. So the place has
    to take more than all other steps spend outside of the phases, and at least half of what the long ones take.
    """
    places = _places_beside_training(configuration, results, None)
    samples = samples_in_phase(configuration, results, None)
    if not places or samples is None or samples.phase_share is None or not samples.is_timed:
        return None
    place = places[0]
    if place.samples < FEWEST_SAMPLES:
        return None
    share_of_other_steps = max(0.0, samples.phase_share - share)
    least_share = place.share.low or 0.0
    is_certain = least_share > share_of_other_steps and place.share.value >= MAIN_SHARE * share
    return place if is_certain else None


def _places_beside_training(configuration: Configuration, results: Results, phase: str | None) -> list[CodePlace]:
    """Return `places_of` a phase, without those that run the passes of the model."""
    return [place for place in places_of(configuration, results, phase) if not place.drives_training]


def _takes_long(place: CodePlace) -> bool:
    """Return True if a place surely takes `LEAST` of the time."""
    has_enough_samples = place.samples >= FEWEST_SAMPLES or not place.is_timed
    return has_enough_samples and (place.share.low or 0.0) >= LEAST


def _work_at(place: CodePlace, work: Sequence[WorkOfSteps]) -> float:
    """Return the seconds of a step that the host's work takes at these lines."""
    sites = {f"{place.file}:{line}" for line in place.lines}
    return sum(piece.seconds for piece in work if piece.site in sites)


def _shows_nearly_all(configuration: Configuration, results: Results) -> bool:
    """Return True if nearly all samples of a configuration's steps came in time to show where the thread was."""
    rows = sample_rows(configuration, results)
    return bool(rows["samples_there"].sum() >= NEARLY_ALL * sample_count(rows))


def _share_words(place: CodePlace, shows_nearly_all: bool) -> str:
    """Return the share with its interval and time: "65% of a step (13.0 ms; 95% CI 55% to 74%, n=83)"."""
    share = f"{percent(place.share.value)} of a step"
    if not shows_nearly_all:
        # Samples that show no line may be at this one. The time of the phase makes up for them, but not exactly.
        share = f"about {share}" if place.is_timed else f"at least {share}"
    low, high = percent(place.share.low or 0.0), percent(place.share.high or 1.0)
    return f"{share} ({with_unit(place.seconds, SECONDS)}; 95% CI {low} to {high}, n={place.samples})"


def remedy_of_call(place: CodePlace) -> str | None:
    """Return what to do about the library function that a place calls; None if there is nothing better than less."""
    if place.called is None:
        return None
    if place.called.endswith(_COPY_STATE):
        return _IN_PLACE
    return next((remedy for prefixes, remedy in _REMEDIES.items() if place.called.startswith(prefixes)), None)


def lines_in_words(configuration: Configuration, results: Results, phase: str, name: str) -> str | None:
    """Return which lines of the user's code take most of a phase; None if that is not known.

    `name`: of the phase in a sentence. For example, `lines_in_words(configuration, results, "data", "the loading")` is
    "80% of the loading is at data.py, line 31 (`Images.__getitem__`)" where the thread that trains loads by itself.
    """
    phase_s, step_s = configuration.mean(f"{phase}_s"), configuration.mean("iteration_time_s")
    samples = samples_in_phase(configuration, results, phase)
    if samples is None or not phase_s or not step_s:
        return None
    # Samples that show no line may be of this phase, of which the clock knows how many there should be.
    seen = int(samples.in_phase["samples_there"].sum())
    expected = round(samples.total * phase_s / step_s)
    phase_samples = max(seen, expected)
    sentences = []
    for place in places_of(configuration, results, phase)[:MOST_REPORTED]:
        is_waiting = place.called is not None and place.called.startswith(_LOADER_MODULE)
        share = proportion(place.samples, phase_samples)
        if (share.low or 0.0) >= LEAST_OF_PHASE and not is_waiting and not place.drives_training:
            sentences.append(f"{percent(share.value)} of {name} is at {place.words}")
    return " and ".join(sentences) or None


@dataclass(frozen=True)
class GrownPlace:
    """A place that takes longer than in the ideal step, by so many `seconds`. Made by `grown_places`."""

    place: CodePlace
    seconds: float


def grown_places(
    configuration: Configuration, baseline: Configuration, work_share: float, results: Results
) -> list[GrownPlace]:
    """Return the places outside of the phases that surely take longer than in the ideal step, the longest first.

    `work_share`: as of `growth.Growth`. The result is empty for GPUs, because the host's time is not theirs.
    """
    step_s, baseline_step_s = configuration.mean("iteration_time_s"), baseline.mean("iteration_time_s")
    has_forward = configuration.mean("forward_s") and baseline.mean("forward_s")
    if configuration["device"] != "cpu" or step_s is None or baseline_step_s is None or not has_forward:
        return []
    baseline_rows = sample_rows(baseline, results)
    if baseline_rows.empty:
        return []
    baseline_shares = {(place.file, place.function): place.share for place in places_of(baseline, results, None)}
    # A place without samples in the baseline may take a little time there, too.
    unseen = proportion(0, sample_count(baseline_rows))
    ideal_step_s = baseline_step_s * work_share
    grown = []
    for place in _places_beside_training(configuration, results, None):
        ideal_share = baseline_shares.get((place.file, place.function), unseen)
        least_s = (place.share.low or 0.0) * step_s
        most_ideal_s = (ideal_share.high or 1.0) * ideal_step_s
        if least_s > most_ideal_s:
            grown.append(GrownPlace(place, place.seconds - ideal_share.value * ideal_step_s))
    return sorted(grown, key=lambda grown_place: -grown_place.seconds)
