"""What PyTorch reports, printed fact by fact: `python -m multicard.machine.probe`.

A process of its own, since a broken driver or library can hang or end the one that asks it. A fact that raises is
printed as `<name>_problem`; `asking` names the one that is being asked for, so that a hang can be put down to it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from multicard.core.facts import tell, told
from multicard.core.system import ask

LIMIT_S = 120.0  # a first import from a shared file system takes long
TEXT_LIMIT = 300  # of an error's message


def facts_here() -> dict[str, Any]:
    """What PyTorch reports of itself and its GPUs; `torch_problem` where it cannot be imported.

    `unanswered`: what hung, or ended the process that asked.
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
    if imported:
        attempt("cuda_asked", of_cuda)
    attempt("all", lambda: True)
