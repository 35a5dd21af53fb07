"""Content of the console while a pipeline runs: the current run, a line as each ends, and each scenario's result."""

import argparse
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from multicard.cli._overview import print_results
from multicard.cli._repeats import least_and_most
from multicard.config.plan import Plan
from multicard.core.errors import UserError
from multicard.core.layout import LAUNCHES, PROGRESS
from multicard.core.text import counted
from multicard.core.units import hours_and_minutes
from multicard.workflow.slurm_queue import Queue
from snakemake_logger_plugin_multicard.failures import REFUSES, cause_of, last_line
from snakemake_logger_plugin_multicard.progress import Progress
from snakemake_logger_plugin_multicard.terminal import Terminal
from snakemake_logger_plugin_multicard.wording import Wording

# Rules of the pipeline.
LAUNCH_RUN = "launch_run"
DRAW_FIGURES = "draw_figures"
# They run on this machine, though others go to a cluster.
LOCAL_RULES = {"prepare_data", "prepare_model"}
# They may take long, so that a line says when they start.
ANNOUNCED_RULES = {*LOCAL_RULES, "measure_machine"}
SHUFFLED = "shuffled order, so that a machine that slows down affects all alike"
LOOK_S = 1.0
# Between lines about the queue, where they stay. The first comes when the jobs are in the queue that are submitted
# together.
REMIND_S = 60.0
AT_FIRST_S = 2.0


@dataclass(frozen=True)
class Job:
    """A job of Snakemake that was started or submitted."""

    rule: str
    wildcards: Mapping[str, str]
    message: str


