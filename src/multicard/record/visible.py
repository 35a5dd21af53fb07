"""Find the GPUs that CUDA shows this process, and those that a rank drives."""

import os
from typing import Any

import torch

from multicard.core.errors import UserError
from multicard.core.system import ranks_may_share_gpus


def visible_gpus() -> list[Any]:
    """Return the properties of the GPUs that CUDA shows this process, by their index.

    `torch.cuda.device_count` is no more than an upper bound: it asks NVML, which also counts what CUDA does not show,
    such as the second of two GPUs that are partitioned (MIG).
    """
    gpus: list[Any] = []
    for index in range(torch.cuda.device_count()):
        try:
            gpus.append(torch.cuda.get_device_properties(index))
        except (AssertionError, RuntimeError):
            break
    return gpus


def rank_devices(p: Any) -> list[torch.device]:
    """Return the devices that this rank drives: consecutive GPUs, each of one rank only, or the CPU.

    `p`: parameters of a job: `device`, and `devices_per_node` and `ranks_per_node` of this machine.

    Raises `UserError` if CUDA shows fewer GPUs than the ranks of this machine drive, unless they may share them.
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
    """Return UUID (such as "GPU-…") and name of GPUs, for run.json; None for a CPU."""
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
