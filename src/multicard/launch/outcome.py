"""What became of a job, by what its ranks wrote down and how its launcher ended."""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.launch.process import Ended

# A rank and its exit code in the list of failures with which torchrun ends.
FAILED_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+) ")
# What gloo, NCCL and the store of a process group say when another rank is gone, in lower case.
LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "connection was likely closed", "remote process exited", "ncclremoteerror", "communicator was aborted",
)  # fmt: skip


def judge(
    ended: Ended,
    ranks: list[dict[str, Any]],
    expected: int,
    time_limit_s: float,
    log: Path,
    node_of: Mapping[int, str] | None = None,
) -> tuple[str, str | None]:
    """Outcome of a job and, unless it completed, the reason in one line.

    What the ranks wrote down decides; how a launcher or profiler ended after them does not. Of several failures the one
    that others follow from is told: not a connection that broke because the rank at its other end was gone.

    `node_of`: of a job on several nodes, the name of each rank's.
    """
    on = {rank: f" on {name}" for rank, name in (node_of or {}).items()}
    if len(ranks) == expected and all(record["outcome"] == "completed" for record in ranks):
        return "completed", None
    for outcome in ("out_of_memory", "diverged"):
        for record in ranks:
            if record["outcome"] == outcome:
                return outcome, record["reason"]
    if ended.timed_out:
        return "timed_out", f"ended after its time limit of {time_limit_s / 60:g} min"
    failed = [record for record in ranks if record["outcome"] == "failed"]
    failed.sort(key=lambda record: _lost_a_peer(record["reason"]))
    silent = sorted(set(range(expected)) - {record["rank"] for record in ranks})
    signalled = _ended_by_signal(silent, ended, log, on)
    if failed and not (signalled and _lost_a_peer(failed[0]["reason"])):
        told = f"rank {_listed([failed[0]['rank']], on)}: {failed[0]['reason']}"
        if node_of and silent and _lost_a_peer(failed[0]["reason"]):  # a lost node says nothing
            told = f"no word from rank {_listed(silent, on)}; {told}"
        return "failed", told
    if signalled:
        return "failed", f"{signalled}; see {log}"
    return "failed", f"exit code {ended.exit_code}, no word from rank {_listed(silent, on)}; see {log}"


def _listed(ranks: list[int], on: Mapping[int, str]) -> str:
    return ", ".join(f"{rank}{on.get(rank, '')}" for rank in ranks)


def _lost_a_peer(reason: str) -> bool:
    return any(sign in reason.lower() for sign in LOST_PEER)


def _ended_by_signal(silent: list[int], ended: Ended, log: Path, on: Mapping[int, str]) -> str | None:
    """Name the rank that ended first of those that left no word, if a signal ended it.

    torchrun ends by listing the ranks that failed, the first of them last. The others it ends itself.
    """
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    listed = FAILED_RANK.findall(said)
    ends = [(_listed([int(rank)], on), int(code)) for rank, code in listed[-1:] + listed[:-1] if int(rank) in silent]
    if silent and not listed:
        ends = [(_listed(silent, on), ended.exit_code)]
    if not ends:
        return None
    who, code = ends[0]
    number = -code if code < 0 else code - 128  # as Popen has it, or as a shell or a profiler around the job
    if number not in list(signal.Signals):
        return None
    why = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"rank {who}: ended by {signal.Signals(number).name}{why}"
