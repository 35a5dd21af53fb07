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
    configuration, baseline = speedup.configuration, speedup.baseline
    if baseline is None or speedup.mean is None or configuration["devices"] == 1:
        return None
    if speedup.mean.value / configuration["devices"] <= MOST_EFFICIENCY:
        return None
    device = DEVICE_WORDS[configuration["device"]]
    devices, one = counted(configuration["devices"], device), counted(1, device)
    reasons = [*_differences(configuration, baseline), *_doubts_of_baseline(baseline)]
    return f"{devices} are more than ideal, so look at {one}: {'; '.join(reasons) or _UNKNOWN}"


def _differences(configuration: Configuration, baseline: Configuration) -> Iterator[str]:
    """Yield in which respects a device among several does not do what one device alone does."""
    samples, samples_alone = samples_per_device(configuration), samples_per_device(baseline)
    if samples and samples_alone and not is_same_work(samples, samples_alone):
        yield f"it computes {_samples(samples_alone)} in a step, each of several {_samples(samples)}"
    threads, threads_alone = configuration.mean("intraop_threads"), baseline.mean("intraop_threads")
    if threads and threads_alone and threads > threads_alone:
        alone, several = counted(round(threads_alone), "thread"), counted(round(threads), "thread")
        yield f"it computes with {alone}, each of several with {several}"


def _doubts_of_baseline(baseline: Configuration) -> Iterator[str]:
    """Yield what may have made the runs on one device slow, and that there is one run only."""
    memory, available = peak_memory(baseline), baseline.provenance.gpu_memory_bytes
    if baseline["device"] == "cuda" and memory and available and memory >= FULL * available:
        yield f"{percent(memory / available)} of its memory was used"
    runs = baseline.completed
    notices = [notices_by_subject(run.values) for run in runs]
    counts = {
        f"was {DISTURBED}": sum(DISTURBED in subjects for subjects in notices),
        f"was {NOT_STATIONARY}": sum(NOT_STATIONARY in subjects for subjects in notices),
        "had stalled steps": sum(bool(run.values.get("stalled_steps")) for run in runs),
    }
    doubts = {words: count for words, count in counts.items() if count}
    if len(runs) > 1:
        yield from (f"in {count} of {len(runs)} runs it {words}" for words, count in doubts.items())
    else:
        yield f"its only run {listed(list(doubts))}" if doubts else "it ran only once"


def _samples(count: float) -> str:
    """Return a number of samples in words; numbers of other units of work are named so, too."""
    return counted(round(count), "sample") if round(count) == count else f"{number(count)} samples"
