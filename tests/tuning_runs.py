"""Jobs that tune the model `tiny` on shipped texts by CPU processes, for the tests of several modules."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from forked_ranks import forked_ranks
from multicard.config.read_run import read_run
from multicard.core.job_file import JobPaths
from multicard.launch.job import run_job
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs import PROGRAMS
from multicard.programs.datasets import ShippedText
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.models import Model
from multicard.programs.program import RankCommand
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

RESOURCES = Path(__file__).parents[1] / "resources"
SMALL: dict[str, Any] = {
    "device": "cpu", "precision": "fp32", "batch_size": 2, "sequence_length": 128, "warmup_steps": 2, "steps": 8,
    "profiled_steps": 2, "learning_rate": 0.001, "profiler": "none", "dataset": "preferences",
    "library": "torchtune",
}  # fmt: skip
ALL_STEPS = SMALL["warmup_steps"] + SMALL["steps"]  # of a job without a profiler
SCHEDULED = ALL_STEPS + LEAST_SETTLING + SMALL["profiled_steps"]  # steps of the schedule of learning rates, in any job


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not imported above, since it imports torch, and every test imports this module.
    from multicard.programs.llm.prepare_model import prepare_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    prepare_model("tiny", Model(architecture="tiny"), folder, RESOURCES)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("texts")

    def prepared(name: str) -> Path:
        if not (place / name).exists():
            prepare_texts(name, ShippedText(source="shipped-text", texts=name), place / name, RESOURCES)
        return place / name

    return prepared


@pytest.fixture(scope="session")
def tune(tiny: Path, texts: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Run a job, once for equal parameters; give its run directory. `module` is run in place of the program's own."""
    place, done = tmp_path_factory.mktemp("runs"), {}

    def run(data: Path | None = None, module: str | None = None, **changes: Any) -> Path:
        key = json.dumps(changes | {"data": str(data), "module": module}, sort_keys=True)
        if key not in done:
            p = LlmParameters(**(SMALL | changes))
            done[key] = place / str(len(done))
            # nsys starts its job itself.
            with nullcontext() if p.profiler == "nsys" else forked_ranks(), running(module):
                run_job(p, data or texts(p.dataset), done[key], 300, tiny)
            export_run(done[key])
            extract_run(done[key], read_run(done[key]).ranks)
        return done[key]

    return run


@contextmanager
def running(module: str | None) -> Iterator[None]:
    """Let jobs in this context run a module in place of the program `llm`; None for the program itself."""
    program = PROGRAMS["llm"]

    def command(p: LlmParameters, paths: JobPaths) -> RankCommand:
        own = program.command(p, paths)
        _, _, *options = own.words
        return RankCommand(["-m", module, *options], python=own.python)

    # A rank that is not forked finds the module there.
    found = os.pathsep.join(filter(None, (str(Path(__file__).parent / "llm"), os.environ.get("PYTHONPATH"))))
    replaced = replace(program, command=command) if module else program
    with patch.dict(PROGRAMS, llm=replaced), patch.dict(os.environ, PYTHONPATH=found):
        yield


def steps_of(folder: Path) -> pd.DataFrame:
    record = read_run(folder)
    assert record.outcome == "completed", (folder / "log.txt").read_text()
    return pd.read_csv(folder / "steps.csv")
