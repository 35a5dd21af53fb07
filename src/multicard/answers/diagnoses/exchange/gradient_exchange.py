"""Diagnoses of how `DistributedDataParallel` exchanges gradients and buffers."""

import math
from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.training_setup import grown_share, growth_of, is_small
from multicard.answers.scaling.growth import Growth
from multicard.core.layout import BACKWARD
from multicard.core.text import counted
from multicard.core.units import BYTES, number, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup

# The size of a bucket by default: `bucket_cap_mb=25`.
_DEFAULT_BUCKET = 25 * 2**20
# Buckets are small if there are more than so many, of less than so many bytes on average.
_MANY_BUCKETS = 20
_SMALL_BUCKET = 1_000_000
# Bytes that the slowest network in use for training transfers in a second: 1 Gbit/s.
_SLOWEST_NETWORK = 125_000_000
# Exchanges are needless if they are at least so many in a step, so that single ones at the end of passes do not count.
_LEAST_NEEDLESS = 0.5
# Buffers matter if they have at least this share of the bytes of the gradients. Statistics of batch norm have less.
_LARGE_BUFFERS = 0.1


def diagnoses(configuration: Configuration, results: Results, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield what exchanging costs more than it must.

    The time of exchanges is not known by itself. At most it is that by which the phase with them is longer than on one
    device; where that was not measured, or a trace divides the step, the share is None.
    """
    if configuration["devices"] == 1 or setup.wrapper != "DistributedDataParallel":
        return
    yield from _accumulating(configuration, results, setup)
    yield from _searching(setup)
    yield from _broadcasting(configuration, results, setup)
    yield from _small_buckets(configuration, results, setup)


def _accumulating(configuration: Configuration, results: Results, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that gradients are exchanged before all passes have added to them."""
    exchanged, needless = setup.exchanged_passes, setup.needless_exchanges
    if not exchanged or needless is None or needless < _LEAST_NEEDLESS:
        return
    # A communication hook may exchange less often than its passes say.
    is_confirmed = setup.collectives is None or setup.collectives >= exchanged * (setup.buckets or 1)
    share = grown_share(configuration, results, "backward")
    share = None if share is None else share * needless / exchanged
    if not is_confirmed or is_small(share):
        return
    size = f" ({with_unit(setup.gradient_bytes, BYTES)})" if setup.gradient_bytes else ""
    evidence = (
        f"all ranks exchange their gradients{size} in {_number(exchanged)} backward passes of a step, of which "
        f"{_number(needless)} are followed by one that adds to the same gradients"
    )
    remedy = "`no_sync()` of the model around the forward and backward passes of a step before its last ones"
    yield Diagnosis(evidence, remedy, share)


def _searching(setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that each step searches for unused parameters, of which there are none."""
    if setup.finds_unused and setup.has_unused is False:
        evidence = "each forward pass searches the graph for unused parameters, and none was found"
        yield Diagnosis(evidence, "`find_unused_parameters=False`, if every step uses all parameters", None)


def _broadcasting(configuration: Configuration, results: Results, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that each forward pass sends large buffers."""
    size = setup.broadcast_bytes
    if not size or not setup.gradient_bytes or size < _LARGE_BUFFERS * setup.gradient_bytes:
        return
    share = grown_share(configuration, results, "forward")
    if is_small(share):
        return
    evidence = (
        f"each forward pass sends {with_unit(size, BYTES)} of buffers to all ranks, beside "
        f"{with_unit(setup.gradient_bytes, BYTES)} of gradients"
    )
    remedy = "`broadcast_buffers=False`, if buffers do not change, or all ranks change them alike"
    yield Diagnosis(evidence, remedy, share)


def _small_buckets(configuration: Configuration, results: Results, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that gradients are exchanged in many small buckets because the script limits their size."""
    size, buckets, limit = setup.gradient_bytes, setup.buckets, setup.bucket_limit_bytes
    if not size or not buckets or limit is None or limit >= _DEFAULT_BUCKET:
        return
    if buckets <= _MANY_BUCKETS or size / buckets >= _SMALL_BUCKET:
        return
    needed = math.ceil(size / _DEFAULT_BUCKET)
    share = grown_share(configuration, results, BACKWARD)
    share = None if share is None else share * (1 - needed / buckets)
    if is_small(share):
        return
    evidence = (
        f"{with_unit(size, BYTES)} of gradients are exchanged in {buckets} buckets of "
        f"{with_unit(size / buckets, BYTES)} on average"
    )
    remedy = f"a larger `bucket_cap_mb` (25 by default, which makes {counted(needed, 'bucket')})"
    growth = growth_of(configuration, results)
    if share is None or growth is None:
        yield Diagnosis(evidence, remedy, None)
        return
    least, most = _share_of_small_buckets(growth, size, buckets, needed)
    yield Diagnosis(evidence, remedy, share, least_share=min(least, share), most_share=max(most, share))


def _share_of_small_buckets(growth: Growth, size: int, buckets: int, needed: int) -> tuple[float, float]:
    """Return the least and the largest share of a step that goes if `size` bytes are in `needed` of `buckets` buckets.

    An exchange takes a time for itself and one for its bytes. Of the former `needed` stay. They are at most as long as
    if the whole backward pass consisted of exchanges, since some may be hidden behind computing. The latter stays as a
    whole, and is at most that of `_SLOWEST_NETWORK`, over which a ring of n ranks sends 2 (n - 1) / n times the bytes.

    If 40 buckets of 300 bytes lengthen a backward pass by 216 to 256 ms, one of them takes at most 256 / 40 ms. So
    209.6 ms go at least. At most all goes by which the step is longer, other phases included (as by the garbage that a
    hook in Python leaves for each bucket), less what one of 40 buckets takes of 216 ms.
    """
    step_s = sum(growth.step_s.values())
    grown_s = max(0.0, growth.parts[BACKWARD])
    ranks = growth.configuration["devices"]
    bytes_s = 2 * (ranks - 1) / ranks * size / _SLOWEST_NETWORK
    least_s = grown_s - needed / buckets * growth.step_s[BACKWARD] - bytes_s
    most_s = sum(max(0.0, seconds) for seconds in growth.parts.values()) - needed / buckets * grown_s
    return max(0.0, least_s) / step_s, max(0.0, most_s) / step_s


def _number(passes: float) -> str:
    return number(round(passes, 1))
