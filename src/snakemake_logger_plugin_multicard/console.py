"""What the console shows of a pipeline: the current run, a line as each ends, and the result of each scenario."""

import heapq
import logging
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import RLock

from multicard.archive.matrix import Matrix
from multicard.cli._overview import print_results
from multicard.cli.run import read_record
from multicard.core.errors import UserError
from multicard.core.files import read_json
from multicard.core.layout import HEADLINE, LAUNCHES, LOG, PROGRESS, RUN, STEPS
from multicard.core.reasons import describe_reason
from multicard.core.text import counted, natural, printable, printable_lines
from multicard.core.units import ARGS_PREFIX, SECONDS, with_unit
from multicard.experiment.estimate import estimate_cost
from multicard.launch.judge import measured_steps
from multicard.workflow.slurm_queue import Queue
from snakemake_logger_plugin_multicard.failures import REFUSES, cause_of, last_line

RUNS, DRAWN = "launch_run", "draw_figures"  # rules
HERE = ("prepare_data", "prepare_model")  # run by this machine, though others go to a cluster
SHOWN = (*HERE, "measure_machine")  # may take long, too
LOOK_S = 1.0
REMIND_S = 60.0  # between lines about the queue, where they stay
AT_FIRST_S = 2.0  # by which the jobs that are submitted together are
# Slurm's states of a job whose run is at work, or has ended and Snakemake has not seen it yet.
AT_WORK = ("RUNNING", "COMPLETING", "COMPLETED", "SUSPENDED", "STOPPED")


@dataclass
class Job:
    """A job that was started or submitted: its rule, what it is of, and its message."""

    rule: str
    of: Mapping[str, str]
    message: str


