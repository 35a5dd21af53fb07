"""What NVML and PyTorch report, printed fact by fact: `python -m multicard.machine.probe`.

A process of its own, since a broken driver or library can hang or end the one that asks it. A fact that raises is
printed as `<name>_problem`; `asking` names the one that is being asked for, so that a hang can be put down to it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from multicard.core.facts import tell, told
from multicard.core.system import ask, read_or_none
from multicard.launch.gpu_samples import Gpu

LIMIT_S = 120.0  # a first import from a shared file system takes long
TEXT_LIMIT = 300  # of an error's message


def facts_here() -> dict[str, Any]:
    """What PyTorch and NVML report of themselves; `torch_problem` where PyTorch cannot be imported.

    `unanswered`: which of them hung or ended the process that asked.
    """
    # Without warnings, which would be mixed with the answer.
    answer = ask([sys.executable, "-W", "ignore", "-m", "multicard.machine.probe"], LIMIT_S, dict(os.environ))
    facts = {name: value for line in answer.lines for fact in told(line)[1] for name, value in fact.items()}
    if not facts.get("all"):
        said = (answer.problem or "no answer").replace(sys.executable, "python", 1)
        facts["unanswered"] = f"{said}, asked for {facts['asking']}" if "asking" in facts else said
    if "torch" not in facts:
        facts["torch_problem"] = facts.get("import_torch_problem") or facts.get("unanswered", "no answer")
    return facts


def attempt(name: str, ask: Callable[[], Any]) -> Any:
    """Print what `ask` returns, or why it cannot; return it, or None."""
    tell(asking=name)
    fact: dict[str, Any]
    try:
        fact = {name: ask()}
    except BaseException as error:
        fact = {f"{name}_problem": f"{type(error).__name__}: {' '.join(str(error).split())[:TEXT_LIMIT]}"}
    tell(**fact)
    return fact.get(name)


def of_nvml() -> bool:
    """Facts of the driver and its GPUs; an error of NVML means that the driver cannot be used."""
    import pynvml

    pynvml.nvmlInit()
    attempt("driver", lambda: str(pynvml.nvmlSystemGetDriverVersion()))
    attempt("driver_cuda", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    attempt("nvml_gpus", lambda: gpus_of(pynvml))
    return True


def gpus_of(nvml: Any) -> list[dict[str, Any]]:
    """What NVML says of the GPUs that are not hidden from this process."""
    found = [of_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    return [gpu for gpu in found if gpu is not None]


def of_gpu(nvml: Any, index: int) -> dict[str, Any] | None:
    """What NVML says of a GPU; None for what it does not, or only `problem` where the GPU does not answer.

    It counts GPUs that a cgroup hides, as Slurm does those of other jobs, but opens none of them: None for such a one.

    Memory errors are counts; `remapped_rows` are those after corrected and after uncorrected errors, whether one
    waits for a reset, and whether one has failed.
    """
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetUUID(gpu)
    except nvml.NVMLError_NoPermission:
        return None
    except nvml.NVMLError as error:  # "GPU is lost": it fell off the bus
        return {"index": index, "problem": str(error)}

    def asked(function: str, *arguments: Any) -> Any:
        return read_or_none(lambda: getattr(nvml, function)(gpu, *arguments))

    state, ecc = Gpu(nvml, gpu), asked("nvmlDeviceGetEccMode")
    remapped, pages = asked("nvmlDeviceGetRemappedRows"), asked("nvmlDeviceGetRetiredPagesPendingStatus")
    links = [asked("nvmlDeviceGetNvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    return {
        "index": index,
        "name": asked("nvmlDeviceGetName"),
        "memory_bytes": read_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total),
        "partitioned": state.is_partitioned(),
        "conditions": state.state(),
        "ecc": None if ecc is None else ecc[0] == nvml.NVML_FEATURE_ENABLED,
        # Volatile: since the driver was loaded; aggregate: in the GPU's life.
        "uncorrected_now": asked("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0),
        "uncorrected_ever": asked("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 1),
        "remapped_rows": None if remapped is None else [int(number) for number in remapped],
        "pages_pending": None if pages is None else bool(pages),
        "nvlinks": sum(state == nvml.NVML_FEATURE_ENABLED for state in links),
    }


def of_torch() -> bool:
    """Facts of PyTorch that need no GPU, and its version last: whether it could be imported and asked."""
    import torch

    attempt("cuda", lambda: torch.version.cuda)
    attempt("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    attempt("distributed", torch.distributed.is_available)
    attempt("distributed_nccl", lambda: torch.distributed.is_available() and torch.distributed.is_nccl_available())
    attempt("torch", lambda: str(torch.__version__))
    return True


def of_cuda() -> bool:
    """Facts of the GPUs that PyTorch sees, and whether it starts on one."""
    import torch

    count, describe = torch.cuda.device_count, torch.cuda.get_device_properties
    gpus = attempt("gpus", lambda: [(gpu.name, gpu.total_memory) for gpu in map(describe, range(count()))])
    if gpus:
        attempt("started", lambda: torch.zeros(1, device="cuda").item() == 0)
    elif torch.version.cuda:
        attempt("cuda_init", torch.cuda.init)  # its error says why there is none
    return True


if __name__ == "__main__":
    imported = attempt("import_torch", of_torch)
    attempt("nvml", of_nvml)
    if imported:
        attempt("cuda_asked", of_cuda)
    attempt("all", lambda: True)
