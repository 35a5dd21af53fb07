"""What an experiment's runs find here, and whether the modules that it asks for can be loaded."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping

from multicard.archive.recorded import find_recorded, obstacles
from multicard.core.system import ask
from multicard.doctor.checks import Check
from multicard.experiment.config import Experiment
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run

MODULES_LIMIT_S = 60.0
SHOWN = 3
LOADED = "multicard: loaded"


def checks(experiment: Experiment, runs: Mapping[str, Run], machine: Machine, slurm: bool) -> list[Check]:
    """Count the runs that can be had here; `slurm`: others may be had on another node."""
    recorded = find_recorded(experiment, runs)
    reasons = obstacles(experiment, runs, machine, recorded)
    lost = {run: reason for run, reason in reasons.items() if reason is not None}
    found = f"{len(runs) - len(lost)} of {len(runs)} can run here"
    if recorded.archives:
        found += f" or are recorded ({len(recorded.archives)})"
    counts = Counter(lost.values()).most_common()
    found += "".join(f"; {count}: {reason}" for reason, count in counts[:SHOWN])
    if len(counts) > SHOWN:
        found += f"; {sum(count for _, count in counts[SHOWN:])} for other reasons (multicard runs)"
    verdict, do = "ok", ""
    if any(runs[run].parameters.device == "cuda" for run in lost) and machine.gpus == 0:
        verdict, do = "wrong", "run it where GPUs are"
        if slurm:
            verdict, do = "note", "snakemake --profile profiles/slurm runs them on nodes with GPUs"
    elif lost:
        verdict, do = "note", "multicard runs lists each with its reason"
    return [Check("runs", found, verdict, do), *_modules(experiment.modules)]


def _modules(names: list[str]) -> list[Check]:
    """Load the modules as Snakemake does with --sdm env-modules, which goes on where loading fails."""
    if not names:
        return []
    command = f"module purge && module load {shlex.join(names)} && echo {shlex.quote(LOADED)}"
    answer = ask(["bash", "-c", command], MODULES_LIMIT_S, dict(os.environ))
    if LOADED in answer.lines:
        return [Check("modules", f"can be loaded: {', '.join(names)}")]
    problem = answer.problem or "module load failed"
    do = "modules: in the configuration; `module avail` lists those that exist"
    return [Check("modules", f"cannot be loaded: {problem.removeprefix('bash ')}", "wrong", do)]