class Console:
    """Prints to standard output; on a terminal its last line is the current state.

    Parameters
    ----------
    matrix
        The plan.
    configs
        Configuration files.
    lock
        What has to be held to print.
    results
        Whether more is printed than errors.
    """

    def __init__(self, matrix: Matrix, configs: Sequence[str], lock: RLock, results: bool) -> None:
        self.matrix, self.config, self.results = matrix, configs[-1] if configs else "config/config.yaml", results
        self.folder = Path(matrix.experiment.results)
        self.has_failed = self.on_cluster = False
        self.total = self.ended = self.jobs_left = 0
        self.retries = 0  # how often Snakemake tries a failed job again
        self._has_begun = False
        self._jobs: dict[int, Job] = {}
        self._failures: Counter[int] = Counter()  # of jobs, by number
        self._refusals: set[str] = set()
        self._told: set[str] = set()  # scenarios
        self._live = results and sys.stdout.isatty()
        self._drawn = ""  # the current state, as it stands on the terminal
        self._lock, self._over = lock, threading.Event()
        self._next_line, self._reminder = 0.0, ""
        # When each run was first seen running; of those that have ended, how long that was.
        self._running_since: dict[str, float] = {}
        self._durations_s: list[float] = []
        self._most_at_a_time = 1
        self._slurm_problem: str | None = None
        # Of scenarios that share a run the first.
        self._scenario_of = {run.id: name for name, runs in reversed(matrix.scenarios.items()) for run in runs}

    def begin(self, jobs: Mapping[str, int]) -> None:
        """Say what is to be done, by the number of jobs of each rule."""
        self.total, self.jobs_left, self._has_begun = jobs.get(RUNS, 0), jobs["total"], True
        self.line(f"{counted(self.total, 'run')}{self._estimate()}; results: {self.folder}/; log: {_log_file()}")
        if self._live or (self.results and self.on_cluster):
            threading.Thread(target=self._watch, name="console", daemon=True).start()

    def job_started(self, job: int, rule: str, of: Mapping[str, str], message: str) -> None:
        """Note a job that starts, or that is submitted to a cluster."""
        self._jobs[job] = Job(rule, of, message or rule)
        self._next_line = min(self._next_line, time.monotonic() + AT_FIRST_S)
        if rule == RUNS and not self.on_cluster:
            self._running_since[of["run"]] = time.monotonic()
        if rule in SHOWN:
            self.line(message)

    def look_at_queue(self, queue: Queue) -> None:
        """Note which runs are running, by the jobs in Slurm's queue."""
        self._slurm_problem = queue.problem
        if queue.problem:  # what was seen last stands
            return
        # Of several jobs of a run the last: those before have failed.
        states = {job.run: job.state for job in sorted(queue.jobs, key=lambda job: natural(job.id)) if job.run}
        now = time.monotonic()
        running = [run for run, state in states.items() if state in AT_WORK]
        self._running_since = {run: self._running_since.get(run, now) for run in running}
        self._most_at_a_time = max(self._most_at_a_time, list(states.values()).count("RUNNING"))

    def job_ended(self, job: int) -> None:
        """Tell what came of a run, and the result of a scenario whose figures are drawn."""
        self.jobs_left -= 1
        found = self._jobs.pop(job, None)
        if found and found.rule == RUNS:
            self.ended += 1
            run = found.of["run"]
            if run in self._running_since:
                self._durations_s.append(time.monotonic() - self._running_since.pop(run))
            self.line(self._named(run, self.ended, self._outcome(run)))
        elif found and found.rule == DRAWN:
            self.line(self._headline(found.of["scenario"]))

    def job_failed(self, jobs: Sequence[int], logs: Sequence[str], message: str | None) -> None:
        """Tell of jobs that failed, and whether they are tried again."""
        found = [job for number in jobs if (job := self._jobs.pop(number, None))]
        for job in found:
            self._running_since.pop(job.of.get("run", ""), None)
        self._failures.update(jobs)
        is_last = max(self._failures[number] for number in jobs) > self.retries
        there = [log for log in logs if Path(log).is_file()]
        why = cause_of(message, there)
        if why.startswith(REFUSES) and not is_last:  # of many jobs at once, and soon again: one line tells of all
            if why in self._refusals:
                return
            self._refusals.add(why)
        what = "; ".join(job.message for job in found) or "a job"
        is_submitted = self.on_cluster and not {job.rule for job in found} <= {*HERE}
        again = "" if is_last else "; submitted again" if is_submitted else "; tried again"
        log = f"; log: {there[0]}" if there else ""
        self.error(f"{'failed: ' if is_last else ''}{what}: {why}{again}{log}", failed=is_last)

    def error(self, text: str, failed: bool = True) -> None:
        """Print a warning, or what failed, beside the output."""
        self.has_failed = self.has_failed or failed
        self._show("")
        print(_plain(printable_lines(text), sys.stderr), file=sys.stderr, flush=True)

    def line(self, text: str | None) -> None:
        """Print a line that stays."""
        if text and self.results:
            self._show("")
            print(_plain(printable(text), sys.stdout), flush=True)
            self._next_line = time.monotonic() + REMIND_S

    def end(self) -> None:
        """Print the results if all was made, else where to read on."""
        with self._lock:
            self._show("")
            if not self.results or self._over.is_set():
                return
            self._over.set()
        if self._has_begun and self.jobs_left > 0 and self.has_failed:
            self.error(f"not all was made: {_log_file()} says more; the same command makes what is missing")
        elif self.jobs_left <= 0 and (self._has_begun or not self.has_failed):  # a job may succeed when tried again
            if not self._has_begun:
                self.line("Nothing to be done: the results are there")
            for scenario in self.matrix.scenarios:
                self.line(self._headline(scenario))
            with suppress(UserError):  # not all was asked for
                print_results(self.matrix.experiment, _near(self.config))

    def _watch(self) -> None:
        """Keep the last line of a terminal up to date; elsewhere say now and then how far the cluster is."""
        while not self._over.wait(LOOK_S):
            with self._lock:
                if self._over.is_set():
                    break
                if self._live:
                    self._show(self._state())
                elif self._jobs and time.monotonic() > self._next_line:
                    self._remind(self._state())

    def _remind(self, state: str) -> None:
        """Print the state of the runs again and again, that of a step only once."""
        if state != self._reminder or any(job.rule == RUNS for job in self._jobs.values()):
            self.line(state)
        self._reminder = state

    def _state(self) -> str:
        """What is being done, and how long it may take."""
        runs = [job.of["run"] for job in self._jobs.values() if job.rule == RUNS]
        if self.on_cluster and runs:
            running = len(self._running_since.keys() & set(runs))
            text = (
                f"{self.ended} of {counted(self.total, 'run')} ended, {running} running, {len(runs) - running} queued"
            )
            text += f"; Slurm does not answer: {self._slurm_problem}" if self._slurm_problem else ""
        elif runs:
            progress = last_line(self.folder / LAUNCHES / f"{runs[0]}.txt", f"{PROGRESS}  ")  # the job's own, indented
            text = self._named(runs[0], self.ended + 1, progress)
        else:
            text = next((job.message for job in self._jobs.values()), "")
        if runs and self._durations_s:
            now = time.monotonic()
            elapsed = [now - since for since in self._running_since.values()]
            waiting = self.total - self.ended - len(elapsed)
            left_s = time_left_s(fmean(self._durations_s), elapsed, waiting, max(self._most_at_a_time, len(elapsed)))
            # First, as a narrow terminal cuts the end.
            text = f"about {counted(max(1, round(left_s / 60)), 'minute')} left; {text}"
        return text

    def _show(self, state: str) -> None:
        """Have the last line of a terminal be this one."""
        if self._live and state != self._drawn:
            columns = shutil.get_terminal_size().columns - 1
            print("\r\x1b[K" + _plain(printable(state, columns), sys.stdout), end="", flush=True)
            self._drawn = state

    def _estimate(self) -> str:
        """How long the runs may take, where that can be told of all of them."""
        missing = [run for run in self.matrix.planned() if not (self.folder / "runs" / run / RUN).exists()]
        runs = [self.matrix.runs[run] for run in missing]
        cost = estimate_cost(runs, self.matrix.experiment.time_limit_min, self.matrix.machine.gpus)
        known = runs and not cost.unknown and all(run.parameters.device == "cuda" for run in runs)
        return f", about {60 * cost.wall_h:.0f} minutes one after another" if known else ""

    def _named(self, run: str, position: int, said: str | None) -> str:
        """A run by its position, its scenario and what varies in that."""
        name = self._scenario_of[run]
        scenario, p = self.matrix.experiment.scenarios[name], self.matrix.runs[run].parameters
        own = getattr(p, "args", {})
        values = [
            f"{each.removeprefix(ARGS_PREFIX)}={getattr(p, each, own.get(each.removeprefix(ARGS_PREFIX)))}"
            for each in scenario.varied
        ]
        words = [name, *values, *([f"repeat {p.repeat}"] if scenario.repeats > 1 else [])]
        return f"run {position} of {self.total}: {' '.join(words)}" + (f": {said}" if said else "")

    def _outcome(self, run: str) -> str:
        """What came of a run: the time of its steps, or why it did not complete and where its log is."""
        folder = self.folder / "runs" / run
        record = read_record(folder)
        outcome = record.get("outcome", "without a record").replace("_", " ")
        if outcome != "completed":
            why = f", {describe_reason(record['reason'])}" if record.get("reason") else ""
            return f"{outcome}{why}; log: {folder / LOG}"
        measured = measured_steps(folder / STEPS)
        return f"{with_unit(measured[1], SECONDS)} per step" if measured else "completed"

    def _headline(self, scenario: str) -> str | None:
        """The result of a scenario, and the figure that shows it; once."""
        file = self.folder / "scenarios" / scenario / HEADLINE
        if scenario in self._told or not file.is_file():
            return None
        self._told.add(scenario)
        found, figures = read_json(file), self.matrix.figures().get(scenario, [])
        wanted = ["speedup", *(f"gain_{name}" for name in found["varied"]), *figures]
        figure = next((name for name in wanted if found["value"] and name in figures), None)
        path = self.folder / "figures" / scenario / f"{figure}.png"
        return f"{scenario}: {found['words']}" + (f" → {path}" if path.exists() else "")


