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

TOLERANCE_WORDS = f"{TOLERANCE:.0%}"


def best_lines(search: Search[str], space: ScenarioSpace, decision: Decision) -> list[str]:
    """Return lines: the best configuration with its interval, those that are as good, and those that were skipped.

    A configuration is skipped if a run of it completed and a later one did not.
    """
    lines = [_best_line(space, decision)]
    for key in decision.tied:
        mean = space.format(search.mean(key))
        lines.append(f"not significantly worse: {space.describe(key)}: {mean}")
    for key, attempts in search.tried.items():
        if attempts.values and attempts.failed:
            lines.append(f"skipped, since a repeat did not complete: {space.describe(key)}")
    if decision.value.low is None:
        lines.append(f"no interval: for one, set repeats: 3 or more in scenarios.{space.name}, and a budget for them")
    return lines


def _best_line(space: ScenarioSpace, decision: Decision) -> str:
    value = decision.value
    details = f"n = {value.repeats}"
    if value.low is not None and value.high is not None:
        details = f"95% CI {space.format(value.low)} to {space.format(value.high)}, {details}"
    return f"best: {space.describe(decision.best)}: {space.format(value.value)} ({details})"


def cost_line(search: Search[str], trials: Sequence[Trial]) -> str:
    """Return the number of runs and the time of a search and, unless it was for batch sizes, its share of all runs.

    The share is by time: all runs are assumed to take the median time of those that completed.
    """
    runs = counted(len(trials), "run")
    configurations = counted(len(search.tried), "configuration")
    cost = f"{runs} of {configurations} in {with_unit(search.spent, SECONDS)}"
    if isinstance(search, BatchSearch):
        return cost
    all_runs = len(search.configurations) * search.repeats
    if len(trials) == all_runs:
        return f"{cost}, all that there are"
    cost_of_all = search.typical_cost * all_runs
    share = percent(search.spent / cost_of_all) if cost_of_all else ""
    return f"{cost}, about {share} of all {all_runs} runs"


def memory_by_configuration(space: ScenarioSpace, trials: Sequence[Trial]) -> dict[str, float]:
    """Return for each configuration the most bytes that one of its runs used; 0 if that is not known."""
    by_run = {trial.run: trial.result.memory_bytes or 0 for trial in trials}
    memory = {}
    for key, runs in space.repeats.items():
        memory[key] = max(by_run.get(run.id, 0) for run in runs)
    return memory


def batch_lines(search: BatchSearch[Key], in_words: Callable[[float], str], memory: Mapping[Key, float]) -> list[str]:
    """Return lines: the largest batch that fits, the batch that pays, then throughput and memory of each size.

    At least one batch must fit. `in_words`: returns a throughput as text. `memory`: bytes of each configuration; 0 if
    they are not known.
    """
    return _BatchConclusion(search, in_words, memory).lines()


class _BatchConclusion(Generic[Key]):
    """The answer of a search for batch sizes, made by `batch_lines` from its own arguments."""

    def __init__(self, search: BatchSearch[Key], in_words: Callable[[float], str], memory: Mapping[Key, float]) -> None:
        best = search.best
        pays = search.pays
        assert best is not None and pays is not None
        self._search = search
        self._in_words = in_words
        self._memory = memory
        self._best = best
        self._pays = pays
        self._ratios = search.ratios()
        self._so_far = " so far" if search.unfinished else ""

    def lines(self) -> list[str]:
        return [self._largest_line(), self._paying_line(), *self._undecided_lines(), *self._size_lines()]

    def _largest_line(self) -> str:
        """Return the line on the largest batch that fits, and on the smallest that does not."""
        search = self._search
        largest = search.fitting[-1]
        too_large = search.too_large
        size = f"{search.size[largest]}{self._memory_words(largest)}"
        if too_large is None:
            stopped = f"; {search.stopped_trying}" if search.stopped_trying else ""
            return f"no batch ran out of memory: {size} is the largest that ran{stopped}"
        return f"largest batch that fits{self._so_far}: {size}; {search.size[too_large]} ran out of memory"

    def _paying_line(self) -> str:
        """Return the line on the batch that pays: its speed, and whether it is shown to be within the tolerance."""
        search = self._search
        start = f"batch that pays{self._so_far}"
        size = search.size[self._pays]
        larger = ""
        if self._pays != search.fitting[-1]:
            larger = f"; of those that ran, larger ones gain less than {TOLERANCE_WORDS}"
        if self._pays == self._best:
            return f"{start}: {size}, the fastest{larger}"
        ratio = self._ratios[self._pays]
        share = ratio.format(lambda value: percent(value, decimals=1))
        compared = f"{size}, {share} as fast as the fastest, {search.size[self._best]}"
        if search.is_within_tolerance(ratio):
            return f"{start}: {compared}{larger}"
        return f"{start}: probably {compared}, not shown to be within {TOLERANCE_WORDS}"

    def _undecided_lines(self) -> list[str]:
        """Return a line on the smaller batches that may pay, too; no line if there are none."""
        search = self._search
        undecided = []
        for key in search.fitting:
            size = search.size[key]
            is_smaller = size < search.size[self._pays]
            if is_smaller and search.is_within_tolerance(self._ratios[key]) is None:
                undecided.append(str(size))
        if not undecided:
            return []
        return [f"may be within {TOLERANCE_WORDS} of it too: {listed(undecided)}"]

    def _size_lines(self) -> list[str]:
        """Return a line for each batch that fits, with its throughput and its memory."""
        completed = self._search.completed
        fitting = self._search.fitting
        pool = Pool({key: completed[key] for key in fitting})
        lines = []
        for key in fitting:
            size = self._search.size[key]
            mean = pool.mean(key)
            throughput = "" if mean is None else mean.format(self._in_words)
            share = percent(self._ratios[key].value, decimals=1)
            memory = self._memory_words(key)
            lines.append(f"  {size}: {throughput}, {share} of the fastest{memory}")
        return lines

    def _memory_words(self, key: Key) -> str:
        """Return the memory of a batch in brackets, after a blank; "" if it is not known."""
        memory = self._memory[key]
        return f" ({with_unit(memory, BYTES)})" if memory else ""
