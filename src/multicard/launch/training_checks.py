"""Judge a job by whether it trained, and trained as configured.

The launcher has given its verdict already, by how the job exited and by the reports of its ranks. The functions in
`CHECKS` look at further facts, in their order. The first that returns a verdict decides. If none does, the launcher's
verdict stays.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multicard.core.files import read_json
from multicard.core.job_file import read_job
from multicard.core.layout import COPIED, JOB, MADE, PROCESS, Outcome, node_file, rank_file
from multicard.core.reasons import Reason
from multicard.core.text import counted
from multicard.launch.start import rank_command, tasks_per_node
from multicard.launchers import LAUNCHERS
from multicard.observe.record.profiled_window import FIRST_BY_BACKWARD, LEAST_SETTLING
from multicard.runs.parameters import JobParameters
from multicard.runs.rank_report import RankReport, reason_from
from multicard.runs.verdict import Verdict

# Environment variables that only a launcher sets. The error of a script that needs a launcher names one of them.
LAUNCHER_VARIABLES = re.compile(r"\b(?:WORLD_SIZE|LOCAL_RANK|RANK|MASTER_ADDR|MASTER_PORT)\b")


def judge_training(p: JobParameters, verdict: Verdict, ranks: Sequence[RankReport], scratch: Path) -> Verdict:
    """Return the first verdict that one of `CHECKS` gives, else the launcher's; with the steps that were made.

    `verdict`: the launcher's. `ranks`: the reports of the expected ranks; a rank may have left none. `scratch`: folder
    with the files that the ranks of all nodes wrote.
    """
    facts = TrainingFacts.read(p, verdict, ranks, scratch)
    outcome, reason = first_verdict(facts)
    return Verdict(outcome, _explained(reason, facts))


@dataclass(frozen=True)
class ObservedProcess:
    """A Python process of a job, as the observer inside it has described it (`multicard.observe`)."""

    program: str
    python: str  # version
    torch: str | None  # version; None if the process did not import torch
    rank: int | None  # None if the process did not claim a rank
    has_stepped: bool
    has_run_backward: bool
    # `outcome` and `reason` of an exception before the first step; None if there was none.
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
class TrainingFacts:
    """What the checks know about a job that has ended."""

    p: JobParameters
    # The folder with the files that the ranks of all nodes wrote.
    scratch: Path
    # The launcher's verdict.
    outcome: Outcome
    reason: Reason | None
    # Reports of the ranks that left one.
    ranks: Sequence[RankReport]
    # All observed Python processes. They are ordered by when each last wrote its process.json, the latest last.
    processes: Sequence[ObservedProcess]
    trained: int  # number of processes that trained
    # True if the scratch folder has the processes' files of all nodes. A node that was lost did not copy its files.
    is_complete: bool

    @classmethod
    def read(cls, p: JobParameters, verdict: Verdict, ranks: Sequence[RankReport], scratch: Path) -> "TrainingFacts":
        """Collect the facts from the scratch folder of a job; the arguments are those of `judge_training`."""
        files = sorted(scratch.glob(f"{PROCESS}.*[0-9]"), key=lambda file: file.stat().st_mtime_ns)
        processes = [ObservedProcess.read(file) for file in files]
        stepped = sum(process.has_stepped for process in processes)
        # Each number may be too low, so the larger one counts. Ranks that failed before their first step are not in
        # `stepped`. Processes that claim the same rank leave a single record, and count once in `recorded`.
        recorded = len(list(scratch.glob("rank.json.rank*[0-9]")))
        tasks = range(p.nodes * tasks_per_node(p))
        is_complete = p.nodes == 1 or all((scratch / node_file(COPIED, task)).exists() for task in tasks)
        trained = max(recorded, stepped)
        return cls(p, scratch, verdict.outcome, verdict.reason, ranks, processes, trained, is_complete)

    @property
    def uses_some_gpus(self) -> bool:
        """True if the launcher's verdict is that a single process, for several GPUs, used fewer than all of them."""
        return self.reason is not None and self.reason.code == "wrong_gpus" and self.p.ranks < self.p.devices

    @property
    def ended_without_error(self) -> bool:
        """True if the script ran to its end, even if that was before its windows were complete."""
        if self.outcome == "completed" or self.uses_some_gpus:
            return True
        return self.reason is not None and self.reason.code == "exited" and self.reason.exit_code == 0

    @property
    def can_judge_ranks(self) -> bool:
        """True if no rank failed, so that the processes that trained are as many as the script lets train."""
        is_over = self.ended_without_error or self.outcome == "timed_out"
        return is_over and all(rank.outcome == "completed" for rank in self.ranks)


