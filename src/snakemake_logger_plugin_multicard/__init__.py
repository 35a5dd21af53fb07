"""Snakemake's console under multicard's profiles (`logger: multicard`): runs and results in place of jobs and files.

It prints by Snakemake's events, and by what the Snakefile hands over as attributes of log records: the plan (`matrix`),
what is set when the pipeline is told to end (`ending`) with the number of times that a failed job is tried again
(`retries`), and the jobs in Slurm's queue (`slurm_queue`). Everything else is in Snakemake's log file, and what a job
prints in the job's own.
"""

import logging
import sys
import threading
from dataclasses import dataclass, field

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_multicard.failures import REFUSES

RESULTS, ERRORS, FULL = "results", "errors", "full"
NO_NEWS = "job_scheduler"  # the module that says, at the end, that a job has failed


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of the plugin, on Snakemake's command line with the prefix `--logger-multicard-`."""

    console: str = field(
        default=RESULTS,
        metadata={
            "help": "what the console shows: the runs and their results, only errors, or all that Snakemake says",
            "choices": [RESULTS, ERRORS, FULL],
        },
    )


class LogHandler(LogHandlerBase):
    """Prints what a person wants to know of a pipeline while it runs.

    What Snakemake says before a workflow starts is printed only if none does, as by `--list-rules` or `--unlock`; a
    dry run is shown as Snakemake shows it.
    """

    def __post_init__(self) -> None:
        from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

        own = self.common_settings
        self._console = self._matrix = self._cause = None
        self._held: list[logging.LogRecord] = []
        self._warnings: set[str] = set()
        self._ending = threading.Event()  # set when the pipeline is told to end
        self._mode = FULL if own.dryrun else self.settings.console if self.settings else RESULTS
        self._all = ColorizingTextHandler(
            own.nocolor,
            sys.stdout if own.stdout else sys.stderr,
            DefaultFormatter(own.quiet, own.show_failed_logs),
            DefaultFilter(own.quiet, own.debug_dag, own.verbose, own.dryrun, own.printshellcmds),
        )

    writes_to_stream = has_filter = has_formatter = property(lambda self: True)
    writes_to_file = needs_rulegraph = property(lambda self: False)

    def emit(self, record: logging.LogRecord) -> None:
        """Print what the record tells, if anything; a terminal that was closed ends nothing."""
        try:
            if self._mode == FULL:
                self._all.handle(record)
            elif matrix := getattr(record, "matrix", None):
                self._matrix = matrix
            elif ending := getattr(record, "ending", None):
                self._ending = ending
                if self._console:
                    self._console.retries = getattr(record, "retries", 0)
            elif queue := getattr(record, "slurm_queue", None):
                if self._console:
                    self._console.look_at_queue(queue)
            else:
                self._tell(record)
        except OSError:
            pass
        except Exception:
            self.handleError(record)

    def _tell(self, record: logging.LogRecord) -> None:
        event, news = getattr(record, "event", None), record.__dict__
        if event and self._ending.is_set():
            return  # jobs fail because they are ended
        if event == LogEvent.ERROR and news["exception"] == "RuleException":
            self._cause = record  # that a command failed, which the job's own error says better if it follows
            return
        if self._cause and event not in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR):
            self._say(self._cause.getMessage(), failed=True)
        self._cause = None
        if event == LogEvent.WORKFLOW_STARTED:
            if self._matrix is None:  # another workflow
                self._mode, self._held = FULL, [*self._held, record]
                return
            from snakemake_logger_plugin_multicard.console import Console

            self._console = Console(self._matrix, news["configfiles"], self.lock, results=self._mode == RESULTS)
        elif event is None and record.levelno >= logging.WARNING and record.module != NO_NEWS:
            if record.getMessage() not in self._warnings:  # the plugin for Slurm warns of each job
                self._warnings.add(record.getMessage())
                self._say(record.getMessage())
        elif event == LogEvent.ERROR:
            # At the end Snakemake says once more that jobs have failed.
            if not (self._console and self._console.has_failed and news["exception"] == "WorkflowError"):
                self._say(record.getMessage(), failed=True)
        elif self._console is None:
            self._held.append(record)
        elif event == LogEvent.RESOURCES_INFO:
            self._console.on_cluster = self._console.on_cluster or "nodes" in news
        elif event == LogEvent.RUN_INFO:
            self._console.begin(news["stats"])
        elif event == LogEvent.JOB_INFO:
            self._console.job_started(news["jobid"], news["rule_name"], news["wildcards"] or {}, news["rule_msg"])
        elif event == LogEvent.JOB_FINISHED:
            self._console.job_ended(news["job_id"])
        elif event == LogEvent.JOB_ERROR and not news["indent"]:  # those of a group have their line together
            self._console.job_failed([news["jobid"]], news["log"], news["rule_msg"])
        elif event == LogEvent.GROUP_ERROR:
            jobs = news["job_error_info"]
            logs = [log for job in jobs for log in job["log"]] + news["aux_logs"]
            # Snakemake does not pass on why a group failed.
            message = None if news.get("external_jobid") or not self._console.on_cluster else REFUSES
            self._console.job_failed([job["jobid"] for job in jobs], logs, message)

    def _say(self, text: str, failed: bool = False) -> None:
        if self._console:
            self._console.error(text, failed)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print what comes last."""
        try:
            if self._cause and not self._ending.is_set():
                self._say(self._cause.getMessage(), failed=True)
            if self._console:
                self._console.end()
            for record in [] if self._console else self._held:
                self._all.handle(record)
        except OSError:
            pass
        super().close()
