"""Whether the GPUs of this node can exchange data, and how fast: an all-reduce of all of them."""

import os
from typing import Any

from multicard.doctor.checks import Check
from multicard.limits.all_reduce import Exchange, exchange

LIMIT_S = 60.0  # from the first connection on; before, processes import PyTorch
MESSAGE_BYTES = 128 << 20  # of gradients, say: large enough that latency does not count
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


def checks(facts: dict[str, Any], limit_s: float = LIMIT_S) -> list[Check]:
    """Try it on all GPUs that PyTorch sees; nothing where they are fewer than two or do not start."""
    gpus = facts.get("gpus") or []
    if len(gpus) < 2 or not facts.get("started") or not facts.get("distributed_nccl"):
        return []
    name, ranks = "all-reduce", len(gpus)
    first = exchange("cuda", ranks, [MESSAGE_BYTES], limit_s)
    if first.problem is None:
        return [_judged(name, first, facts)]
    tried = "NCCL_P2P_DISABLE" in os.environ
    again = None if tried else exchange("cuda", ranks, [MESSAGE_BYTES], limit_s, WITHOUT_P2P)
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