def trained_on_cpus(facts: TrainingFacts) -> Verdict | None:
    """Object if no rank of a run on GPUs used a GPU."""
    if facts.reason is not None and facts.reason.code == "wrong_gpus" and not facts.reason.gpus:
        return Verdict("failed", Reason("trained_on_cpu"))
    return None


def ended_without_training(facts: TrainingFacts) -> Verdict | None:
    """Object if the script ran to its end without making a step."""
    if facts.ended_without_error and facts.trained == 0:
        return Verdict("failed", no_steps(facts.processes))
    return None


def trained_in_another_number(facts: TrainingFacts) -> Verdict | None:
    """Object if more or fewer processes trained than the launcher starts ranks."""
    if not facts.can_judge_ranks:
        return None
    expected = facts.p.ranks
    # At the time limit nothing is missing yet: processes that had not trained may have been about to begin.
    are_missing = facts.ended_without_error and facts.trained < expected
    if facts.trained > expected or are_missing:
        return Verdict("failed", Reason("hidden_ranks", ranks=facts.trained, devices=expected))
    return None


def claimed_one_rank(facts: TrainingFacts) -> Verdict | None:
    """Object if several processes trained as the same rank."""
    claims = Counter(process.rank for process in facts.processes if process.has_stepped)
    if not facts.can_judge_ranks or not claims:
        return None
    [(rank, count)] = claims.most_common(1)
    return Verdict("failed", Reason("same_rank", rank=rank, ranks=count)) if count > 1 else None


def trained_apart(facts: TrainingFacts) -> Verdict | None:
    """Object if no rank exchanged anything with the others, unless the run leaves out communication on purpose."""
    if not facts.can_judge_ranks or len(facts.ranks) < 2 or "communication" in facts.p.ablated:
        return None
    exchanged = [rank.observed and rank.observed.exchanged for rank in facts.ranks]
    # True or False by rank; None for a rank that does not know, and then this check does not object.
    if all(answer is False for answer in exchanged):
        return Verdict("failed", Reason("trained_apart", ranks=len(facts.ranks)))
    return None


def left_gpus_unused(facts: TrainingFacts) -> Verdict | None:
    """Object if a single process used fewer GPUs than it got. If it used none, `trained_on_cpus` objected before."""
    if facts.reason is not None and facts.uses_some_gpus:
        return Verdict(facts.outcome, replace(facts.reason, code="unused_gpus"))
    return None


def failed_in_a_process(facts: TrainingFacts) -> Verdict | None:
    """Return the error that a process reported, if the launcher knows only an exit code, and not of which rank."""
    reason = facts.reason
    if facts.ended_without_error or reason is None or reason.code != "exited" or reason.rank is not None:
        return None
    # Modules of launchers are left out: they raise errors only because a rank has failed.
    launchers = {module for launcher in LAUNCHERS.values() for module in launcher.modules}
    errors = [
        (process.program, process.error)
        for process in facts.processes
        if process.error and process.program not in launchers
    ]
    if not errors:
        return None
    # The script's own errors explain those of the programs that it started, so they come first. Of several processes
    # of the script, the first that failed is the cause of the other failures.
    stated = {Path(word).name for word in rank_command(facts.p).words}
    of_script = [(program, error) for program, error in errors if Path(program).name in stated]
    _, error = (of_script or errors)[0]
    return Verdict(error["outcome"], reason_from(error["reason"]))


