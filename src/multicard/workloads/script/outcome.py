"""Outcomes of a job that only scripts have: no training was seen, or not the training that was configured.

The launcher has judged a job by its exit and by the records of its ranks. `CHECKS` look at further facts, one after the
other; the first that objects decides.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multicard.core.files import read_json
from multicard.core.layout import COPIED, JOB, MADE, PROCESS, Outcome, node_file, rank_file
from multicard.core.reasons import Reason
from multicard.core.text import counted
from multicard.record.profiled_window import FIRST_BY_BACKWARD, LEAST_SETTLING
from multicard.runs.rank_report import RankReport, reason_from
from multicard.runs.verdict import Verdict
from multicard.workloads.script.launchers import LAUNCHERS
from multicard.workloads.script.parameters import ScriptParameters

# Environment variables that scripts for several ranks read.
LAUNCHER_VARIABLES = re.compile(r"\b(?:WORLD_SIZE|LOCAL_RANK|RANK|MASTER_ADDR|MASTER_PORT)\b")


def judge_script(
    p: ScriptParameters, outcome: Outcome, reason: Reason | None, reports: Sequence[RankReport], scratch: Path
) -> Verdict:
    """See `multicard.experiment.workload.Workload.judge`."""
    facts = ScriptFacts.read(p, outcome, reason, reports, scratch)
    outcome, reason = first_verdict(facts)
    return Verdict(outcome, _explained(reason, facts, scratch))


@dataclass(frozen=True)
class ObservedProcess:
    """A Python process of a job, as the observer inside it has described it (`multicard.record.observe`)."""

    program: str
    python: str  # version
    torch: str | None  # version, if it was imported
    rank: int | None
    has_stepped: bool
    has_run_backward: bool
    # `outcome` and `reason` of an exception before the first step.
    error: Mapping[str, Any] | None

    @classmethod
    def read(cls, file: Path) -> "ObservedProcess":
        """Read a process.json."""
        record = read_json(file)
        return cls(
            program=record["program"],
            python=record.get("python", ""),
            torch=record.get("torch"),
            rank=record.get("rank"),
            has_stepped=bool(record.get("steps")),
            has_run_backward=bool(record.get("backward")),
            error=record.get("error"),
        )


@dataclass(frozen=True)
class ScriptFacts:
    """Facts of a script's job that has ended, for the checks."""

    p: ScriptParameters
    # The launcher's verdict.
    outcome: Outcome
    reason: Reason | None
    # Reports of the ranks that left one.
    ranks: Sequence[RankReport]
    # All Python processes, in the order in which they last wrote to their files.
    processes: Sequence[ObservedProcess]
    trained: int  # number of processes that trained
    # True if all files of the processes are in the scratch folder: a node that was lost has not copied its own.
    is_complete: bool

    @classmethod
    def read(
        cls, p: ScriptParameters, outcome: Outcome, reason: Reason | None, ranks: Sequence[RankReport], scratch: Path
    ) -> "ScriptFacts":
        """Collect the facts from the scratch folder of a run."""
        files = sorted(scratch.glob(f"{PROCESS}.*[0-9]"), key=lambda file: file.stat().st_mtime_ns)
        processes = [ObservedProcess.read(file) for file in files]
        stepped = sum(process.has_stepped for process in processes)
        # A rank may have failed before its first step. Processes that claim the same rank leave one record.
        recorded = len(list(scratch.glob("rank.json.rank*[0-9]")))
        tasks = range(p.nodes * LAUNCHERS[p.launched_by].tasks_per_node(p))
        is_complete = p.nodes == 1 or all((scratch / node_file(COPIED, task)).exists() for task in tasks)
        return cls(p, outcome, reason, ranks, processes, max(recorded, stepped), is_complete)

    @property
    def uses_some_gpus(self) -> bool:
        """True if the only process used some of its GPUs and not all, by the launcher's verdict."""
        return self.reason is not None and self.reason.code == "wrong_gpus" and self.p.ranks < self.p.devices

    @property
    def ended_without_error(self) -> bool:
        """True if the script ran to its end, even if that was before its windows were complete."""
        if self.outcome == "completed" or self.uses_some_gpus:
            return True
        return self.reason is not None and self.reason.code == "exited" and self.reason.exit_code == 0

    @property
    def can_judge_ranks(self) -> bool:
        """True if no rank failed, so that the processes that trained are those that the script wants."""
        is_over = self.ended_without_error or self.outcome == "timed_out"
        return is_over and all(rank.outcome == "completed" for rank in self.ranks)


