"""One line of the doctor's table, and the facts about PyTorch that several checks need."""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from multicard.core.system import Answer, ask

Verdict = Literal["ok", "warning", "error"]
TORCH_LIMIT_S = 120.0  # a first import from a shared file system takes long
FACTS = "multicard-facts: "

# Run by another process: a broken driver or library can hang or end the process that asks it.
PROBE = f"""
import json
facts = {{}}
def attempt(name, ask):
    try:
        facts[name] = ask()
    except BaseException as error:
        facts[name + "_problem"] = type(error).__name__ + ": " + " ".join(str(error).split())[:200]
def dali():
    import nvidia.dali
    return nvidia.dali.__version__
def driver(name):
    import pynvml
    pynvml.nvmlInit()
    return getattr(pynvml, name)()
attempt("dali", dali)
attempt("driver", lambda: str(driver("nvmlSystemGetDriverVersion")))
attempt("driver_cuda", lambda: driver("nvmlSystemGetCudaDriverVersion_v2"))
def pytorch():
    import torch
    facts["cuda"] = torch.version.cuda
    attempt("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    attempt("distributed", torch.distributed.is_available)
    attempt("distributed_nccl", lambda: torch.distributed.is_available() and torch.distributed.is_nccl_available())
    attempt("gpus", lambda: [
        [p.name, p.total_memory] for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ])
    if facts.get("gpus"):
        attempt("started", lambda: torch.zeros(1, device="cuda").item() == 0)
    return torch.__version__
attempt("torch", pytorch)
print("{FACTS}" + json.dumps(facts), flush=True)
"""


@dataclass(frozen=True)
class Check:
    """What was looked for, what was found, how that is judged, and what to do about it."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""


def torch_facts() -> dict[str, Any]:
    """What PyTorch, NVML and DALI report of themselves; `torch_problem` where PyTorch cannot be imported."""
    # Without warnings, which would be mixed with the answer.
    answer = ask([sys.executable, "-W", "ignore", "-c", PROBE], TORCH_LIMIT_S, dict(os.environ))
    answers = [line.removeprefix(FACTS) for line in answer.lines if line.startswith(FACTS)]
    if answers:
        return json.loads(answers[-1])
    return {"torch_problem": (answer.problem or "no answer").replace(sys.executable, "python", 1)}


def cannot_tell(check: str, answer: Answer, do: str = "") -> Check:
    """Give the line for a tool that did not answer as it should."""
    return Check(check, f"cannot tell: {answer.problem or 'an answer that makes no sense'}", "warning", do)


def version_of(text: str) -> tuple[int, ...] | None:
    """Numbers of a version, up to the first part that is none.

    >>> version_of("2023.4.4.54-234433681190v0"), version_of("13.0"), version_of("?")
    ((2023, 4, 4, 54), (13, 0), None)
    """
    numbers: list[int] = []
    for part in text.strip().split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers) or None
