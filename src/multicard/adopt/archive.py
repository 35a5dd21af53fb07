"""The archive of traced runs, and the configuration that takes them from there."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multicard.adopt.record import write_run
from multicard.adopt.table import TracedRun
from multicard.adopt.traced import Traced, look_into
from multicard.analysis.runs.run_files import RunFiles
from multicard.archive.pack import pack
from multicard.archive.unpack import read_manifest
from multicard.core.errors import UserError
from multicard.experiment.load import check
from multicard.experiment.parameters import ARGS, ARGS_PREFIX, flat, nested
from multicard.experiment.runs import distinct, expand
from multicard.experiment.workload import parameters_of

SCENARIO = "adopted"
MOST = 500  # configurations that the values of a table may combine to


def gather(runs: Sequence[TracedRun], made: Path | None) -> tuple[list[Traced], list[str]]:
    """Look into the traces of runs, one run after another; give what they show, and a line per run that cannot be had.

    Parameters
    ----------
    made
        Folder for the run directories; None to write none.
    """
    traced, errors = [], []
    for run in runs:
        with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as exported:
            try:
                found = look_into(run, Path(exported))
                if made is not None:
                    write_run(found, made / "runs" / run.id)
            except UserError as error:
                errors.append(str(error))
                continue
            found.traces.clear()  # those of all runs may not fit into memory
            traced.append(found)
    return traced, errors


def write_archive(traced: Sequence[Traced], made: Path, archive: Path) -> dict[str, Any]:
    """Put runs into an archive; give the configuration of them, without `results` and `recorded`.

    What an archive must not say is left out of both, as of every archive.

    Parameters
    ----------
    made
        Holds the run directories.

    Raises
    ------
    UserError
        If the runs cannot be those of one archive.
    """
    config = configuration([each.run for each in traced], _figures(traced, made / "runs"))
    experiment = check(config, "multicard analyze --as-runs", outside=False)
    pack(experiment.model_copy(update={"results": str(made)}), archive)
    return {"scenarios": read_manifest(archive).experiment["scenarios"]}


def configuration(runs: Sequence[TracedRun], figures: Sequence[str]) -> dict[str, Any]:
    """A configuration that expands into the runs.

    Raises
    ------
    UserError
        If there is none with fewer than `MOST` runs, or two values are the same.
    """
    stated = [_stated(run) for run in runs]
    names = dict.fromkeys(name for each in stated for name in each)
    if lacking := [(run, name) for run, each in zip(runs, stated, strict=True) for name in names if name not in each]:
        run, name = lacking[0]
        raise UserError(f"{run.where}: {name.removeprefix(ARGS_PREFIX)}: is not stated, and of other runs it is")
    values = {name: _distinct(each[name] for each in stated) for name in names}
    varied = {name: each for name, each in values.items() if len(each) > 1}
    repeats = max(run.parameters.get("repeat", 1) for run in runs)
    combined = repeats
    for each in varied.values():
        combined *= len(each)
    if combined > MOST:
        named = [name.removeprefix(ARGS_PREFIX) for name in varied] + ["repeat"] * (repeats > 1)
        raise UserError(
            f"the values of {', '.join(named)} combine to {combined} runs, "
            f"more than {MOST}, and {len(runs)} have traces; leave out columns that only name a trace"
        )
    fixed = {name: each[0] for name, each in values.items() if name not in varied and (name, each) != ("nodes", [1])}
    several = len(values["devices"]) > 1
    question = "What does another GPU gain, and where does the time go?" if several else "Where does the time go?"
    scenario = {
        "question": f"{question} (adopted traces)",
        "fixed": {"workload": "adopted", **nested(fixed)},
        **({"vary": nested(varied)} if varied else {}),
        "repeats": repeats,
        "figures": list(figures),
    }
    config = {"scenarios": {SCENARIO: scenario}}
    expanded = distinct(expand(check(config, "multicard analyze --as-runs", outside=False)))
    for run in runs:
        if run.id not in expanded:
            raise UserError(f"{run.where}: states a value that another row writes otherwise, such as 1 and 1.0")
    return config


def _stated(run: TracedRun) -> dict[str, Any]:
    p = parameters_of(run.parameters)
    return flat({"program": p.program, "devices": p.devices, "nodes": p.nodes, ARGS: p.args})


def _distinct(values: Any) -> list[Any]:
    """Each value once: numbers by their size, others as they come."""
    found = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return sorted(found) if numbers else found


def _figures(traced: Sequence[Traced], runs: Path) -> list[str]:
    """Names of the figures that have something to show."""
    counts = {each.run.parameters.get("devices", 1) for each in traced}
    stepped = any(each.steps for each in traced)
    counted = any(each.run.facts["samples_per_step"] for each in traced)
    files = [RunFiles(runs / each.run.id) for each in traced]

    def shows(table: str) -> bool:
        return any(each.activity(table, ["report"]).num_rows for each in files)

    several = len(counts) > 1
    figures = {
        "iteration_time": stepped and several,
        "speedup": stepped and several and counted,
        "step_times": stepped,
        "time_shares": True,
        "cuda_api": stepped and shows("cuda_api"),
        "kernel_classes": stepped,
        "memory_transfers": stepped and shows("memory_operations"),
        "device_time": True,
        "collectives": stepped and shows("collectives"),
    }
    return [name for name, has_something in figures.items() if has_something]
