"""Find the GPUs that CUDA shows this process, and those that a rank drives."""

import os
from typing import Any

import torch

from multicard.core.errors import UserError
from multicard.core.system import ranks_may_share_gpus


def visible_gpus() -> list[Any]:
    """Return the properties of each GPU that CUDA shows this process, in the order of the CUDA indices.

    The list ends before the first index whose properties CUDA does not give. `torch.cuda.device_count` is only an upper
    bound, because it asks NVML. NVML also counts GPUs that CUDA does not show, such as the second of two GPUs that are
    partitioned (MIG).
    """
    gpus: list[Any] = []
    for index in range(torch.cuda.device_count()):
        try:
            gpus.append(torch.cuda.get_device_properties(index))
        except (AssertionError, RuntimeError):
            break
    return gpus


def rank_devices(p: Any) -> list[torch.device]:
    """Return the devices that this rank drives: consecutive GPUs that no other rank drives, or the CPU.

    `p`: parameters of a job: `device`; `devices_per_node` and `ranks_per_node` are numbers for this machine. The rank's
    number on this machine is `LOCAL_RANK`, 0 without that variable.

    Raises `UserError` if CUDA shows fewer GPUs than the ranks of this machine drive. In checks of this project, ranks
    with one GPU each may share GPUs instead; rank n then gets GPU n modulo the number of GPUs.
    """
    if p.device != "cuda":
        return [torch.device("cpu")]
    visible = len(visible_gpus())
    needed = p.devices_per_node
    gpus_per_rank = needed // p.ranks_per_node
    may_share = visible > 0 and gpus_per_rank == 1 and ranks_may_share_gpus()
    if visible < needed and not may_share:
        raise UserError(_describe_lack(visible, needed))
    first = int(os.environ.get("LOCAL_RANK", "0")) * gpus_per_rank
    return [torch.device("cuda", number % visible) for number in range(first, first + gpus_per_rank)]


def identities(devices: list[torch.device]) -> list[dict[str, str]] | None:
    """Return the UUID (such as "GPU-…") and the name of each GPU, for rank.json; None for a CPU."""
    if devices[0].type != "cuda":
        return None
    gpus = [torch.cuda.get_device_properties(device) for device in devices]
    return [{"uuid": f"GPU-{gpu.uuid}", "name": gpu.name} for gpu in gpus]


def _describe_lack(visible: int, needed: int) -> str:
    """Return why there are too few GPUs, and what to do about it."""
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    problem = f"this machine's ranks need {needed} {'GPU' if needed == 1 else 'GPUs'}, CUDA shows {visible}"
    listed = torch.cuda.device_count()
    if visible < listed:
        problem += f" of the {listed} that the driver lists: others are partitioned (MIG) or have failed"
    shown = "" if selected is None else f'CUDA_VISIBLE_DEVICES is "{selected}"; '
    return f"{problem}: {shown}lower `devices`, or see `multicard doctor` if the machine has more"
