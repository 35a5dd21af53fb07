"""Make the runs that a search asks for, until it ends, and note each with the state of the search after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from multicard.config.runs import Run
from multicard.core.values import Row
from multicard.search.core import RunRequest, Search
from multicard.search.scenario import RunResult, ScenarioSpace


@dataclass(frozen=True)
class Trial:
    """A run of a search, and the state of the search after it."""

    run: str
    request: RunRequest[str]
    result: RunResult
    # Mean value of the best configuration after this run; None if none had completed.
    best_so_far: float | None
    # Seconds of all runs together, up to and including this one.
    spent_s: float

    def row(self, space: ScenarioSpace) -> Row:
        """Return the run as a row of the table of a search."""
        return {
            "run": self.run,
            "repeat": self.request.repeat,
            **space.values(self.request.configuration),
            "outcome": self.result.outcome,
            space.measure: self.result.value,
            "best_so_far": self.best_so_far,
            "cost_s": self.result.cost_s,
            "spent_s": self.spent_s,
            "synthetic": self.result.synthetic,
            "peak_memory_bytes": self.result.memory_bytes,
        }


@dataclass
class SearchLog:
    """The runs of a search; made by `run_search`."""

    trials: list[Trial] = field(default_factory=list)
    # The run with a fatal outcome that ended the search, in words; None if the search ended by itself.
    failure: str | None = None


def run_search(
    search: Search[str],
    space: ScenarioSpace,
    make: Callable[[Sequence[Run]], None],
    report: Callable[[str], None],
) -> SearchLog:
    """Make the runs that a search asks for, until it ends, or until a run has an outcome that is fatal to it.

    `make`: makes runs and reads their traces; raises an error if that fails. `report`: called with a line after each
    run, when no new configurations are tried any more, and when no repeats run any more.
    """
    log = SearchLog()
    recorded = [run for runs in space.repeats.values() for run in runs if space.record(run).is_file()]
    if recorded:
        # `make` makes a run that has a record only if its data have changed since.
        make(recorded)
    requests = search.ask()
    while requests:
        runs = [space.run(configuration, repeat) for configuration, repeat in requests]
        missing = [run for run in runs if run not in recorded]
        if missing:
            make(missing)
        for request, run in zip(requests, runs, strict=True):
            result = space.result(run)
            if result.outcome in search.fatal:
                log.failure = _failure(space, request, run, result)
                return log
            search.tell(request.configuration, request.repeat, result.value, result.cost_s)
            best_so_far = None if search.best is None else search.mean(search.best)
            log.trials.append(Trial(run.id, request, result, best_so_far, search.spent))
            report(_progress(search, space, request, result))
        was_trying = search.stopped_trying is None
        was_repeating = search.stopped_repeating is None
        requests = search.ask()
        if was_trying and search.stopped_trying is not None:
            report(f"no further new configurations: {search.stopped_trying}")
        if was_repeating and search.stopped_repeating is not None:
            report(f"no further repeats: {search.stopped_repeating}")
    return log


def _failure(space: ScenarioSpace, request: RunRequest[str], run: Run, result: RunResult) -> str:
    """Return in words which run ended the search, why, and where its log is."""
    outcome = result.outcome.replace("_", " ")
    reason = f": {result.reason}" if result.reason else ""
    folder = space.record(run).parent
    return (
        f"{space.describe(request.configuration)}: {outcome}{reason}; see {folder}/log.txt, and remove that folder to "
        "try it again"
    )


def _progress(search: Search[str], space: ScenarioSpace, request: RunRequest[str], result: RunResult) -> str:
    """Return a line with the result of a run, and with the best configuration so far."""
    outcome = space.format(result.value) if result.value else result.outcome.replace("_", " ")
    repeat = f"repeat {request.repeat} of " if request.repeat > 1 else ""
    tried = f"tried {repeat}{space.describe(request.configuration)}: {outcome}"
    best = search.best
    if best is None:
        return tried
    repeats = len(search.completed[best])
    best_so_far = "best so far"
    if repeats > 1:
        best_so_far = f"best so far of those with {repeats} runs"
    if best == request.configuration:
        return f"{tried}, the {best_so_far}"
    return f"{tried}; {best_so_far} {space.format(search.mean(best))}"
