"""How much faster each number of devices is, and where its steps go, in a line."""

from collections.abc import Iterable, Sequence

from multicard.analysis.bottlenecks.bottlenecks import bottlenecks, summary
from multicard.analysis.evidence import DEVICE_WORDS, Evidence
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS, speedups_of
from multicard.analysis.statistics import Interval, corrected, verdict
from multicard.core.text import counted
from multicard.core.units import number, number_in


def gains(evidence: Evidence) -> list[str]:
    """A line for each number of devices of which something is known, the smallest first.

    It says how many times as fast as one device they are, by `scaling.speedups_of`, from the slowest configuration to
    the fastest; whether the repeats show a difference, corrected for the number of configurations; and where their
    steps go (`bottlenecks.summary`), as far as that is known.
    """
    found = evidence.configurations
    ratios = speedups_of(
        (
            each.rest(BASELINE_DIFFERS),
            each.workload,
            each[each.workload.method],
            each["devices"],
            each.blocks(each.rate),
        )
        for each in found
    )
    reports = bottlenecks(evidence)
    lines = []
    completed = [(each["devices"], each["device"]) if each.completed else None for each in found]
    for devices, device in sorted({kind for kind in completed if kind}):
        at = [index for index, kind in enumerate(completed) if kind == (devices, device)]
        known = [ratio for i in at if devices > 1 and (ratio := ratios[i].over_blocks).value is not None]
        said = [*_speed(known), *summary([reports[i] for i in at])]
        if said:
            lines.append(f"{counted(devices, DEVICE_WORDS[device])}: {'; '.join(said)}")
    return lines


def _speed(ratios: Sequence[Interval]) -> Iterable[str]:
    if not ratios:
        return
    slowest, fastest = (choose(ratios, key=lambda ratio: ratio.value) for choose in (min, max))
    if len(ratios) == 1:
        yield f"speed-up {number_in(fastest.value, fastest.low, fastest.high, fastest.repeats)}"
    else:
        yield f"speed-up {number(slowest.value)} to {number(fastest.value)}"
    verdicts = [verdict(ratio) for ratio in corrected(ratios)]
    for kind, text in (("unknown", "one repeat, so a difference may be noise"), ("none", "inconclusive")):
        if count := verdicts.count(kind):
            yield text if count == len(verdicts) else f"{text} ({count} of {counted(len(verdicts), 'configuration')})"
