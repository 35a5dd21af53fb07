"""Keep a second copy of each run.json, because Snakemake deletes the output of a job that it believes to have failed.

It may believe so although the outcome was recorded. First, Slurm reports a step as failed if its memory cgroup killed a
process, even if the launcher recorded the outcome and exited normally. Second, the outputs of a pipeline that was
killed stay marked as incomplete.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from multicard.config.read_run import read_run
from multicard.core.files import atomic_write, read_json, sha256, write_json
from multicard.core.layout import CAPTURED, EPOCHS, KEPT, RUN, STEPS, TRACE
from multicard.core.system import read_or_none
from multicard.core.values import JsonObject
from multicard.launch.start import rank_command
from multicard.runs.parameters import JobParameters

MADE_OF = "made_of.json"
# Files beside the record that rules read after a run. Without them, a kept record is not restored.
WITH_RECORD = (STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")


def made_of(parameters: JobParameters, data: Path | None, model: Path | None) -> JsonObject:
    """Return everything that an outcome depends on: parameters, prepared inputs, and the user's script.

    `data`, `model`: folders of the prepared inputs, None if the run has no such input. An input is identified by the
    name of its folder, and the script by its checksum.
    """
    script = rank_command(parameters).script
    ingredients = {
        "parameters": parameters.stated(),
        "data": data and data.name,
        "model": model and model.name,
        "script": script and read_or_none(lambda: sha256(script)),
    }
    # JSON turns tuples into lists, so that the result equals what `restore` reads from a file.
    return json.loads(json.dumps(ingredients))


def keep(folder: Path, ingredients: JsonObject, memory_mb: int | None) -> None:
    """Keep a copy of a run's run.json in its run directory `folder`, and note what the outcome was made of.

    `ingredients`: what `made_of` returns. `memory_mb`: the memory per node that the run's job requested, in MB; None if
    it requested none.
    """
    kept = folder / KEPT
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    shutil.copy2(folder / RUN, kept)
    write_json(kept / MADE_OF, {"of": ingredients, "memory_mb": memory_mb})


def restore(folder: Path, ingredients: JsonObject, memory_mb: int | None) -> bool:
    """Copy a kept run.json back into the run directory `folder` and return True; return False if the run has to run.

    The run has to run if no readable outcome is kept, the kept outcome is made of other ingredients, or a file of
    `WITH_RECORD` is missing. It also has to run if it was killed before and its job now requests more memory.
    """
    kept = folder / KEPT
    # Both are None if their file is missing or damaged.
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
    """Delete the kept outcomes of `repeated` runs, and of runs without a run.json.

    It is called when a pipeline starts. A run.json that is missing then counts as deleted by the user, to repeat the
    run.
    """
    for kept in runs.glob(f"*/{KEPT}"):
        if kept.parent.name in repeated or not (kept.parent / RUN).exists():
            shutil.rmtree(kept, ignore_errors=True)
