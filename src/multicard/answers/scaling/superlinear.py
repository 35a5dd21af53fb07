"""Why a speed-up may be more than ideal: what the runs themselves show of a slow baseline, or of unlike work."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import FULL, peak_memory
from multicard.answers.scaling.speedup import MOST_EFFICIENCY, Speedup
from multicard.answers.scaling.work import is_same_work, samples_per_device
from multicard.core.text import counted, listed
from multicard.core.units import number, percent
from multicard.results.configuration import DEVICE_WORDS, Configuration
from multicard.results.notices import DISTURBED, NOT_STATIONARY, notices_by_subject

# What to look at where the runs show no reason.
_UNKNOWN = "check that it does the same work and does not lack memory"


def superlinear_caveat(speedup: Speedup) -> str | None:
    """Return in words that a speed-up is more than ideal, with what the runs show of the reasons; None if it is not."""
    configuration = speedup.configuration
    baseline = speedup.baseline
    device_count = configuration["devices"]
    if baseline is None or speedup.mean is None or device_count == 1:
        return None
    efficiency = speedup.mean.value / device_count
    if efficiency <= MOST_EFFICIENCY:
        return None
    device = DEVICE_WORDS[configuration["device"]]
    reasons = [*_differences(configuration, baseline), *_doubts_of_baseline(baseline)]
    explanation = "; ".join(reasons) if reasons else _UNKNOWN
    return f"{counted(device_count, device)} are more than ideal, so look at {counted(1, device)}: {explanation}"


def _differences(configuration: Configuration, baseline: Configuration) -> Iterator[str]:
    """Yield in which respects a device among several does not do what one device alone does."""
    samples_alone = samples_per_device(baseline)
    samples_of_several = samples_per_device(configuration)
    if samples_alone and samples_of_several and not is_same_work(samples_of_several, samples_alone):
        yield f"it computes {_samples(samples_alone)} in a step, each of several {_samples(samples_of_several)}"

    threads_alone = baseline.mean("intraop_threads")
    threads_of_several = configuration.mean("intraop_threads")
    # Fewer threads make several devices slower, which explains no gain.
    if threads_alone and threads_of_several and threads_of_several > threads_alone:
        alone = counted(round(threads_alone), "thread")
        several = counted(round(threads_of_several), "thread")
        yield f"it computes with {alone}, each of several with {several}"


def _doubts_of_baseline(baseline: Configuration) -> Iterator[str]:
    """Yield what may have made the runs on one device slow, and that there is one run only."""
    memory_share = _gpu_memory_share(baseline)
    if memory_share is not None and memory_share >= FULL:
        yield f"{percent(memory_share)} of its memory was used"

    runs = baseline.completed
    subjects_by_run = [notices_by_subject(run.values) for run in runs]
    run_counts = {
        f"was {DISTURBED}": sum(DISTURBED in subjects for subjects in subjects_by_run),
        f"was {NOT_STATIONARY}": sum(NOT_STATIONARY in subjects for subjects in subjects_by_run),
        "had stalled steps": sum(bool(run.values.get("stalled_steps")) for run in runs),
    }
    problems = [words for words, count in run_counts.items() if count]
    if len(runs) > 1:
        for words in problems:
            yield f"in {run_counts[words]} of {len(runs)} runs it {words}"
    elif problems:
        yield f"its only run {listed(problems)}"
    else:
        yield "it ran only once"


def _gpu_memory_share(configuration: Configuration) -> float | None:
    """Return which share of a GPU's memory was used at most; None on CPUs, and if it is not known."""
    used = peak_memory(configuration)
    available = configuration.provenance.gpu_memory_bytes
    if configuration["device"] != "cuda" or not used or not available:
        return None
    return used / available


def _samples(count: float) -> str:
    """Return a number of samples in words; numbers of other units of work are named so, too."""
    return counted(round(count), "sample") if round(count) == count else f"{number(count)} samples"
