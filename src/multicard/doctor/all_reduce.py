"""Whether the GPUs of this node can exchange data, and how fast: an all-reduce of all of them."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.doctor.checks import TORCH_LIMIT_S, Check
from multicard.doctor.probe import MARK
from multicard.launch.commands import training_command
from multicard.launch.environment import inside_one_machine, job_environment
from multicard.launch.process import run
from multicard.trace.collectives import bus_bandwidth

JOB = "multicard.doctor.all_reduce_job"
LIMIT_S = 60.0  # from the first connection on; before, processes import PyTorch
MESSAGE_BYTES = 128 << 20  # of gradients, say: large enough that latency does not count
GRACE_S = 5.0
# Of PCIe 3.0 x16, in one direction (16 lanes of 8 GT/s, 128b/130b). A single NVLink has more.
PCIE3_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130
WITHOUT_P2P = {"NCCL_P2P_DISABLE": "1"}
P2P = (
    "direct access between GPUs (peer-to-peer) is at fault: disable ACS of the PCIe bridges and the IOMMU in the BIOS, "
    "or export NCCL_P2P_DISABLE=1 (slower)"
)
OTHER = (
    "NCCL_DEBUG=INFO tells the way that NCCL takes; try NCCL_SHM_DISABLE=1 (too small a /dev/shm), NCCL_IB_DISABLE=1, "
    'NCCL_SOCKET_IFNAME; see dmesg for Xid and NVIDIA\'s page "NCCL troubleshooting"'
)


@dataclass
class Exchange:
    """How an all-reduce ended.

    Attributes
    ----------
    problem
        Why there is no result, in one line; None where there is one.
    hung
        Whether it is that nothing came to an end within the limit.
    """

    ranks: int
    stages: dict[str, set[int]] = field(default_factory=dict)  # the ranks that reached each
    result: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    hung: bool = False

    def read(self, report: str) -> None:
        """Take in what a rank printed, and leave what follows it on its line."""
        try:
            fact, _ = json.JSONDecoder().raw_decode(report)
        except ValueError:
            return
        self.stages.setdefault(fact["stage"], set()).add(fact["rank"])
        if fact["stage"] == "failed":
            self.problem = self.problem or f"rank {fact['rank']}: {fact['error']}"
        if fact["stage"] == "done" and fact["time_s"] > self.result.get("time_s", 0.0):
            self.result = fact

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """2 (n - 1) / n · bytes / time: nccl-tests, doc/PERFORMANCE.md."""
        return bus_bandwidth("all_reduce", self.result["bytes"], self.ranks, self.result["time_s"]) or 0.0

    def words(self) -> str:
        """The result."""
        speed = with_unit(self.bus_bandwidth_bytes_per_s, BYTES_PER_S)
        size, time = with_unit(self.result["bytes"], BYTES), with_unit(self.result["time_s"], SECONDS)
        return f"{speed} bus bandwidth: {size} between {self.ranks} ranks in {time}"


def checks(facts: dict[str, Any], limit_s: float = LIMIT_S) -> list[Check]:
    """Try it on all GPUs that PyTorch sees; nothing where they are fewer than two or do not start."""
    gpus = facts.get("gpus") or []
    if len(gpus) < 2 or not facts.get("started") or not facts.get("distributed_nccl"):
        return []
    name, ranks = "all-reduce", len(gpus)
    first = exchange("cuda", ranks, MESSAGE_BYTES, limit_s)
    if first.problem is None:
        return [_judged(name, first, facts)]
    tried = "NCCL_P2P_DISABLE" in os.environ
    again = None if tried else exchange("cuda", ranks, MESSAGE_BYTES, limit_s, WITHOUT_P2P)
    if again and again.problem is None:
        return [Check(name, f"{first.problem}; with NCCL_P2P_DISABLE=1: {again.words()}", "error", P2P)]
    also = "; with NCCL_P2P_DISABLE=1 as well" if again else ""
    return [Check(name, first.problem + also, "error", OTHER)]


def _judged(name: str, ended: Exchange, facts: dict[str, Any]) -> Check:
    gpus = facts.get("nvml_gpus") or [{}]
    speed, linked = ended.bus_bandwidth_bytes_per_s, all(gpu.get("nvlinks") for gpu in gpus)
    if linked and speed < PCIE3_BYTES_PER_S:
        found = f"{ended.words()}: less than PCIe 3.0 x16, though all GPUs have active NVLinks"
        do = "NCCL_DEBUG=INFO tells why NCCL does not use them; nvidia-smi nvlink --status"
        return Check(name, found, "warning", do)
    return Check(name, ended.words())


def exchange(
    device: str,
    ranks: int,
    size: int,
    limit_s: float,
    more: dict[str, str] | None = None,
    start_s: float = TORCH_LIMIT_S,
) -> Exchange:
    """All-reduce `size` bytes between processes of this machine: NCCL on "cuda", gloo on "cpu".

    Parameters
    ----------
    limit_s
        After which a rank that hangs is ended; all of them are `start_s` later at the latest.
    more
        Variables for the job's environment, beside those that a run's job gets.
    """
    ended, said = Exchange(ranks), []

    def follow(line: str) -> None:
        first, *reports = line.split(MARK)
        if first:
            said.append(first)
            # faulthandler's words when its time is over; a failure after them is often that a rank has gone.
            ended.hung = ended.hung or (ended.problem is None and first.startswith("Timeout ("))
        for report in reports:  # several where the lines of two ranks are mixed
            ended.read(report)

    command = training_command(JOB, [device, str(size), str(limit_s)], ranks, distributed=True)
    with tempfile.TemporaryDirectory(prefix="multicard-doctor-", ignore_cleanup_errors=True) as scratch:
        environment = inside_one_machine(job_environment(os.environ)) | (more or {})
        process = run(command, environment, Path(scratch, "log.txt"), start_s + limit_s, follow, GRACE_S)
    done = ended.stages.get("done", set())
    if len(done) == ranks:  # whatever happened when the processes ended
        ended.hung, ended.problem = False, None
    elif ended.hung or (process.timed_out and ended.problem is None):
        ended.hung, ended.problem = True, _hang(ended, limit_s)
    elif ended.problem is None:
        last = next((" ".join(line.split()) for line in reversed(said) if line.strip()), "nothing")
        ended.problem = f"ended with {process.exit_code}, saying: {last[:200]}"
    return ended


def _hang(ended: Exchange, limit_s: float) -> str:
    """Say how far the ranks came."""
    for stage, words in (("connected", "connected, and then hang"), ("started", "hang in the first all-reduce")):
        if reached := ended.stages.get(stage):
            others = ", ".join(map(str, sorted(set(range(ended.ranks)) - reached)))
            which = (
                f"all {ended.ranks} ranks" if not others else f"{len(reached)} of {ended.ranks} ranks (not {others})"
            )
            return f"{which} {words}: no end within {limit_s:g} s"
    return f"none of {ended.ranks} ranks started in time"
