"""Everything that needs a GPU: `make gpu-check` (docs/validation.md).

Runs config/gpu-check.yaml by Snakemake, so that a second call resumes where the first one ended, judges every run, and
runs the tests that are marked `gpu`. What is to be sent lies in one folder: a table (Markdown, CSV), and the archive.
Where a GPU can be had for minutes only, `--minutes 9 --save FOLDER` ends in time and keeps every finished run in
FOLDER, from which the next call continues, on any machine.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any

import pandas as pd
from pieces import Deadline, restore, save
from rows import COLUMNS, EVENTS_TRACED, OUT_OF_MEMORY, judge
from safetensors.torch import save_file
from snakemake.utils import update_config

from multicard.config.load import check, read_yaml
from multicard.config.plan import Plan
from multicard.config.read_run import read_run
from multicard.core.errors import UserError, reported
from multicard.core.files import atomic_write, write_json
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, NOT_RUN, RUN
from multicard.programs.llm.tiny import WEIGHTS, config_of, random_weights
from multicard.programs.models import Architecture
from multicard.runs.parameters import JobParameters
from multicard.share.allowed import Allowed
from multicard.share.pack import pack

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "tests" / "gpu" / "events_traced"  # an nsys that traces CUDA events
CONFIG = ROOT / "config" / "gpu-check.yaml"
NOT_YET = "not yet"
TABLES = f"{ACTIVITY}/{ACTIVITY_INDEX}"  # of a run, once its trace was read
SPARED_MIB = 2048  # of it: for CUDA, NCCL and the model, not for the activations

# Assumed, in seconds, of four GPUs and 16 cores: a run from its start to its end, what compiling adds, and all else:
# creating weights, reading traces, drawing, the tests.
RUN_S = {"vision": 24, "llm": 30, "script": 15}
COMPILING_S = 40
AROUND_S = 300


def main() -> None:
    """Run what has not run yet, judge all, and leave what is to be sent; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", default=[CONFIG], help="later files change earlier ones")
    parser.add_argument("--spared-mib", type=int, default=SPARED_MIB, help="memory left where a rank is to lack it")
    parser.add_argument("--minutes", type=float, help="end within so many; what is left is for the next call")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where what has run is kept, and taken up from")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests that are marked gpu")
    chosen = parser.parse_args()
    started, deadline = time.monotonic(), Deadline(chosen.minutes)
    plan = planned(chosen.config)
    results = Path(plan.experiment.results)
    if chosen.save:
        restore(chosen.save, results)
    ahead = [run for run in plan.planned() if not (results / "runs" / run / RUN).exists()]
    minutes = estimated_s(plan.runs[run].parameters for run in ahead) / 60
    print(f"{len(plan.planned())} runs, {len(ahead)} to do, about {minutes:.0f} minutes", flush=True)
    if "nsys" not in plan.machine.profilers:
        print("no nsys: runs are recorded by PyTorch's profiler, so how nsys sees them stays open", flush=True)
    sound = True
    for (scenario, devices), runs in stretches(plan, ahead):
        with around(scenario, devices, chosen.spared_mib):
            sound &= snakemake(deadline, chosen.config, *(results / "runs" / run / TABLES for run in runs))
    sound &= snakemake(deadline, chosen.config)
    table = judge_all(plan, is_over=deadline.left_s == 0)
    sound &= not table["result"].eq("FAILED").any()
    folder = results / "send"
    show(table)
    try:
        leave(folder, table, plan)
    except UserError as error:  # a damaged file of a run, which its row names; or no run is complete yet
        print(f"multicard: no archive: {error}", file=sys.stderr)
        sound &= not table["result"].eq("passed").any()
    if chosen.save:
        save(results, chosen.save)
        for file in folder.iterdir():
            shutil.copy(file, chosen.save)
    if not chosen.no_tests:
        sound &= deadline.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", ROOT / "tests"], ROOT) in (0, None)
    print(f"{time.monotonic() - started:.0f} s. A failed run is repeated once its folder in {results}/runs is deleted.")
    print(f"Send the files in {folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    sys.exit(0 if sound else 1)


def planned(files: list[Path]) -> Plan:
    """The runs of the merged configurations, for this machine; random weights are created where they are missing."""
    config: dict[str, Any] = {}
    for file in files:
        update_config(config, read_yaml(file))
    plan = Plan.make(check(config, " + ".join(map(str, files))))
    if plan.machine.gpus == 0:
        raise UserError("found no CUDA GPU")
    missing = [model for model in plan.experiment.models.values() if model.missing_files()]
    for model in missing:
        make_random(Path(model.folder), model.shape)
    return planned(files) if missing else plan


def stretches(plan: Plan, ahead: list[str]) -> list[tuple[tuple[str | None, int], list[str]]]:
    """Runs whose traces are not read, those on one GPU first, cut where something else is to be done around them.

    Of each the scenario for which that is done, None where nothing is, and the number of devices, then 2 for several.
    Snakemake starts the runs of each in the planned order.
    """
    of = {run.id: name for name in (OUT_OF_MEMORY, EVENTS_TRACED) for run in plan.scenarios.get(name, [])}
    devices = {run: plan.runs[run].parameters.devices for run in plan.runs}

    def what(run: str) -> tuple[str | None, int]:
        return (of[run], devices[run]) if run in of and run in ahead else (None, min(devices[run], 2))

    runs = Path(plan.experiment.results) / "runs"
    unread = [run for run in plan.planned() if not (runs / run / TABLES).exists()]
    unread.sort(key=lambda run: devices[run] > 1)
    return [(key, list(own)) for key, own in groupby(unread, key=what)]


def make_random(folder: Path, shape: Architecture) -> None:
    """Create a checkpoint of random weights, with a tokenizer of as many tokens as the shape asks for."""
    base = shape.vocabulary - 256  # less the special tokens of Llama 3
    longer = (bytes(parts) for length in (2, 3) for parts in product(range(256), repeat=length))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch, folder.name)
        made.mkdir()
        tokens = [*map(bytes, zip(range(256))), *islice(longer, base - 256)]
        lines = [b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
        (made / "tokenizer.model").write_bytes(b"".join(lines))
        write_json(made / "config.json", config_of(shape, base))
        save_file(random_weights(shape), made / WEIGHTS, metadata={"format": "pt"})
        made.replace(folder)


def estimated_s(parameters: Iterable[JobParameters]) -> float:
    """Seconds that runs take one after another, by what is assumed of each."""
    seconds = AROUND_S
    for p in parameters:
        compiles = p.compiled or getattr(p, "packed", False)
        seconds += RUN_S[p.workload] + (COMPILING_S if compiles else 0)
    return seconds


@contextmanager
def around(scenario: str | None, devices: int, spared_mib: int) -> Iterator[None]:
    """Do what a scenario needs while its runs on so many devices run; `spared_mib` as of `occupied`."""
    with occupied(devices - 1, spared_mib) if scenario == OUT_OF_MEMORY else nullcontext():
        path = os.environ["PATH"]
        if scenario == EVENTS_TRACED:
            os.environ |= {"PATH": f"{EVENTS}{os.pathsep}{path}", "REAL_NSYS": shutil.which("nsys") or "nsys"}
        yield
        os.environ["PATH"] = path


@contextmanager
def occupied(gpu: int, spared_mib: int) -> Iterator[None]:
    """Keep other programs from all but so much of a GPU's memory."""
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "occupy.py"), str(gpu), str(spared_mib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        try:
            yield
        finally:
            holder.stdin.close()


def snakemake(deadline: Deadline, config: list[Path], *targets: Path) -> bool:
    """Make the targets, by default everything; whether all could be made, as far as there was time."""
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--configfile", *config]
    command.append("--nolock")  # a lock would outlive a call that had to be killed
    return deadline.run([*command, "--", *targets] if targets else command, ROOT) in (0, None)


def judge_all(plan: Plan, is_over: bool = False) -> pd.DataFrame:
    """One row per run of each scenario, by `COLUMNS`; runs that this machine cannot run say why.

    `is_over`: whether the time was up, so that what did not run may still do so.
    """
    rows = []
    for scenario, runs in plan.scenarios.items():
        for run in runs:
            folder = Path(plan.experiment.results) / "runs" / run.id
            if is_over and not (folder / TABLES).exists() and not plan.reasons[run.id]:
                row = {"run": run.id, "result": NOT_YET, "remarks": ""}
            elif (folder / RUN).exists():
                try:
                    row = judge(run, folder, scenario)
                except UserError as error:  # a file that is missing or damaged
                    row = {"run": run.id, "result": "FAILED", "remarks": str(error)}
                except Exception as error:  # a bug with one run must not hide what became of the others
                    traceback.print_exc()
                    row = {"run": run.id, "result": "FAILED", "remarks": f"{type(error).__name__}: {error}"}
            elif reason := plan.reasons[run.id]:
                row = {"run": run.id, "result": NOT_RUN, "remarks": reason}
            else:
                row = {"run": run.id, "result": "FAILED", "remarks": "it did not run"}
            rows.append({"scenario": scenario, **row})
    return pd.DataFrame(rows, columns=COLUMNS)


def leave(folder: Path, table: pd.DataFrame, plan: Plan) -> None:
    """Write the table and then the archive, without names of people, machines and places.

    Raises `UserError` where a file of a run is damaged: there is no archive, then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for run in plan.runs:
        with suppress(UserError):  # of a run that is missing or damaged, as the table says
            records.append(read_run(Path(plan.experiment.results) / "runs" / run))
    if not records:
        return
    table = table.assign(remarks=table["remarks"].map(Allowed(records).own))
    about = next((record for record in records if record.hardware), records[0])
    gpus = [f"{gpu.name} ({gpu.capability})" for gpu in about.hardware.gpus] if about.hardware else []
    versions = ", ".join(f"{name} {version}" for name, version in (about.versions or {}).items() if version)
    parts = [
        f"# GPU check: {counted(table)}",
        f"{len(gpus)} × {', '.join(sorted(set(gpus)))}; {versions}",
        table.to_markdown(index=False, floatfmt=".4g"),
    ]
    with atomic_write(folder / "check.md") as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    with atomic_write(folder / "check.csv") as temporary:
        table.to_csv(temporary, index=False)
    archive = folder / "runs.tar.gz"
    archive.unlink(missing_ok=True)  # of an earlier call
    pack(plan.experiment, archive)


def show(table: pd.DataFrame) -> None:
    """Print what failed or did not run, and how many did what."""
    others = table.loc[table["result"] != "passed", ["scenario", "run", "result", "remarks"]]
    print(*([] if others.empty else [others.to_markdown(index=False)]), counted(table), sep="\n")


def counted(table: pd.DataFrame) -> str:
    return ", ".join(f"{count} {result}" for result, count in table["result"].value_counts().items())


if __name__ == "__main__":
    with reported():
        main()
