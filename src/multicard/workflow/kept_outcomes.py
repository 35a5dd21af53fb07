"""A second copy of each run.json, since Snakemake deletes the output of a job that it believes to have failed.

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
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import JobParameters

MADE_OF = "made_of.json"
WITH_RECORD = (STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")  # what the rules after a run read beside its record


def made_of(parameters: JobParameters, data: Path | None, model: Path | None) -> dict[str, Any]:
    """Everything that an outcome depends on: parameters, prepared inputs, and the user's script."""
    script = WORKLOADS[parameters.workload].launching(parameters).script
    of = {
        "parameters": parameters.stated(),
        "data": data and data.name,
        "model": model and model.name,
        "script": script and read_or_none(lambda: sha256(script)),
    }
    return json.loads(json.dumps(of))  # as it is read again: with lists for tuples


def keep(folder: Path, of: dict[str, Any], memory_mb: int | None) -> None:
    """Keep the outcome in a run directory; `memory_mb`: of a node, that its job requested."""
    kept = folder / KEPT
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    shutil.copy2(folder / RUN, kept)
    write_json(kept / MADE_OF, {"of": of, "memory_mb": memory_mb})


def restore(folder: Path, of: dict[str, Any], memory_mb: int | None) -> bool:
    """Put a kept outcome back and return True; False if there is none, or if the run should be repeated.

    A run that was killed is repeated if its job now requests more memory than before.
    """
    kept = folder / KEPT
    found = read_or_none(lambda: read_json(kept / MADE_OF))
    record = read_or_none(lambda: read_json(kept / RUN))
    if not found or not record or found["of"] != of or not all((folder / name).exists() for name in WITH_RECORD):
        return False
    killed = isinstance(record.get("reason"), dict) and record["reason"].get("code") == "killed"
    if killed and (memory_mb or 0) > (found["memory_mb"] or 0):
        return False
    with atomic_write(folder / RUN) as temporary:
        shutil.copy2(kept / RUN, temporary)
    return True


def drop_kept(runs: Path, repeated: Iterable[str] = ()) -> None:
    """Drop outcomes that the user deleted, i.e. of run directories without run.json, and those of `repeated` runs."""
    for kept in runs.glob(f"*/{KEPT}"):
        if kept.parent.name in repeated or not (kept.parent / RUN).exists():
            shutil.rmtree(kept, ignore_errors=True)