class Console:
    """Prints to standard output; on a terminal its last line is the current state.

    Parameters
    ----------
    plan
        The plan.
    configs
        Configuration files.
    lock
        Lock that is held while something is printed.
    lines
        True if more is printed than errors.
    results
        True if the results of all scenarios are printed at the end, too, and before them how long the runs took.
    began
        When the command began that the runs are part of, in seconds of `time.monotonic`.
    earlier_runs
        Number of runs that this command made before this pipeline.
    """

    def __init__(
        self,
        plan: Plan,
        configs: Sequence[str],
        lock: RLock,
        lines: bool,
        results: bool,
        began: float,
        earlier_runs: int,
    ) -> None:
        self.has_failed = False
        self.on_cluster = False
        self.retries = 0  # number of times that Snakemake tries a failed job again
        self._plan = plan
        self._config = configs[-1] if configs else "config/config.yaml"
        self._folder = Path(plan.experiment.results)
        self._lock = lock
        self._prints_lines = lines
        self._prints_results = results
        self._began = began
        self._earlier_runs = earlier_runs
        self._terminal = Terminal(keeps_state=lines)
        self._wording = Wording(plan)
        self._progress = Progress()
        # Jobs that were started or submitted by number, and how many are to end.
        self._jobs: dict[int, Job] = {}
        self._jobs_left = 0
        self._has_begun = False
        self._is_over = threading.Event()
        # Printed once each.
        self._refusals: set[str] = set()
        self._shown_scenarios: set[str] = set()
        # Number of failures of each job, by its number.
        self._failures: Counter[int] = Counter()
        self._next_line_at = 0.0
        self._last_reminder = ""
        self._slurm_problem: str | None = None

    def begin(self, jobs: Mapping[str, int]) -> None:
        """Print what is to be done, by the number of jobs of each rule."""
        self._has_begun = True
        self._jobs_left = jobs["total"]
        self._progress.total = jobs.get(LAUNCH_RUN, 0)
        if self._progress.total:
            runs = f"{counted(self._progress.total, 'run')}{self._wording.estimate()}"
        else:
            runs = "no run is missing: only what is made of the runs"
        self._line(f"{runs}; results: {self._folder}/; log: {_log_file()}")
        if self._progress.total > 1:
            self._line(SHUFFLED)
        self._line(least_and_most(self._plan) or "")
        if self._terminal.is_live or (self._prints_lines and self.on_cluster):
            threading.Thread(target=self._watch, name="console", daemon=True).start()

    def job_started(self, number: int, rule: str, wildcards: Mapping[str, str], message: str) -> None:
        """Note a job that starts, or that is submitted to a cluster."""
        self._jobs[number] = Job(rule, wildcards, message or rule)
        self._next_line_at = min(self._next_line_at, time.monotonic() + AT_FIRST_S)
        if rule == LAUNCH_RUN and not self.on_cluster:
            self._progress.start(wildcards["run"], time.monotonic())
        if rule in ANNOUNCED_RULES:
            self._line(message)

    def look_at_queue(self, queue: Queue) -> None:
        """Note which runs are at work, by the jobs in Slurm's queue; if Slurm does not answer, by the last look."""
        self._slurm_problem = queue.problem
        if not queue.problem:
            self._progress.look_at_queue(queue.jobs, time.monotonic())

    def job_ended(self, number: int) -> None:
        """Print the outcome of a run, or the result of a scenario whose figures are drawn."""
        self._jobs_left -= 1
        job = self._jobs.pop(number, None)
        if job is None:
            return
        if job.rule == LAUNCH_RUN:
            run = job.wildcards["run"]
            self._progress.end(run, time.monotonic())
            self._line(f"{self._name(run, self._progress.ended)}: {self._wording.outcome(run)}")
        elif job.rule == DRAW_FIGURES:
            self._print_answer(job.wildcards["scenario"])

    def job_failed(self, numbers: Sequence[int], logs: Sequence[str], message: str | None) -> None:
        """Print why jobs failed together, and whether they are tried again.

        `logs`: files that may say why; `message`: of Snakemake's executor.
        """
        jobs = [self._jobs.pop(number) for number in numbers if number in self._jobs]
        for job in jobs:
            self._progress.give_up(job.wildcards.get("run", ""))
        self._failures.update(numbers)
        is_last = max(self._failures[number] for number in numbers) > self.retries
        existing_logs = [log for log in logs if Path(log).is_file()]
        cause = cause_of(message, existing_logs)
        # Slurm refuses many jobs at once, and soon again: one line is enough.
        if cause.startswith(REFUSES) and not is_last:
            if cause in self._refusals:
                return
            self._refusals.add(cause)
        subject = "; ".join(job.message for job in jobs) or "a job"
        are_submitted = self.on_cluster and any(job.rule not in LOCAL_RULES for job in jobs)
        if is_last:
            text = f"failed: {subject}: {cause}"
        elif are_submitted:
            text = f"{subject}: {cause}; submitted again"
        else:
            text = f"{subject}: {cause}; tried again"
        if existing_logs:
            text += f"; log: {existing_logs[0]}"
        self.error(text, failed=is_last)

    def error(self, text: str, failed: bool = True) -> None:
        """Print a warning, or what failed, beside the output."""
        self.has_failed = self.has_failed or failed
        self._terminal.error(text)

    def end(self) -> None:
        """Print the results if all was made, else where to read on."""
        with self._lock:
            self._terminal.show("")
            if not self._prints_lines or self._is_over.is_set():
                return
            self._is_over.set()
        # A job that failed may have succeeded when it was tried again.
        all_made = self._jobs_left <= 0 and (self._has_begun or not self.has_failed)
        if all_made:
            if self._prints_results:
                self._print_results()
        elif self._has_begun and self.has_failed:
            self.error(f"not all was made: {_log_file()} says more; the same command makes what is missing")

    def _total(self) -> str:
        """Return how many runs the command made, and how long it took until now; "" if it made none."""
        made = self._earlier_runs + self._progress.ended
        if not made:
            return ""
        return f"{counted(made, 'run')} in {hours_and_minutes(time.monotonic() - self._began)}"

    def _print_results(self) -> None:
        if not self._has_begun:
            self._line("Nothing to be done: the results are there")
        self._line(self._total())
        scenarios = self._plan.scenarios
        if len(scenarios) == 1:
            # Its table and the answers that sum it up follow.
            self._print_answer(*scenarios)
        headlines = {scenario: self._wording.answer(scenario) for scenario in scenarios}
        known = {scenario: headline for scenario, headline in headlines.items() if headline is not None}
        try:
            print_results(self._plan.experiment, _near(self._config), known, self._cluster_profile())
        except UserError:  # not all was asked for
            for scenario in known:
                self._print_answer(scenario)

    def _cluster_profile(self) -> str | None:
        """Return the profile by which runs go to a cluster; None if they run on this machine."""
        profile = _stated_profile() if self._plan.experiment.cluster else None
        return None if profile is None else str(_near(profile))

    def _print_answer(self, scenario: str) -> None:
        """Print the answer of a scenario, once."""
        if scenario in self._shown_scenarios:
            return
        answer = self._wording.answer(scenario)
        if answer is not None:
            self._shown_scenarios.add(scenario)
            self._line(answer)

    def _line(self, text: str) -> None:
        """Print a line that stays, unless only errors are printed."""
        if text and self._prints_lines:
            self._terminal.line(text)
            self._next_line_at = time.monotonic() + REMIND_S

    def _watch(self) -> None:
        """Keep the last line of a terminal up to date; elsewhere print now and then how far the cluster is."""
        while not self._is_over.wait(LOOK_S):
            with self._lock:
                if self._is_over.is_set():
                    break
                if self._terminal.is_live:
                    self._terminal.show(self._state())
                elif self._jobs and time.monotonic() > self._next_line_at:
                    self._remind(self._state())

    def _remind(self, state: str) -> None:
        """Print the state of the runs again and again, that of another rule only once."""
        if state != self._last_reminder or self._runs():
            self._line(state)
        self._last_reminder = state

    def _runs(self) -> list[str]:
        """Return the runs whose jobs were started or submitted."""
        return [job.wildcards["run"] for job in self._jobs.values() if job.rule == LAUNCH_RUN]

    def _state(self) -> str:
        """Return what is being done, and how long it may take."""
        runs = self._runs()
        if not runs:
            return next((job.message for job in self._jobs.values()), "")
        if self.on_cluster:
            state = self._state_of_cluster(runs)
        else:
            state = self._name(runs[0], self._progress.ended + 1)
            # The job indents its own progress.
            progress = last_line(self._folder / LAUNCHES / f"{runs[0]}.txt", f"{PROGRESS}  ")
            if progress:
                state += f": {progress}"
        left_s = self._progress.time_left_s(time.monotonic())
        if left_s is None:
            return state
        # It comes first, as a narrow terminal cuts the end.
        return f"about {counted(max(1, round(left_s / 60)), 'minute')} left; {state}"

    def _state_of_cluster(self, runs: Sequence[str]) -> str:
        running = self._progress.count_running(runs)
        ended = f"{self._progress.ended} of {counted(self._progress.total, 'run')} ended"
        state = f"{ended}, {running} running, {len(runs) - running} queued"
        if self._slurm_problem:
            state += f"; Slurm does not answer: {self._slurm_problem}"
        return state

    def _name(self, run: str, position: int) -> str:
        return self._wording.run(run, position, self._progress.total)


def _log_file() -> str:
    """Return Snakemake's log file, as seen from the working directory."""
    for handler in logging.getLogger("snakemake.logging").handlers:
        file = getattr(handler, "baseFilename", None)
        if file is not None:
            return str(_near(file))
    return ".snakemake/log"


def _stated_profile() -> str | None:
    """Return the profile as Snakemake's command line or the environment states it, which plug-ins are not told."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", default=os.environ.get("SNAKEMAKE_PROFILE"))
    arguments, _ = parser.parse_known_args(sys.argv[1:])
    return arguments.profile


def _near(path: str) -> Path:
    """Return a path as seen from the working directory, if it is below that."""
    here = Path.cwd()
    return Path(path).relative_to(here) if Path(path).is_relative_to(here) else Path(path)
