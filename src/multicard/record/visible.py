"""The GPUs that CUDA shows this process, and those that a rank drives."""

import os
from typing import Any

import torch

from multicard.core.errors import UserError
from multicard.core.system import ranks_may_share_gpus


def visible_gpus() -> list[Any]:
    """Properties of the GPUs that CUDA shows this process, by their index.

    `torch.cuda.device_count` is no more than an upper bound: it asks NVML, which also counts what CUDA does not show,
    such as the second of two GPUs that are partitioned (MIG).
    """
    found = []
    for index in range(torch.cuda.device_count()):
        try:
            found.append(torch.cuda.get_device_properties(index))
        except (AssertionError, RuntimeError):
            break
    return found


def rank_devices(p: Any) -> list[torch.device]:
    """Devices that this rank drives: consecutive GPUs, each of one rank only, or the CPU.

    `p`: of a job: `device`, and `devices_per_node` and `ranks_per_node` of this machine.

    Raises `UserError` if CUDA shows fewer GPUs than the ranks of this machine drive, unless they may share them.
    """
    if p.device != "cuda":
        return [torch.device("cpu")]
    visible, needed = len(visible_gpus()), p.devices_per_node
    each = needed // p.ranks_per_node
    if visible < needed and not (visible and each == 1 and ranks_may_share_gpus()):
        raise UserError(_too_few(visible, needed))
    first = int(os.environ.get("LOCAL_RANK", "0")) * each
    return [torch.device("cuda", number % visible) for number in range(first, first + each)]


def identities(devices: list[torch.device]) -> list[dict[str, str]] | None:
    """UUID (such as "GPU-…") and name of GPUs, for run.json; None of a CPU."""
    if devices[0].type != "cuda":
        return None
    found = [torch.cuda.get_device_properties(each) for each in devices]
    return [{"uuid": f"GPU-{each.uuid}", "name": each.name} for each in found]


def _too_few(visible: int, needed: int) -> str:
    """Which fault it is, and what to do about it."""
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    problem = f"this machine's ranks need {needed} {'GPU' if needed == 1 else 'GPUs'}, CUDA shows {visible}"
    if visible < (listed := torch.cuda.device_count()):
        problem += f" of the {listed} that the driver lists: others are partitioned (MIG) or have failed"
    shown = "" if selected is None else f'CUDA_VISIBLE_DEVICES is "{selected}"; '
    return f"{problem}: {shown}lower `devices`, or see `multicard doctor` if the machine has more"
