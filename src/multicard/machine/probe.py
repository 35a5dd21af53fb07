"""Facts that PyTorch reports, printed one by one: `python -m multicard.machine.probe`.

They are asked for in a process of its own, since a broken driver or library can hang or end the process that asks. A
fact that raises is printed as `<name>_problem`; the fact `asking` names the one that is being asked for, so that a hang
can be attributed to it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from multicard.core.system import ask
from multicard.machine.facts import Facts, parse_line, print_fact

# A first import of PyTorch from a shared file system takes long.
LIMIT_S = 120.0
MOST_CHARACTERS = 300


def facts_here() -> Facts:
    """Return what PyTorch reports about itself and its GPUs; `torch_problem` if it cannot be imported.

    `unanswered`: the fact that hung, or ended the process that asked for it.
    """
    # Warnings would be mixed with the answer.
    answer = ask([sys.executable, "-W", "ignore", "-m", "multicard.machine.probe"], LIMIT_S, dict(os.environ))
    facts: Facts = {}
    for line in answer.lines:
        for fact in parse_line(line).facts:
            facts |= fact
    if not facts.get("all"):
        problem = (answer.problem or "no answer").replace(sys.executable, "python", 1)
        facts["unanswered"] = f"{problem}, asked for {facts['asking']}" if "asking" in facts else problem
    if "torch" not in facts:
        facts["torch_problem"] = facts.get("import_torch_problem") or facts.get("unanswered", "no answer")
    return facts


def attempt(name: str, ask: Callable[[], Any]) -> Any:
    """Print what `ask` returns, or why it cannot; return it, or None."""
    print_fact(asking=name)
    fact: Facts
    try:
        fact = {name: ask()}
    except BaseException as error:
        fact = {f"{name}_problem": f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_CHARACTERS]}"}
    print_fact(**fact)
    return fact.get(name)


def report_torch() -> bool:
    """Report the facts of PyTorch that need no GPU.

    Its version comes last: that it is there shows that PyTorch could be imported and asked.
    """
    import torch

    attempt("cuda", lambda: torch.version.cuda)
    attempt("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    attempt("distributed", torch.distributed.is_available)
    attempt("distributed_nccl", lambda: torch.distributed.is_available() and torch.distributed.is_nccl_available())
    attempt("torch", lambda: str(torch.__version__))
    return True


def report_gpus() -> bool:
    """Report the GPUs that PyTorch sees, and whether it starts on one."""
    import torch

    def names_and_memory() -> list[tuple[str, int]]:
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return [(gpu.name, gpu.total_memory) for gpu in gpus]

    gpus = attempt("gpus", names_and_memory)
    if gpus:
        attempt("started", lambda: torch.zeros(1, device="cuda").item() == 0)
    elif torch.version.cuda:
        # Its error states why there is no GPU.
        attempt("cuda_init", torch.cuda.init)
    return True


if __name__ == "__main__":
    is_imported = attempt("import_torch", report_torch)
    if is_imported:
        attempt("cuda_asked", report_gpus)
    attempt("all", lambda: True)
