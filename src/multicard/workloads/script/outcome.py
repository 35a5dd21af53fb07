"""Outcomes of a job that only scripts have: nothing that trained was seen, or not what was stated."""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from multicard.core.files import read_json
from multicard.core.layout import COPIED, JOB, MADE, PROCESS, node_file, rank_file
from multicard.core.reasons import Reason
from multicard.core.text import counted
from multicard.record.profiled_window import FIRST_BY_BACKWARD, LEAST_SETTLING
from multicard.workloads.script.launchers import LAUNCHERS
from multicard.workloads.script.parameters import ScriptParameters

# Environment variables that scripts for several ranks read.
OF_LAUNCHERS = re.compile(r"\b(?:WORLD_SIZE|LOCAL_RANK|RANK|MASTER_ADDR|MASTER_PORT)\b")


def judge_script(
    p: ScriptParameters, outcome: str, reason: Reason | None, ranks: Sequence[Mapping[str, Any]], scratch: Path
) -> tuple[str, Reason | None]:
    """See `multicard.experiment.workload.Workload.judge`."""
    outcome, reason = _judged(p, outcome, reason, ranks, scratch)
    if reason is not None and reason.code == "exited" and reason.exit_code == 0:
        reason = replace(reason, message="it ended as by os._exit, before its windows were complete")
    if reason is not None and reason.code in ("exited", "timed_out") and (made := _made(p, reason.code, scratch)):
        reason = replace(reason, message="; ".join(filter(None, (reason.message, made))))
    if reason is not None and p.launched_by == "python" and OF_LAUNCHERS.search(reason.message or ""):
        hint = "a launcher sets it: state launcher: torchrun (--launcher torchrun), which starts one device, too"
        reason = replace(reason, message=f"{reason.message}; {hint}")
    return outcome, reason


def _judged(
    p: ScriptParameters, outcome: str, reason: Reason | None, ranks: Sequence[Mapping[str, Any]], scratch: Path
) -> tuple[str, Reason | None]:
    if reason is not None and reason.code == "wrong_gpus" and not reason.gpus:
        return "failed", Reason("trained_on_cpu")
    processes = _processes(scratch)
    # Processes that take themselves for the same rank leave one record.
    seen = Counter(each.get("rank") for each in processes if each.get("steps"))
    trained = max(len(list(scratch.glob("rank.json.rank*[0-9]"))), seen.total())
    leaves_gpus = reason is not None and reason.code == "wrong_gpus" and p.ranks < p.devices
    ended = outcome == "completed" or leaves_gpus or (reason.code == "exited" and reason.exit_code == 0)
    if ended and trained == 0:
        return "failed", _no_steps(processes)
    if (ended or outcome == "timed_out") and all(rank["outcome"] == "completed" for rank in ranks):
        # At the time limit, those that did not train may have been about to.
        if trained > p.ranks or (ended and trained < p.ranks):
            return "failed", Reason("hidden_ranks", ranks=trained, devices=p.ranks)
        [(rank, count)] = seen.most_common(1) or [(None, 0)]
        if count > 1:
            return "failed", Reason("same_rank", rank=rank, ranks=count)
        exchanged = [(rank.get("observed") or {}).get("exchanged") for rank in ranks]
        apart = len(ranks) > 1 and all(each is False for each in exchanged)
        if apart and "communication" not in p.ablated:
            return "failed", Reason("trained_apart", ranks=len(ranks))
    if leaves_gpus:
        return outcome, replace(reason, code="unused_gpus")
    if ended:
        return outcome, reason
    launchers = {module for each in LAUNCHERS.values() for module in each.modules}  # they only say that a rank failed
    raised = [each for each in processes if each.get("error") and each["program"] not in launchers]
    if reason.code == "exited" and reason.rank is None and raised:
        words = {Path(word).name for word in p.command}
        # The script before what it started; of its ranks, the first to fail.
        error = min(raised, key=lambda each: Path(each["program"]).name not in words)["error"]
        return error["outcome"], Reason(**error["reason"])
    if outcome == "timed_out" and not any(each.get("steps") for each in processes) and _has_all(p, scratch):
        return outcome, replace(_no_steps(processes), time_limit_s=reason.time_limit_s)
    return outcome, reason


def _has_all(p: ScriptParameters, scratch: Path) -> bool:
    """Whether all that the processes of a job left is in the scratch folder: what a node did not copy is not known."""
    tasks = p.nodes * LAUNCHERS[p.launched_by].tasks_per_node(p)
    return p.nodes == 1 or all((scratch / node_file(COPIED, task)).exists() for task in range(tasks))


def _made(p: ScriptParameters, code: str, scratch: Path) -> str | None:
    """How far its ranks came; None where no rank made a step, or where that is not known of all."""
    if not _has_all(p, scratch):
        return None
    counts = {}
    for rank in range(p.ranks):
        file = scratch / rank_file(MADE, rank)
        counts[rank] = int.from_bytes(file.read_bytes(), sys.byteorder) if file.exists() else 0
    if not any(counts.values()):
        return None
    if len(set(counts.values())) == 1:
        profiled = read_json(scratch / JOB)["observe"]["profiled_steps"]
        needed = p.warmup_steps + p.steps + (LEAST_SETTLING + profiled if profiled else 0)
        return f"it had made {counts[0]} of at least {needed} steps"
    which = ", ".join(f"rank {rank} {count}" for rank, count in counts.items())
    # Ranks that were ended because of another one have made another number anyway.
    hint = "; every rank has to make the same number" if code == "timed_out" else ""
    return f"steps made: {which}{hint}"


def _processes(scratch: Path) -> list[dict[str, Any]]:
    """What every Python process of the job left of itself, in the order of their last words."""
    files = sorted(scratch.glob(f"{PROCESS}.*[0-9]"), key=lambda file: file.stat().st_mtime_ns)
    return [read_json(file) for file in files]


def _no_steps(processes: Sequence[Mapping[str, Any]]) -> Reason:
    """What was seen instead of steps, and what that means."""
    versions = sorted({each["torch"] for each in processes if each["torch"]})
    if not processes:
        message = (
            "no process of Python was observed; the script or its launcher must not clear PYTHONPATH, nor start Python "
            "with -I, -E or -S"
        )
    elif not versions:
        message = (
            f"it did not train by PyTorch: nothing imported torch ({_counted(processes)}); check that the command "
            "starts your training"
        )
    else:
        passes = ""
        if any(each.get("backward") for each in processes):
            passes = f", and made fewer than the {FIRST_BY_BACKWARD} backward passes after which these count as steps"
        message = (
            f"it called no optimizer of PyTorch ({_counted(processes)}, torch {', '.join(versions)}){passes}; log.txt "
            "may say why, and a loop that hides its steps needs `import multicard.marks` and, after each step, "
            "`multicard.marks.step()`"
        )
    return Reason("no_steps", message=message)


def _counted(processes: Sequence[Mapping[str, Any]]) -> str:
    """Count the processes, and name their versions of Python."""
    versions = sorted({each["python"] for each in processes})
    return f"{counted(len(processes), 'process')}, Python {', '.join(versions)}"
