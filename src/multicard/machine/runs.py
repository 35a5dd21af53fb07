"""An experiment's runs: which of them can run, and whether its environment modules can be loaded."""

import os
import shlex
from collections import Counter

from multicard.archive.matrix import Matrix
from multicard.core.system import ask
from multicard.machine.checks import Check

MODULES_LIMIT_S = 60.0
SHOWN = 3
LOADED = "multicard: loaded"


def checks(matrix: Matrix, slurm: bool) -> list[Check]:
    """Count the runs that can run; `slurm`: where they cannot run here, jobs can be handed to a Slurm."""
    experiment, lost = matrix.experiment, matrix.not_runnable()
    where = "on the cluster" if experiment.cluster else "here"
    found = f"{len(matrix.runs) - len(lost)} of {len(matrix.runs)} can run {where}"
    reasons = Counter(lost.values()).most_common()
    found += "".join(f"; {count}: {reason}" for reason, count in reasons[:SHOWN])
    if reasons[SHOWN:]:
        found += f"; {sum(count for _, count in reasons[SHOWN:])} for other reasons"
    verdict, do = ("warning", "multicard run --dry-run lists each with its reason") if lost else ("ok", "")
    if any(matrix.runs[run].parameters.device == "cuda" for run in lost) and matrix.machine.gpus == 0:
        verdict, do = "error", "run it where GPUs are"
        if slurm and not experiment.cluster:
            verdict, do = "warning", "multicard doctor --profile slurm checks them for the cluster's nodes"
    return [Check("runs", found, verdict, do), *_modules(experiment.modules)]


def _modules(names: list[str]) -> list[Check]:
    """Load the modules as Snakemake does with --sdm env-modules, which continues where loading fails."""
    if not names:
        return []
    command = f"module purge && module load {shlex.join(names)} && echo {shlex.quote(LOADED)}"
    answer = ask(["bash", "-c", command], MODULES_LIMIT_S, dict(os.environ))
    if LOADED in answer.lines:
        return [Check("modules", f"can be loaded: {', '.join(names)}")]
    problem = (answer.problem or "module load failed").removeprefix("bash ")
    do = "modules: in the configuration; `module avail` lists those that exist"
    return [Check("modules", f"cannot be loaded: {problem}", "error", do)]