def trained_on_cpus(facts: ScriptFacts) -> Verdict | None:
    """Object to ranks of which none used a GPU."""
    if facts.reason is not None and facts.reason.code == "wrong_gpus" and not facts.reason.gpus:
        return Verdict("failed", Reason("trained_on_cpu"))
    return None


def ended_without_training(facts: ScriptFacts) -> Verdict | None:
    """Object to a script that ran to its end without a step."""
    if facts.ended_without_error and facts.trained == 0:
        return Verdict("failed", no_steps(facts.processes))
    return None


def trained_in_another_number(facts: ScriptFacts) -> Verdict | None:
    """Object to more or fewer processes that trained than the launcher has ranks."""
    if not facts.can_judge_ranks:
        return None
    expected = facts.p.ranks
    # At the time limit, processes that had not trained may have been about to.
    are_missing = facts.ended_without_error and facts.trained < expected
    if facts.trained > expected or are_missing:
        return Verdict("failed", Reason("hidden_ranks", ranks=facts.trained, devices=expected))
    return None


def claimed_one_rank(facts: ScriptFacts) -> Verdict | None:
    """Object to several processes that trained as the same rank."""
    claims = Counter(process.rank for process in facts.processes if process.has_stepped)
    if not facts.can_judge_ranks or not claims:
        return None
    [(rank, count)] = claims.most_common(1)
    return Verdict("failed", Reason("same_rank", rank=rank, ranks=count)) if count > 1 else None


def trained_apart(facts: ScriptFacts) -> Verdict | None:
    """Object to ranks of which none exchanged anything, unless the run is to go without communication."""
    if not facts.can_judge_ranks or len(facts.ranks) < 2 or "communication" in facts.p.ablated:
        return None
    exchanged = [rank.observed and rank.observed.exchanged for rank in facts.ranks]
    # None of a rank that did not observe it.
    if all(answer is False for answer in exchanged):
        return Verdict("failed", Reason("trained_apart", ranks=len(facts.ranks)))
    return None


def left_gpus_unused(facts: ScriptFacts) -> Verdict | None:
    """Object to a process that used fewer GPUs than it got."""
    if facts.reason is not None and facts.uses_some_gpus:
        return Verdict(facts.outcome, replace(facts.reason, code="unused_gpus"))
    return None


def failed_in_a_process(facts: ScriptFacts) -> Verdict | None:
    """Name the error of a process where the launcher knows an exit code only."""
    reason = facts.reason
    if facts.ended_without_error or reason is None or reason.code != "exited" or reason.rank is not None:
        return None
    # The modules of launchers raise only because a rank has failed.
    launchers = {module for launcher in LAUNCHERS.values() for module in launcher.modules}
    errors = [
        (process.program, process.error)
        for process in facts.processes
        if process.error and process.program not in launchers
    ]
    if not errors:
        return None
    # The script itself explains what it started. Of its ranks, the first to fail explains the others.
    stated = {Path(word).name for word in facts.p.command}
    of_script = [(program, error) for program, error in errors if Path(program).name in stated]
    _, error = (of_script or errors)[0]
    return Verdict(error["outcome"], reason_from(error["reason"]))


def reached_the_limit_without_training(facts: ScriptFacts) -> Verdict | None:
    """Name the missing steps of a job that reached its time limit, if no process can have made one unseen."""
    if facts.outcome != "timed_out" or facts.reason is None or not facts.is_complete:
        return None
    if any(process.has_stepped for process in facts.processes):
        return None
    return Verdict(facts.outcome, replace(no_steps(facts.processes), time_limit_s=facts.reason.time_limit_s))


