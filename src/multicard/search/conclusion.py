"""The answer of a search in lines of text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from multicard.core.text import counted, listed
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.search.batch import TOLERANCE, BatchSearch
from multicard.search.core import Search
from multicard.search.scenario import Decision, ScenarioSpace
from multicard.search.session import Trial
from multicard.search.space import Key
from multicard.stats.pool import Pool


def best_lines(search: Search[str], space: ScenarioSpace, decision: Decision) -> list[str]:
    """Return the best configuration with its interval, those that are as good, and those that a failure took out."""
    value = decision.value
    bounds = ""
    if value.low is not None and value.high is not None:
        bounds = f"95% CI {space.format(value.low)} to {space.format(value.high)}, "
    lines = [f"best: {space.describe(decision.best)}: {space.format(value.value)} ({bounds}n = {value.repeats})"]
    for key in decision.tied:
        lines.append(f"not significantly worse: {space.describe(key)}: {space.format(search.mean(key))}")
    for key, attempts in search.tried.items():
        if attempts.values and attempts.failed:
            lines.append(f"skipped, since a repeat did not complete: {space.describe(key)}")
    if value.low is None:
        lines.append(f"no interval: for one, set repeats: 3 or more in scenarios.{space.name}, and a budget for them")
    return lines


def cost_line(search: Search[str], trials: Sequence[Trial]) -> str:
    """Return how many runs it took and how long, and, unless batch sizes were searched, what part of all that is."""
    runs, configurations = counted(len(trials), "run"), counted(len(search.tried), "configuration")
    took = f"{runs} of {configurations} in {with_unit(search.spent, SECONDS)}"
    if isinstance(search, BatchSearch):
        return took
    all_runs = len(search.configurations) * search.repeats
    if len(trials) == all_runs:
        return f"{took}, all that there are"
    share = percent(search.spent / (search.typical_cost * all_runs)) if search.typical_cost else ""
    return f"{took}, about {share} of all {all_runs} runs"


def memory_by_configuration(space: ScenarioSpace, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the most bytes that a run of each configuration used; 0 where they are not known."""
    by_run = {trial.run: trial.result.memory_bytes or 0 for trial in trials}
    return {key: max(by_run.get(run.id, 0) for run in runs) for key, runs in space.repeats.items()}


def batch_lines(search: BatchSearch[Key], in_words: Callable[[float], str], memory: Mapping[Key, float]) -> list[str]:
    """Return the largest batch that fits and the one that pays, then throughput and memory of each size, in lines.

    There must be a batch that fits. `in_words`: words a throughput. `memory`: bytes by configuration; 0 where they are
    not known.
    """
    return _Conclusion(search, in_words, memory).lines()


class _Conclusion(Generic[Key]):
    def __init__(self, search: BatchSearch[Key], in_words: Callable[[float], str], memory: Mapping[Key, float]) -> None:
        self._search, self._in_words, self._memory = search, in_words, memory
        self._ratios = search.ratios()
        self._so_far = " so far" if search.unfinished else ""
        self._tolerance = f"{TOLERANCE:.0%}"

    def lines(self) -> list[str]:
        return [self._largest(), self._that_pays(), *self._undecided(), *self._rows()]

    def _largest(self) -> str:
        search = self._search
        largest, too_large = search.fitting[-1], search.too_large
        size = f"{search.size[largest]}{self._needs(largest)}"
        if too_large is None:
            stopped = f"; {search.stopped_trying}" if search.stopped_trying else ""
            return f"no batch ran out of memory: {size} is the largest that ran{stopped}"
        return f"largest batch that fits{self._so_far}: {size}; {search.size[too_large]} ran out of memory"

    def _that_pays(self) -> str:
        search = self._search
        pays, best = search.pays, search.best
        assert pays is not None and best is not None
        larger = f"; of those that ran, larger ones gain less than {self._tolerance}"
        if pays == search.fitting[-1]:
            larger = ""
        start = f"batch that pays{self._so_far}: "
        if pays == best:
            return f"{start}{search.size[pays]}, the fastest{larger}"
        ratio = self._ratios[pays]
        share = ratio.format(lambda value: percent(value, decimals=1))
        compared = f"{search.size[pays]}, {share} as fast as the fastest, {search.size[best]}"
        if search.is_within_tolerance(ratio):
            return f"{start}{compared}{larger}"
        return f"{start}probably {compared}, not shown to be within {self._tolerance}"

    def _undecided(self) -> list[str]:
        search = self._search
        pays = search.pays
        assert pays is not None
        smaller = [key for key in search.fitting if search.size[key] < search.size[pays]]
        undecided = [str(search.size[key]) for key in smaller if search.is_within_tolerance(self._ratios[key]) is None]
        return [f"may be within {self._tolerance} of it too: {listed(undecided)}"] if undecided else []

    def _rows(self) -> list[str]:
        search, completed = self._search, self._search.completed
        pool = Pool([completed[key] for key in search.fitting])
        rows = []
        for index, key in enumerate(search.fitting):
            mean = pool.mean(index)
            throughput = "" if mean is None else mean.format(self._in_words)
            share = percent(self._ratios[key].value, decimals=1)
            rows.append(f"  {search.size[key]}: {throughput}, {share} of the fastest{self._needs(key)}")
        return rows

    def _needs(self, key: Key) -> str:
        """Return the memory of a batch in brackets, if it is known."""
        return f" ({with_unit(self._memory[key], BYTES)})" if self._memory[key] else ""
