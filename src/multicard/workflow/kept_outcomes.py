"""Keep a second copy of each run.json, since Snakemake deletes the output of a job that it believes to have failed.

Slurm reports a step as failed when its memory cgroup killed a process, even though the launcher recorded the outcome
and exited normally; a pipeline that was killed leaves its outputs marked as incomplete.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from multicard.core.files import atomic_write, read_json, sha256, write_json
from multicard.core.layout import CAPTURED, EPOCHS, KEPT, RUN, STEPS, TRACE
from multicard.core.system import read_or_none
from multicard.experiment.read_run import read_run
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import JobParameters

MADE_OF = "made_of.json"
WITH_RECORD = (STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")  # files that the rules after a run read beside its record

# Everything that an outcome depends on, in the form in which JSON has it.
Ingredients = dict[str, Any]


def made_of(parameters: JobParameters, data: Path | None, model: Path | None) -> Ingredients:
    """Return everything that an outcome depends on: parameters, prepared inputs, and the user's script.

    `data`, `model`: folders of the inputs, for a run that has them.
    """
    script = WORKLOADS[parameters.workload].launching(parameters).script
    ingredients = {
        "parameters": parameters.stated(),
        "data": data and data.name,
        "model": model and model.name,
        "script": script and read_or_none(lambda: sha256(script)),
    }
    # With lists for tuples, so that it equals what is read from a file.
    return json.loads(json.dumps(ingredients))


def keep(folder: Path, ingredients: Ingredients, memory_mb: int | None) -> None:
    """Keep the outcome in a run directory; `memory_mb`: memory of a node that its job requested."""
    kept = folder / KEPT
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    shutil.copy2(folder / RUN, kept)
    write_json(kept / MADE_OF, {"of": ingredients, "memory_mb": memory_mb})


def restore(folder: Path, ingredients: Ingredients, memory_mb: int | None) -> bool:
    """Put a kept outcome back and return True; return False if there is none, or if the run should be repeated.

    A run that was killed is repeated if its job now requests more memory than before.
    """
    kept = folder / KEPT
    before = read_or_none(lambda: read_json(kept / MADE_OF))
    record = read_or_none(lambda: read_run(kept))
    if not before or not record:
        return False
    is_whole = all((folder / name).exists() for name in WITH_RECORD)
    if before["of"] != ingredients or not is_whole:
        return False
    has_more_memory = (memory_mb or 0) > (before["memory_mb"] or 0)
    was_killed = record.reason is not None and record.reason.code == "killed"
    if was_killed and has_more_memory:
        return False
    with atomic_write(folder / RUN) as temporary:
        shutil.copy2(kept / RUN, temporary)
    return True


def drop_kept(runs: Path, repeated: Iterable[str] = ()) -> None:
    """Drop the kept outcomes of runs whose run.json the user has deleted, and of `repeated` runs."""
    for kept in runs.glob(f"*/{KEPT}"):
        if kept.parent.name in repeated or not (kept.parent / RUN).exists():
            shutil.rmtree(kept, ignore_errors=True)
