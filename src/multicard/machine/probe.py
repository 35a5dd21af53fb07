"""Ask PyTorch for facts about itself and its GPUs, and print them one by one: `python -m multicard.machine.probe`.

This is a process of its own, because a broken driver or library can hang or end the process that asks. If asking for a
fact raises an error, `<name>_problem` is printed instead of the fact. Before each fact, `asking` is printed with its
name, so that the last one shows which fact hung.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from multicard.core.system import ask
from multicard.machine.facts import Facts, parse_line, print_fact

# Time limit of the process in seconds. A first import of PyTorch from a shared file system takes long.
LIMIT_S = 120.0
MOST_CHARACTERS = 300


class TorchGpu(NamedTuple):
    """A GPU that PyTorch sees."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class TorchFacts:
    """What PyTorch reports about itself and its GPUs; None for what it did not report."""

    torch: str | None = None  # its version
    torch_problem: str | None = None  # why there is no version: PyTorch cannot be imported, or hung before; else None
    cuda: str | None = None  # version of CUDA that it was built for; None also if it was built for CPUs only
    nccl: str | None = None  # version of NCCL
    has_distributed: bool = False  # True if it has torch.distributed
    has_nccl: bool = False  # True if its torch.distributed has NCCL
    gpus: tuple[TorchGpu, ...] = ()
    can_compute: bool = False  # True if it could compute on the first GPU
    # Errors that it raised when it was asked for its GPUs, to compute on the first of them, or, without GPUs, to
    # initialize CUDA. None if it raised none.
    gpus_problem: str | None = None
    compute_problem: str | None = None
    cuda_problem: str | None = None
    # How the process that asks hung or ended too early, and what it asked for last; None if it did neither.
    unanswered: str | None = None


def facts_here() -> TorchFacts:
    """Ask PyTorch, in a process of its own, for facts about itself and its GPUs."""
    # Warnings are switched off, because they would be mixed with the facts.
    answer = ask([sys.executable, "-W", "ignore", "-m", "multicard.machine.probe"], LIMIT_S, dict(os.environ))
    facts: Facts = {}
    for line in answer.lines:
        for fact in parse_line(line).facts:
            facts |= fact
    unanswered = None
    if not facts.get("all"):
        unanswered = (answer.problem or "no answer").replace(sys.executable, "python", 1)
        if "asking" in facts:
            unanswered += f", asked for {facts['asking']}"
    torch_problem = None
    if "torch" not in facts:
        torch_problem = facts.get("import_torch_problem") or unanswered or "no answer"
    return TorchFacts(
        torch=facts.get("torch"),
        torch_problem=torch_problem,
        cuda=facts.get("cuda"),
        nccl=facts.get("nccl"),
        has_distributed=bool(facts.get("distributed")),
        has_nccl=bool(facts.get("distributed_nccl")),
        gpus=tuple(TorchGpu(name, memory_bytes) for name, memory_bytes in facts.get("gpus") or ()),
        can_compute=bool(facts.get("started")),
        gpus_problem=facts.get("gpus_problem"),
        compute_problem=facts.get("started_problem"),
        cuda_problem=facts.get("cuda_init_problem"),
        unanswered=unanswered,
    )


def attempt(name: str, ask: Callable[[], Any]) -> Any:
    """Call `ask`, and print its result as the fact `name`; if it raises, print `<name>_problem` with the error.

    Return the result; None if it raised.
    """
    print_fact(asking=name)
    fact: Facts
    try:
        fact = {name: ask()}
    except BaseException as error:
        fact = {f"{name}_problem": f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_CHARACTERS]}"}
    print_fact(**fact)
    return fact.get(name)


def report_torch() -> bool:
    """Report the facts of PyTorch that need no GPU; return True.

    The version, `torch`, comes last. If it is there, PyTorch could be imported, and none of these facts hung.
    """
    import torch

    attempt("cuda", lambda: torch.version.cuda)
    attempt("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    attempt("distributed", torch.distributed.is_available)
    attempt("distributed_nccl", lambda: torch.distributed.is_available() and torch.distributed.is_nccl_available())
    attempt("torch", lambda: str(torch.__version__))
    return True


def report_gpus() -> bool:
    """Report the GPUs that PyTorch sees, and whether it can compute on the first of them; return True."""
    import torch

    def names_and_memory() -> list[tuple[str, int]]:
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return [(gpu.name, gpu.total_memory) for gpu in gpus]

    gpus = attempt("gpus", names_and_memory)
    if gpus:
        attempt("started", lambda: torch.zeros(1, device="cuda").item() == 0)
    elif torch.version.cuda:
        # This fails without a GPU, and its error says why there is none.
        attempt("cuda_init", torch.cuda.init)
    return True


if __name__ == "__main__":
    is_imported = attempt("import_torch", report_torch)
    if is_imported:
        attempt("cuda_asked", report_gpus)
    attempt("all", lambda: True)