# The order matters: an earlier check names the cause of what a later one would find, too.
CHECKS: tuple[Callable[[ScriptFacts], Verdict | None], ...] = (
    trained_on_cpus,
    ended_without_training,
    trained_in_another_number,
    claimed_one_rank,
    trained_apart,
    left_gpus_unused,
    failed_in_a_process,
    reached_the_limit_without_training,
)


def first_verdict(facts: ScriptFacts) -> Verdict:
    """Return the verdict of the first of `CHECKS` that objects, else the launcher's."""
    for check in CHECKS:
        verdict = check(facts)
        if verdict is not None:
            return verdict
    return Verdict(facts.outcome, facts.reason)


def no_steps(processes: Sequence[ObservedProcess]) -> Reason:
    """Return a reason that names what was seen instead of steps, and what that means."""
    torch_versions = sorted({process.torch for process in processes if process.torch})
    python_versions = sorted({process.python for process in processes})
    seen = f"{counted(len(processes), 'process')}, Python {', '.join(python_versions)}"
    if not processes:
        message = (
            "no process of Python was observed; the script or its launcher must not clear PYTHONPATH, nor start Python "
            "with -I, -E or -S"
        )
    elif not torch_versions:
        message = (
            f"it did not train by PyTorch: nothing imported torch ({seen}); check that the command starts your training"
        )
    else:
        passes = ""
        if any(process.has_run_backward for process in processes):
            passes = f", and made fewer than the {FIRST_BY_BACKWARD} backward passes after which these count as steps"
        message = (
            f"it called no optimizer of PyTorch ({seen}, torch {', '.join(torch_versions)}){passes}; log.txt may say "
            "why, and a loop that hides its steps needs `import multicard.marks` and, after each step, "
            "`multicard.marks.step()`"
        )
    return Reason("no_steps", message=message)


def _explained(reason: Reason | None, facts: ScriptFacts, scratch: Path) -> Reason | None:
    """Return the reason with what helps a user further in its message."""
    if reason is None:
        return None
    if reason.code == "exited" and reason.exit_code == 0:
        reason = replace(reason, message="it ended as by os._exit, before its windows were complete")
    if reason.code in ("exited", "timed_out"):
        steps = _steps_made(facts, reason.code, scratch)
        if steps is not None:
            reason = replace(reason, message="; ".join(filter(None, (reason.message, steps))))
    if facts.p.launched_by == "python" and LAUNCHER_VARIABLES.search(reason.message or ""):
        hint = "a launcher sets it: state launcher: torchrun (--launcher torchrun), which starts one device, too"
        reason = replace(reason, message=f"{reason.message}; {hint}")
    return reason


def _steps_made(facts: ScriptFacts, code: str, scratch: Path) -> str | None:
    """Describe how far the ranks came; None where no rank made a step, or where a node's ranks are unknown."""
    if not facts.is_complete:
        return None
    p = facts.p
    counts = [_count_in(scratch / rank_file(MADE, rank)) for rank in range(p.ranks)]
    if not any(counts):
        return None
    if len(set(counts)) == 1:
        profiled = read_json(scratch / JOB)["observe"]["profiled_steps"]
        settling = LEAST_SETTLING if profiled else 0
        needed = p.warmup_steps + p.steps + settling + profiled
        return f"it had made {counts[0]} of at least {needed} steps"
    by_rank = ", ".join(f"rank {rank} {count}" for rank, count in enumerate(counts))
    # Ranks that were ended because of another one have made another number anyway.
    hint = "; every rank has to make the same number" if code == "timed_out" else ""
    return f"steps made: {by_rank}{hint}"


def _count_in(file: Path) -> int:
    """Return the number of steps that a rank counts in a file, 0 if it has made none."""
    return int.from_bytes(file.read_bytes(), sys.byteorder) if file.exists() else 0
