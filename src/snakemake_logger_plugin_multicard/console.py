"""What the console shows of a pipeline: the current run, a line as each ends, and the result of each scenario."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from multicard.archive.matrix import Matrix
from multicard.cli._overview import print_results
from multicard.cli.run import read_record
from multicard.core.errors import UserError
from multicard.core.files import read_json
from multicard.core.layout import HEADLINE, LAUNCHES, LOG, PROGRESS, RUN, STEPS
from multicard.core.reasons import describe_reason
from multicard.core.text import counted, printable, printable_lines
from multicard.core.units import ARGS_PREFIX, SECONDS, with_unit
from multicard.experiment.estimate import estimate_cost
from multicard.launch.judge import measured_steps

RUNS, DRAWN = "launch_run", "draw_figures"  # rules
SHOWN = ("prepare_data", "prepare_model", "measure_machine")  # may take long, too
LOOK_S = 1.0
REMIND_S = 60.0  # between lines about the queue, where they stay
AT_FIRST_S = 2.0  # by which the jobs that are submitted together are
LONGEST = 300  # characters of a reason
TAIL_BYTES = 4000


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
        self._has_begun = False
        self._jobs: dict[int, Job] = {}
        self._told: set[str] = set()  # scenarios
        self._live = results and sys.stdout.isatty()
        self._drawn = ""  # the current state, as it stands on the terminal
        self._lock, self._over = lock, threading.Event()
        self._began, self._last_end, self._next_line = time.monotonic(), 0.0, 0.0
        # Of scenarios that share a run the first.
        self._scenario_of = {run.id: name for name, runs in reversed(matrix.scenarios.items()) for run in runs}

    def begin(self, jobs: Mapping[str, int]) -> None:
        """Say what is to be done, by the number of jobs of each rule."""
        self.total, self.jobs_left, self._has_begun = jobs.get(RUNS, 0), jobs["total"], True
        self._began = time.monotonic()
        self.line(f"{counted(self.total, 'run')}{self._estimate()}; results: {self.folder}/; log: {_log_file()}")
        if self._live or (self.results and self.on_cluster):
            threading.Thread(target=self._watch, name="console", daemon=True).start()

    def job_started(self, job: int, rule: str, of: Mapping[str, str], message: str) -> None:
        """Note a job that starts, or that is submitted to a cluster."""
        self._jobs[job] = Job(rule, of, message or rule)
        self._next_line = min(self._next_line, time.monotonic() + AT_FIRST_S)
        if rule in SHOWN:
            self.line(message)

    def job_ended(self, job: int) -> None:
        """Tell what came of a run, and the result of a scenario whose figures are drawn."""
        self.jobs_left -= 1
        found = self._jobs.pop(job, None)
        if found and found.rule == RUNS:
            self.ended += 1
            self._last_end = time.monotonic()
            self.line(self._named(found.of["run"], self.ended, self._outcome(found.of["run"])))
        elif found and found.rule == DRAWN:
            self.line(self._headline(found.of["scenario"]))

    def job_failed(self, jobs: Sequence[int], logs: Sequence[str], message: str | None) -> None:
        """Tell of jobs that could not be done: of a run, that it has no outcome."""
        found = [job for number in jobs if (job := self._jobs.pop(number, None))]
        there = [log for log in logs if Path(log).is_file()]
        why = next(filter(None, map(_last_line, there)), None) or message or "its command failed"
        what = "; ".join(job.message for job in found) or "a job"
        self.error(f"failed: {what}: {why}" + (f"; log: {there[0]}" if there else ""))

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
                    self.line(self._state())

    def _state(self) -> str:
        """What is being done, and how long it may take."""
        runs = [job.of["run"] for job in self._jobs.values() if job.rule == RUNS]
        if self.on_cluster and runs:
            running = sum((self.folder / LAUNCHES / f"{run}.txt").exists() for run in runs)
            text = (
                f"{self.ended} of {counted(self.total, 'run')} ended, {running} running, {len(runs) - running} queued"
            )
        elif runs:
            progress = _last_line(self.folder / LAUNCHES / f"{runs[0]}.txt", f"{PROGRESS}  ")  # the job's own, indented
            text = self._named(runs[0], self.ended + 1, progress)
        else:
            text = next((job.message for job in self._jobs.values()), "")
        if runs and self.ended:
            left = (self._last_end - self._began) / self.ended * (self.total - self.ended)
            left -= time.monotonic() - self._last_end
            # First, as a narrow terminal cuts the end.
            text = f"about {counted(max(1, round(left / 60)), 'minute')} left; {text}"
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


def _last_line(file: Path, prefix: str | None = None) -> str | None:
    """The last line of a file that is not empty, without spaces around it.

    `prefix`: of those that begin with it, without it; by default of those that do not begin with `PROGRESS`.
    """
    try:
        with Path(file).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    mine = [line for line in lines if (line.startswith(prefix) if prefix else not line.startswith(PROGRESS))]
    return printable(mine[-1].removeprefix(prefix or "").strip(), LONGEST) if mine else None


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
