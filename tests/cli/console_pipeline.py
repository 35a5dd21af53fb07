"""A pipeline that tells the console plug-in what Snakemake says, and the output that it leaves."""

import logging
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from conftest import TINY
from factories import make_run, write_run
from multicard.config.load import check
from multicard.config.plan import Plan
from multicard.core.files import write_json
from snakemake_logger_plugin_multicard import LogHandler, LogHandlerSettings

OUTPUT = {
    "printshellcmds": False, "nocolor": True, "quiet": None, "debug_dag": False, "verbose": False,
    "show_failed_logs": True, "stdout": False, "dryrun": False,
}  # fmt: skip
# Far more than any line takes, also on a busy machine.
LIMIT_S = 300
FORMATS = {"question": "?", "vary": {"precision": ["fp32", "fp64"]}, "repeats": 2, "figures": ["step_times"]}

TWO_STEPS = "rank,epoch,step,window,start_s,duration_s\n0,1,1,measured,0.0,0.02\n0,1,2,measured,0.02,0.03\n"


class Pipeline:
    """A pipeline that says to the handler what Snakemake says of one."""

    said: Callable[[], Any]  # what is shown, as `capsys` has it
    output: "Output"

    def __init__(
        self,
        folder: Path,
        console: str = "results",
        starts: bool = True,
        began: float = 0.0,
        earlier_runs: int = 0,
        **output: bool,
    ) -> None:
        self.folder = folder
        plan = {"results": "results", "fixed": TINY, "scenarios": {"formats": FORMATS}}
        self.plan = Plan.make(check(plan, "mine.yaml", outside=False))
        self.handler = LogHandler(SimpleNamespace(**OUTPUT | output), LogHandlerSettings(console, began, earlier_runs))
        self.jobs: dict[str, int] = {}
        self.say("4 runs planned", plan=self.plan)
        if starts:
            self.say("started", event=LogEvent.WORKFLOW_STARTED, configfiles=[str(folder / "mine.yaml")])

    def say(self, text: str | None, level: int = logging.INFO, **facts: Any) -> None:
        """Hand over a log record."""
        module = facts.pop("module", "workflow")
        record = logging.LogRecord("snakemake", level, f"{module}.py", 1, text, None, None)
        record.__dict__ |= facts
        self.handler.handle(record)

    def begins(self, **jobs: int) -> None:
        """Say how many jobs of each rule there are."""
        stats = jobs | {"total": sum(jobs.values())}
        self.say("Job stats", event=LogEvent.RUN_INFO, stats=stats)

    def starts(self, rule: str, message: str, **of: str) -> int:
        """Start a job; its number."""
        job = self.jobs.setdefault(message, len(self.jobs) + 1)
        facts = {"jobid": job, "rule_name": rule, "wildcards": of, "rule_msg": message}
        self.say(f"Rule: {rule}", event=LogEvent.JOB_INFO, **facts)
        return job

    def ends(self, job: int) -> None:
        """End it."""
        self.say("Finished", event=LogEvent.JOB_FINISHED, job_id=job)

    def runs(self, run: str, steps: str = TWO_STEPS, **record: Any) -> None:
        """Start a run, which leaves its record and its steps, and end it."""
        job = self.starts("launch_run", f"run {run}", run=run)
        write_run(self.folder / "results" / "runs", make_run(self.plan.runs[run].parameters, **record))
        (self.folder / "results" / "runs" / run / "steps.csv").write_text(steps)
        self.ends(job)

    def draws(self, sentence: str, figure: str | None) -> None:
        """Leave the answer, which `figure` shows, and a figure of the scenario."""
        answer = {"sentence": sentence, "rows": [{"speedup": 0.9}], "figure": figure}
        write_json(self.folder / "results/scenarios/formats/answer.json", answer)
        drawn = self.folder / "results/figures/formats/step_times.png"
        drawn.parent.mkdir(parents=True)
        drawn.write_bytes(b"")
        self.ends(self.starts("draw_figures", "draw the figures of the scenario formats", scenario="formats"))

    def fails(self, job: int, *logs: str, message: str | None = None) -> None:
        """Say that a job failed."""
        facts = {"jobid": job, "log": list(logs), "rule_msg": message, "indent": False}
        self.say("Error in rule", logging.ERROR, event=LogEvent.JOB_ERROR, **facts)


class Output(StringIO):
    """Standard output that another thread writes to; reading what pytest captures may lose what comes meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal
        monkeypatch.setattr(sys, "stdout", self)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until a text was written so many times; fail after `LIMIT_S`."""
        deadline = time.monotonic() + LIMIT_S
        while self.getvalue().count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.getvalue()!r}"
            time.sleep(0.01)


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the current one, and in it those that a pipeline has made when its jobs start; return it."""
    for name in ("runs", "scenarios/formats", "logs/launch_run"):
        (tmp_path / "results" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
