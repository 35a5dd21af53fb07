"""Snakemake's console under multicard's profiles (`logger: multicard`): runs and results in place of jobs and files.

It prints by Snakemake's events, and by what the Snakefile hands over as attributes of log records: the plan (`plan`),
the event that is set when the pipeline is to end (`ending`) with the number of times that a failed job is tried again
(`retries`), and the jobs in Slurm's queue (`slurm_queue`). Everything else is in Snakemake's log file, and what a job
prints in the job's own.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_multicard.failures import REFUSES

if TYPE_CHECKING:
    from multicard.config.plan import Plan
    from snakemake_logger_plugin_multicard.console import Console

RESULTS, RUNS, ERRORS, FULL = "results", "runs", "errors", "full"
# At the end, this module of Snakemake warns once more that a job has failed.
REPEATING_MODULE = "job_scheduler"


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of the plugin, on Snakemake's command line with the prefix `--logger-multicard-`."""

    console: str = field(
        default=RESULTS,
        metadata={
            "help": "what the console shows: the runs and their results, the runs, only errors, or all of Snakemake",
            "choices": [RESULTS, RUNS, ERRORS, FULL],
        },
    )
    began: float = field(
        default=0.0,
        metadata={
            "help": "when the command began that started Snakemake, in seconds of the system's monotonic clock; 0: now"
        },
    )
    earlier_runs: int = field(
        default=0, metadata={"help": "runs that this command made when it started Snakemake before"}
    )


class LogHandler(LogHandlerBase):
    """Prints what a person wants to know of a pipeline while it runs; made by Snakemake.

    What Snakemake logs before a workflow starts is printed only if none does, as by `--list-rules` or `--unlock`; a
    dry run is shown as Snakemake shows it.
    """

    def __post_init__(self) -> None:
        from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

        output = self.common_settings
        self._plan: Plan | None = None
        # Made once the workflow of the plan starts.
        self._console: Console | None = None
        # An error of a rule, until it is clear whether the error of its job follows.
        self._cause: logging.LogRecord | None = None
        # Records from before the workflow.
        self._held: list[logging.LogRecord] = []
        self._warnings: set[str] = set()
        # Set when the pipeline is to end.
        self._ending = threading.Event()
        settings = self.settings if isinstance(self.settings, LogHandlerSettings) else LogHandlerSettings()
        self._mode = FULL if output.dryrun else settings.console
        self._began = settings.began or time.monotonic()
        self._earlier_runs = settings.earlier_runs
        self._all = ColorizingTextHandler(
            output.nocolor,
            sys.stdout if output.stdout else sys.stderr,
            DefaultFormatter(output.quiet, output.show_failed_logs),
            DefaultFilter(output.quiet, output.debug_dag, output.verbose, output.dryrun, output.printshellcmds),
        )

    writes_to_stream = has_filter = has_formatter = property(lambda self: True)
    writes_to_file = needs_rulegraph = property(lambda self: False)

    def emit(self, record: logging.LogRecord) -> None:
        """Print what the record says, if anything; a terminal that was closed ends nothing."""
        try:
            self._show(record)
        except OSError:
            pass
        except Exception:
            self.handleError(record)

    def _show(self, record: logging.LogRecord) -> None:
        attributes = record.__dict__
        if self._mode == FULL:
            self._all.handle(record)
        elif "plan" in attributes:
            self._plan = attributes["plan"]
        elif "ending" in attributes:
            self._ending = attributes["ending"]
            if self._console:
                self._console.retries = attributes.get("retries", 0)
        elif "slurm_queue" in attributes:
            if self._console:
                self._console.look_at_queue(attributes["slurm_queue"])
        else:
            self._show_event(record, attributes.get("event"), attributes)

    def _show_event(self, record: logging.LogRecord, event: LogEvent | None, news: Mapping[str, Any]) -> None:
        """Print a record of Snakemake; `news`: its attributes, which depend on the event."""
        if event and self._ending.is_set():
            return  # jobs fail because they are ended
        if event == LogEvent.ERROR and news["exception"] == "RuleException":
            # A command failed: the error of the job says more, if it follows.
            self._cause = record
            return
        cause = self._cause
        self._cause = None
        if cause and event not in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR):
            self._print(cause.getMessage(), failed=True)
        is_warning = event is None and record.levelno >= logging.WARNING and record.module != REPEATING_MODULE
        if event == LogEvent.WORKFLOW_STARTED:
            self._start(record, news)
        elif is_warning:
            self._warn(record.getMessage())
        elif event == LogEvent.ERROR:
            self._show_error(record, news)
        elif self._console is None:
            self._held.append(record)
        else:
            _pass_on(event, news, self._console)

    def _start(self, record: logging.LogRecord, news: Mapping[str, Any]) -> None:
        """Make the console; another workflow than the plan's is shown as Snakemake shows it."""
        if self._plan is None:
            self._mode = FULL
            self._held.append(record)
            return
        from snakemake_logger_plugin_multicard.console import Console

        assert self.lock is not None  # every handler of logging has one
        self._console = Console(
            self._plan,
            news["configfiles"],
            self.lock,
            lines=self._mode in (RESULTS, RUNS),
            results=self._mode == RESULTS,
            began=self._began,
            earlier_runs=self._earlier_runs,
        )

    def _warn(self, message: str) -> None:
        """Print a warning once: the plugin for Slurm warns of each job."""
        if message not in self._warnings:
            self._warnings.add(message)
            self._print(message)

    def _show_error(self, record: logging.LogRecord, news: Mapping[str, Any]) -> None:
        """Print an error, but not the one in which Snakemake says at the end that jobs have failed."""
        is_repeated = self._console is not None and self._console.has_failed and news["exception"] == "WorkflowError"
        if not is_repeated:
            self._print(record.getMessage(), failed=True)

    def _print(self, text: str, failed: bool = False) -> None:
        if self._console:
            self._console.error(text, failed)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print what comes last."""
        try:
            if self._cause and not self._ending.is_set():
                self._print(self._cause.getMessage(), failed=True)
            if self._console:
                self._console.end()
            else:
                for record in self._held:
                    self._all.handle(record)
        except OSError:
            pass
        except Exception:
            traceback.print_exc()  # Snakemake ignores what a handler raises as it closes, and the results would be lost
        super().close()


def _pass_on(event: LogEvent | None, news: Mapping[str, Any], console: "Console") -> None:
    """Pass an event of the workflow on to the console."""
    match event:
        case LogEvent.RESOURCES_INFO:
            console.on_cluster = console.on_cluster or "nodes" in news
        case LogEvent.RUN_INFO:
            console.begin(news["stats"])
        case LogEvent.JOB_INFO:
            console.job_started(news["jobid"], news["rule_name"], news["wildcards"] or {}, news["rule_msg"])
        case LogEvent.JOB_FINISHED:
            console.job_ended(news["job_id"])
        case LogEvent.JOB_ERROR if not news["indent"]:  # the jobs of a group have their line together
            console.job_failed([news["jobid"]], news["log"], news["rule_msg"])
        case LogEvent.GROUP_ERROR:
            jobs = news["job_error_info"]
            logs = [log for job in jobs for log in job["log"]] + news["aux_logs"]
            # Snakemake does not pass on why a group failed. Without a Slurm job, the submission did.
            was_refused = console.on_cluster and not news.get("external_jobid")
            console.job_failed([job["jobid"] for job in jobs], logs, REFUSES if was_refused else None)