def time_left_s(mean_s: float, elapsed_s: Sequence[float], waiting: int, at_a_time: int) -> float:
    """Return after how many seconds the last of some runs ends, if each takes `mean_s`.

    `elapsed_s`: of those that are running; `waiting`: number of those that follow as others end; `at_a_time`: number
    that may run at a time.

    >>> time_left_s(10.0, [4.0, 1.0], waiting=3, at_a_time=2)  # after 6 s, 9 s, 16 s, 19 s and 26 s
    26.0
    """
    idle = [0.0] * (at_a_time - len(elapsed_s))
    ends = [max(0.0, mean_s - each) for each in elapsed_s] + idle
    heapq.heapify(ends)
    for _ in range(waiting):
        heapq.heapreplace(ends, ends[0] + mean_s)
    return max(ends)


def _log_file() -> str:
    """Snakemake's log file, as seen from the working directory."""
    files = (each for each in logging.getLogger("snakemake.logging").handlers if hasattr(each, "baseFilename"))
    return str(_near(next((each.baseFilename for each in files), ".snakemake/log")))


def _near(path: str) -> Path:
    """A path as seen from the working directory, where it is below that."""
    return Path(path).relative_to(Path.cwd()) if Path(path).is_relative_to(Path.cwd()) else Path(path)


def _plain(text: str, stream: object) -> str:
    """Text as the stream can take it, whatever its encoding."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