def reached_the_limit_without_training(facts: TrainingFacts) -> Verdict | None:
    """Say what was observed instead of steps, if the job reached its time limit and surely no process made a step.

    That is sure only if the files of all nodes are there.
    """
    if facts.outcome != "timed_out" or facts.reason is None or not facts.is_complete:
        return None
    if any(process.has_stepped for process in facts.processes):
        return None
    return Verdict(facts.outcome, replace(no_steps(facts.processes), time_limit_s=facts.reason.time_limit_s))


# The order matters: what an earlier check finds is the cause of what a later check would find in the same job.
CHECKS: tuple[Callable[[TrainingFacts], Verdict | None], ...] = (
    trained_on_cpus,
    ended_without_training,
    trained_in_another_number,
    claimed_one_rank,
    trained_apart,
    left_gpus_unused,
    failed_in_a_process,
    reached_the_limit_without_training,
)


def first_verdict(facts: TrainingFacts) -> Verdict:
    """Return the verdict of the first of `CHECKS` that objects; the launcher's verdict if none does."""
    for check in CHECKS:
        verdict = check(facts)
        if verdict is not None:
            return verdict
    return Verdict(facts.outcome, facts.reason)


def no_steps(processes: Sequence[ObservedProcess]) -> Reason:
    """Return a reason whose message says what was observed instead of steps, and what the user can do."""
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
        # After `FIRST_BY_BACKWARD` backward passes without an optimizer, the observer takes each for a step.
        passes = ""
        if any(process.has_run_backward for process in processes):
            passes = f", and made fewer than the {FIRST_BY_BACKWARD} backward passes after which these count as steps"
        message = (
            f"it called no optimizer of PyTorch ({seen}, torch {', '.join(torch_versions)}){passes}; log.txt may say "
            "why, and a loop that hides its steps needs `import multicard.marks` and, after each step, "
            "`multicard.marks.step()`"
        )
    return Reason("no_steps", message=message)


def _explained(reason: Reason | None, facts: TrainingFacts) -> Reason | None:
    """Return the reason with the steps that were made, and with hints for the user, in its message.

    None without a reason.
    """
    if reason is None:
        return None
    if reason.code == "exited" and reason.exit_code == 0:
        reason = replace(reason, message="it ended as by os._exit, before its windows were complete")
    if reason.code in ("exited", "timed_out"):
        steps = _steps_made(facts, reason.code)
        if steps is not None:
            reason = replace(reason, message="; ".join(filter(None, (reason.message, steps))))
    states_launcher = "launcher" in type(facts.p).model_fields
    if states_launcher and facts.p.launched_by == "python" and LAUNCHER_VARIABLES.search(reason.message or ""):
        hint = "a launcher sets it: state launcher: torchrun (--launcher torchrun), which starts one device, too"
        reason = replace(reason, message=f"{reason.message}; {hint}")
    return reason


def _steps_made(facts: TrainingFacts, code: str) -> str | None:
    """Return how many steps the ranks made, in words; None if no rank made one, or if files of a node are missing."""
    if not facts.is_complete:
        return None
    counts = [_count_in(facts.scratch / rank_file(MADE, rank)) for rank in range(facts.p.ranks)]
    if not any(counts):
        return None
    if len(set(counts)) == 1:
        observed = read_job(facts.scratch / JOB).observe
        if observed.measured_steps is None:
            return f"it had made {counted(counts[0], 'step')}"
        # Steps in which the profiler is still starting.
        settling = LEAST_SETTLING if observed.profiled_steps else 0
        needed = observed.warmup_steps + observed.measured_steps + settling + observed.profiled_steps
        return f"it had made {counts[0]} of at least {needed} steps"
    by_rank = ", ".join(f"rank {rank} {count}" for rank, count in enumerate(counts))
    # At the time limit, different numbers may be the fault. Else one rank failed and the others were ended with it, so
    # their numbers differ anyway.
    hint = "; every rank has to make the same number" if code == "timed_out" else ""
    return f"steps made: {by_rank}{hint}"


def _count_in(file: Path) -> int:
    """Return the number of steps in a rank's file `MADE`: the rank updates it in shared memory. 0 without the file."""
    return int.from_bytes(file.read_bytes(), sys.byteorder) if file.exists() else 0
