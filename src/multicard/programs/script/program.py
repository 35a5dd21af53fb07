"""The program `script`: a training script of the user, which runs unchanged."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.core.job_file import JobPaths
from multicard.core.secrets import STANDALONE_TOKEN, is_named_as_secret
from multicard.core.text import without_names
from multicard.core.units import ARGS_PREFIX
from multicard.core.values import Row
from multicard.launchers import LAUNCHERS
from multicard.programs.machine import Machine
from multicard.programs.program import (
    BATCH,
    Checks,
    Comparison,
    Inputs,
    Program,
    RankCommand,
    Resources,
    Unit,
)
from multicard.programs.script.measures import SCRIPT_MEASURES
from multicard.programs.script.parameters import ScriptParameters

# Megabytes of host memory that a rank of a script is assumed to need, in addition to those of its process, by device.
# If it is too low, Slurm gives a second attempt more.
RANK_MB = {"cpu": 2000, "cuda": 8000}

UNIT = Unit("sample", "samples", "throughput_samples_per_s", "energy_per_sample_j")


def _command(p: ScriptParameters, paths: JobPaths) -> RankCommand:
    """Return the user's command, with values in place of the names in braces."""
    # `saved` is the folder that `{run_dir}` names.
    words = p.arguments(str(paths.saved or ""))
    return RankCommand(
        words=words,
        python=_interpreter(p),
        folder=Path(p.folder),
        script=_script_file(words, Path(p.folder)),
        passed_variables=p.environment,
    )


def _interpreter(p: ScriptParameters) -> str:
    """Return the absolute path of the script's interpreter; the stated name if it is not on the PATH."""
    if p.python is None:
        return sys.executable
    if os.sep in p.python:
        # A link is not resolved, because Python finds a virtual environment by the folder of the link.
        return os.path.abspath(p.python)  # noqa: PTH100
    return shutil.which(p.python) or p.python


def _script_file(words: list[str], folder: Path) -> Path | None:
    """Return the file that a command's first word names, or that of the module after `-m`; None if there is none."""
    first, *arguments = words
    if first == "-m" and arguments:
        module = Path(folder, *arguments[0].split("."))
        candidates = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        candidates = [folder / first]
    return next((path for path in candidates if path.is_file()), None)


def _secret_stated(p: ScriptParameters, inputs: Inputs) -> str | None:
    """Return which parameter holds what looks like a secret, and what to do; None if none does."""
    remedy = "looks like a secret, which would be recorded; have the script read it from a file"
    named = next(filter(is_named_as_secret, p.environment), None)
    if named:
        return f"environment: {named} {remedy}"
    if any(map(STANDALONE_TOKEN.search, p.arguments(""))):
        return f"command: it holds what {remedy}"
    return None


def _unsupported_reason(p: ScriptParameters, machine: Machine, inputs: Inputs) -> str | None:
    """Return why the launcher cannot start the run on any machine; None if it can."""
    return LAUNCHERS[p.launched_by].unsupported_reason(p)


def _resources(p: ScriptParameters, inputs: Inputs) -> Resources:
    return Resources(RANK_MB[p.device])


def _job(values: Mapping[str, Any]) -> str:
    """Return the command with … in place of each name in braces, because values differ from run to run."""
    return without_names(str(values["command"]))


def _learning(values: Mapping[str, Any]) -> Row:
    """Return the measured batch size and all of the script's own parameters, since any may affect learning.

    The batch size is the throughput times the iteration time. It may be a fraction, because it is a mean over steps,
    and the last batch of a pass may be smaller than the others. It is None if it was not measured.
    """
    rate = values.get(UNIT.throughput)
    step_s = values.get("iteration_time_s")
    batch = float(rate * step_s) if rate and step_s else None
    columns = sorted(name for name in values if name.startswith(ARGS_PREFIX))
    users_own = {column.removeprefix(ARGS_PREFIX): values[column] for column in columns}
    return {BATCH: batch} | users_own


SCRIPT = Program(
    name="script",
    parameters=ScriptParameters,
    command=_command,
    unit=UNIT,
    method="launcher",
    methods=LAUNCHERS,
    checks=Checks(_secret_stated, _unsupported_reason),
    resources=_resources,
    measures=SCRIPT_MEASURES,
    comparison=Comparison(job=_job, learning=_learning, default_label="command"),
    is_editable=True,
)
