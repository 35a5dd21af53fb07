"""The choice of a batch size by laws of memory and throughput that are known."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from multicard.search.batch import MOST_REPEATS, TOLERANCE, BatchSearch
from multicard.search.batch_sizes import sizes
from multicard.search.core import Attempts
from multicard.search.space import Space

LARGEST = 65_536


@dataclass(frozen=True)
class Law:
    """A job whose step takes `step` seconds and `sample` for each sample, on a device of `memory`."""

    base: float
    of_sample: float
    memory: float
    step: float
    sample: float
    start: int

    @classmethod
    def random(cls, random: np.random.Generator) -> "Law":
        """Some law."""
        return cls(
            base=random.uniform(0.1, 8),
            of_sample=10 ** random.uniform(-3, 0.4),
            memory=16,
            step=1,
            sample=10 ** random.uniform(-3, -0.5),
            start=int(random.choice([1, 8, 24, 64, 100, 256])),
        )

    @property
    def largest(self) -> int:
        """The largest batch that fits, by hand."""
        return math.floor((self.memory - self.base) / self.of_sample)

    def throughput(self, size: int) -> float:
        """Samples per second."""
        return size / (self.step + self.sample * size)

    def cost(self, size: int) -> float:
        """Seconds of a run."""
        return 30 + self.step + self.sample * size if size <= self.largest else 10


def search_for(law: Law, fills: bool = True, budget: float = math.inf) -> BatchSearch:
    listed = sizes(law.start, LARGEST)
    return BatchSearch(Space({"b": listed}, {(at,): size for at, size in enumerate(listed)}), law.start, fills, budget)


def finish(search: BatchSearch, law: Law, noise: Callable[[], float] = lambda: 0.0) -> int:
    """Let a search end; how many runs it asked for."""
    runs = 0
    while asked := search.ask():
        for size, repeat in asked:
            runs += 1
            value = law.throughput(size) * math.exp(noise()) if size <= law.largest else None
            search.tell(size, repeat, value, law.cost(size))
    return runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "scatter", [0.01, *(pytest.param(scatter, marks=pytest.mark.rare) for scatter in (0.002, 0.03))]
)
def test_the_limit_is_right_and_the_stated_gain_is_as_certain_as_it_claims(scatter: float) -> None:
    random, covered, certain, runs = np.random.default_rng(1), [], [], []
    for _ in range(100):
        law = Law.random(random)
        search = search_for(law)
        runs.append(finish(search, law, lambda: random.normal(0, scatter)))
        fits, too_large = search.fitting[-1], search.too_large
        if too_large is None:
            assert fits == LARGEST <= law.largest
        else:
            assert fits <= law.largest < too_large <= fits + max(1, fits // 8)
        assert not search.unfinished
        true = {size: law.throughput(size) / law.throughput(fits) for size in search.fitting}  # the largest is fastest
        ratio = search.ratios()[search.pays]
        if search.pays != search.best:
            covered.append(ratio.low <= true[search.pays] / true[search.best] <= ratio.high)
        if search.is_within_tolerance(ratio):
            # Of the fastest, which may be another one of equals.
            certain.append(true[search.pays] >= 1 - TOLERANCE - 2 * scatter)
            # No smaller one is shown to lose that does not.
            certain += [
                true[size] < 1 - TOLERANCE + 2 * scatter
                for size, each in search.ratios().items()
                if size < search.pays and search.is_within_tolerance(each) is False
            ]
    assert np.mean(covered) >= 0.9 and len(covered) > 20
    assert np.mean(certain) >= 0.99 and len(certain) > 50
    assert np.mean(runs) < 25


def test_without_scatter_it_names_the_smallest_doubling_within_the_tolerance() -> None:
    law = Law(base=1, of_sample=0.03, memory=16, step=1, sample=0.2, start=64)
    search = search_for(law)
    finish(search, law)
    # (16 - 1) / 0.03 = 500, in steps of 32 beyond 256.
    assert law.largest == 500 and (search.fitting[-1], search.too_large) == (480, 512)
    # 1 / (1 + 5/b) relative to that of 480: 0.973 for 128, and 0.937 for 64.
    assert search.pays == 128 and search.best == 480
    assert search.ratios()[128].value == pytest.approx((1 + 5 / 480) / (1 + 5 / 128))
    assert search.stopped_trying == "512 ran out of memory"


def peak(size: int) -> float:
    """The fastest is 96; 64 and 128, the doublings beside it, are 5.0% and 2.6% slower."""
    return 1000 * math.exp(-0.15 * math.log2(size / 96) ** 2)


def falling(by: float) -> Callable[[int], float]:
    """Rises up to 200 and falls by that part beyond; 128 is 4.9% slower than 200."""
    return lambda size: size / (size + 20) * (1 if size <= 200 else 1 - by)


@dataclass(frozen=True)
class Answer:
    """Throughput of the batch that pays over that of the fastest that fits, if it is shown to pay, and runs it took."""

    share: float
    is_shown: bool
    runs: int


def answer(throughput: Callable[[int], float], noise: float = 0.0, seed: int = 0) -> Answer:
    """Search sizes from 32 on, of which 700 fit."""
    listed, limit, chance, runs = sizes(32, 4096), 700, np.random.default_rng(seed), 0
    search = BatchSearch(Space({"b": listed}, {(at,): size for at, size in enumerate(listed)}), 32, True)
    while asked := search.ask():
        for size, repeat in asked:
            value = throughput(size) * math.exp(chance.normal(0, noise)) if size <= limit else None
            search.tell(size, repeat, value, 30)
            runs += 1
    share = throughput(search.pays) / max(throughput(size) for size in listed if size <= limit)
    return Answer(share, search.is_within_tolerance(search.ratios()[search.pays]) is True, runs)


@pytest.mark.parametrize("throughput", [peak, falling(0.1), falling(0.4)], ids=["peak", "falls by 10%", "by 40%"])
def test_the_batch_that_pays_is_within_the_tolerance_of_the_best_between_doublings(
    throughput: Callable[[int], float],
) -> None:
    found = answer(throughput, 1e-4)  # without any noise, equal repeats would tell nothing of it
    assert found.share >= 1 - TOLERANCE and found.runs <= 15
    noisy = [answer(throughput, 0.01, seed) for seed in range(6)]
    assert all(each.share >= 1 - TOLERANCE - 0.01 for each in noisy if each.is_shown)
    assert sum(each.share >= 1 - TOLERANCE - 0.01 for each in noisy) >= 4
    assert np.mean([each.runs for each in noisy]) <= 24


def test_noise_on_a_flat_curve_starts_no_search_between_doublings() -> None:
    # Sizes that run: doublings from 1 to 1024, and three between the last one that fits and the first that does not.
    assert np.mean([answer(lambda _size: 100.0, 0.01, seed).runs for seed in range(4)]) <= 40


def test_it_halves_where_the_first_does_not_fit_and_where_the_smallest_pays() -> None:
    law = Law(base=0, of_sample=1, memory=100, step=0.01, sample=1, start=1024)
    search = search_for(law)
    finish(search, law)
    assert (search.fitting[-1], search.too_large) == (96, 104)
    assert search.pays == 1  # 1 / 1.01 is within 3% of 1


def test_where_even_one_sample_does_not_fit_there_is_no_batch() -> None:
    law = Law(base=10, of_sample=10, memory=16, step=1, sample=1, start=8)
    search = search_for(law)
    assert finish(search, law) == 4  # 8, 4, 2, 1
    assert search.best is None and search.fitting == [] and search.too_large == 1


def test_memory_that_is_not_to_be_filled_is_tried_until_doubling_twice_gains_nothing() -> None:
    law = Law(base=0, of_sample=1e-9, memory=1, step=1, sample=0.25, start=8)
    search = search_for(law, fills=False)
    finish(search, law)
    # 1 / (1 + 4/b): 0.970 for 128 and 0.992 for 512, the first pair of doublings that gains less than 3%.
    assert search.too_large is None and search.fitting[-1] == 512
    assert search.pays == 128 and search.stopped_trying == "512 fits and 2 doublings gained less than 3%"


def test_the_largest_that_is_not_left_out_is_tried_where_nothing_runs_out_of_memory() -> None:
    law = Law(base=0, of_sample=1e-9, memory=1, step=1, sample=0.001, start=24)
    search = search_for(law)
    search.exclude([size for size in search.configurations if size > 1438])
    finish(search, law)
    # Eighths of 768: 1440 would be the next.
    assert search.too_large is None and search.fitting[-1] == search.best == 1344
    assert search.stopped_trying == "1344 fits and it is the largest to try"


@pytest.mark.parametrize("budget", [100, 250, 400, 800])
def test_a_budget_is_kept_and_what_was_found_so_far_is_there(budget: float) -> None:
    law = Law(base=1, of_sample=0.01, memory=16, step=1, sample=0.01, start=16)
    search = search_for(law, budget=budget)
    random = np.random.default_rng(2)
    finish(search, law, lambda: random.normal(0, 0.02))
    assert search.spent <= budget and search.fitting
    assert "budget" in f"{search.stopped_trying} {search.stopped_repeating}" and (search.unfinished or budget == 800)


def test_a_batch_that_runs_out_of_memory_in_a_repeat_does_not_fit() -> None:
    law = Law(base=0, of_sample=1, memory=100, step=1, sample=0.01, start=64)
    search = search_for(law)
    while asked := search.ask():
        for size, repeat in asked:
            fits = size <= (law.largest if repeat == 1 else 90)
            search.tell(size, repeat, law.throughput(size) if fits else None, 1)
    assert search.too_large == 96 and search.fitting[-1] == 88
    assert len(search.completed[search.best]) <= MOST_REPEATS


FITS, LACKS_MEMORY = 100.0, None


@pytest.mark.parametrize(
    ("runs", "following"),
    [
        ({}, 16),
        ({16: LACKS_MEMORY}, 8),
        ({16: 16.0}, 32),
        # 17 to 31 lie between the largest that fits and the smallest that does not, in steps of two.
        ({16: 16.0, 32: LACKS_MEMORY}, 24),
        ({16: 16.0, 32: LACKS_MEMORY, 24: LACKS_MEMORY}, 20),
        # The smallest is as fast as any, so half of it may pay.
        ({16: FITS, 18: LACKS_MEMORY}, 8),
        ({8: 50.0, 16: FITS, 18: LACKS_MEMORY}, None),
    ],
)
def test_the_next_batch_follows_from_those_that_ran(runs: dict[int, float | None], following: int | None) -> None:
    listed = sizes(16, 64)
    search = BatchSearch(Space({"b": listed}, {(at,): size for at, size in enumerate(listed)}), 16, True)
    for size, value in runs.items():
        search.tried[size] = Attempts()
        search.tell(size, 1, value, 1.0)
    assert [size for size, repeat in search.ask() if repeat == 1] == ([following] if following else [])
