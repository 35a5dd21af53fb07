"""What tests of training scripts share: an environment like a user's, without multicard in it, and runs of scripts."""

import csv
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from multicard.launch.job import run_job
from multicard.launchers import LAUNCHERS
from multicard.programs.script.parameters import ScriptParameters
from observed_scripts import has_memory_and_phases

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
DEEPSPEED = Path(sys.prefix) / "deepspeed"  # an environment of envs/install-deepspeed.sh
# An interpreter of a user's environment to run the scripts by (benchmarks/observer_matrix.py); unset: by one like this.
USER_PYTHON = os.environ.get("MULTICARD_USER_PYTHON")
LIMIT_S = 1800
# As short as it can be: each of its windows.
SHORT: dict[str, Any] = {
    "device": "cpu", "folder": str(SCRIPTS), "warmup_steps": 2, "steps": 4, "profiled_steps": 2, "profiler": "kineto",
}  # fmt: skip


class Case(NamedTuple):
    """A script, how it is started, and what is known of its steps."""

    command: str
    launcher: str
    devices: int
    samples: int  # of a rank in one step
    optimizer: str
    steps: int = 4  # of the measured window
    profiled: int = 2  # steps, as asked for, or four times as many as a worker of the loader reads ahead
    prints_after: bool = False  # it prints a loss after the update, where the last one is not reached
    lean: bool = False  # its environment lacks `EXTRAS`
    length: int | None = None  # tokens of a sample, where it is a text
    asks_ahead: bool = False  # it has the next batch at hand, so that no transfer is told from the forward pass


# What Lightning imports, at two seconds, only because it is there.
EXTRAS = ("matplotlib", "scipy", "torchvision", "transformers")
LIGHTNING, TRANSFORMERS = "lightning_trainer.py --out {run_dir}", "hf_trainer.py --out {run_dir}"
LIGHTNING_ON_TWO = f"{LIGHTNING} --epochs 1 --devices {{devices}}"
# Framework and launcher, as in the table of docs/own-training.md.
CASES = {
    "PyTorch, python": Case("ddp.py --epochs 1", "python", 1, 4, "SGD"),
    "DDP, torchrun": Case("ddp.py --epochs 1 --workers 1", "torchrun", 2, 4, "SGD", profiled=8),
    "DDP with gradient accumulation, torchrun": Case("ddp.py --accumulate 4", "torchrun", 2, 16, "SGD"),
    "DDP by mp.spawn, command": Case("ddp.py --spawn {devices}", "command", 2, 4, "SGD"),
    "FSDP1, torchrun": Case("fsdp.py --version 1", "torchrun", 2, 4, "AdamW"),
    "FSDP2, torchrun": Case("fsdp.py --version 2", "torchrun", 2, 4, "AdamW"),
    "torch.compile, python": Case("ddp.py --epochs 1 --compile", "python", 1, 4, "SGD"),
    "GAN, python": Case("gan.py", "python", 1, 8, "Adam"),
    "Lightning, python": Case(f"{LIGHTNING} --batch-size 32", "python", 1, 32, "Adam", steps=8, lean=True),
    "Lightning, torchrun": Case(LIGHTNING_ON_TWO, "torchrun", 2, 4, "Adam", lean=True),
    "Lightning, command": Case(LIGHTNING_ON_TWO, "command", 2, 4, "Adam", lean=True),
    "Transformers, python": Case(
        f"{TRANSFORMERS} --batch-size 32", "python", 1, 32, "AdamW", steps=8, prints_after=True, length=16
    ),
    "Transformers, torchrun": Case(
        f"{TRANSFORMERS} --epochs 1", "torchrun", 2, 4, "AdamW", prints_after=True, length=16, asks_ahead=True
    ),
    "Transformers, accelerate": Case(
        f"{TRANSFORMERS} --epochs 1 --accumulate 2", "accelerate", 2, 8, "AdamW", prints_after=True, length=16
    ),
    "Accelerate, python": Case("accelerate_loop.py --accumulate 2", "python", 1, 8, "AdamW"),
    "Accelerate, accelerate": Case("accelerate_loop.py", "accelerate", 2, 4, "AdamW", asks_ahead=True),
    "DDP, mpirun": Case("ddp.py", "mpirun", 2, 4, "SGD"),
    "DeepSpeed, deepspeed": Case("deepspeed_engine.py --accumulate 2", "deepspeed", 2, 8, "AdamW"),
    "DeepSpeed with ZeRO 2, deepspeed": Case("deepspeed_engine.py --stage 2", "deepspeed", 2, 4, "AdamW"),
}

# Of these, what is tested on emulated GPUs as well.
ON_GPUS = (
    "PyTorch, python", "DDP, torchrun", "FSDP2, torchrun", "Lightning, command", "Transformers, torchrun",
    "Accelerate, accelerate",
)  # fmt: skip


def packages_of(environment: Path) -> Path:
    """Where the packages of a virtual environment lie."""
    [packages] = environment.glob("lib/python*/site-packages")
    return packages


def lend_packages(folder: Path, hidden: Sequence[str] = ()) -> None:
    """Have a virtual environment find the packages of this one, but for those that are `hidden`.

    Path files of a folder that a path file names are not read, nor linked, so an editable install of multicard is left
    out.
    """
    site = packages_of(folder)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    if not hidden:
        (site / "packages.pth").write_text("\n".join(packages))
        return
    for path in (path for each in packages for path in Path(each).iterdir()):
        is_hidden = re.split("[-.]", path.name)[0] in hidden
        if path.suffix != ".pth" and path.name != "__pycache__" and not is_hidden and not (site / path.name).exists():
            (site / path.name).symlink_to(path)


def user_environment(folder: Path, hidden: Sequence[str] = ()) -> str:
    """The interpreter of an environment that has the packages of this one, but for multicard and what is `hidden`."""
    venv.create(folder, symlinks=True)
    lend_packages(folder, hidden)
    python = str(folder / "bin" / "python")
    _lacks(python, ("multicard", *hidden))
    return python


def _lacks(python: str, packages: Sequence[str]) -> None:
    """An interpreter finds none of these packages."""
    question = f"import importlib.util as u; print({{s and s.origin for s in map(u.find_spec, {packages})}})"
    found = subprocess.run([python, "-c", question], env=_plain(os.environ), capture_output=True, text=True)
    assert found.stdout.strip() == "{None}", found.stderr


@pytest.fixture(scope="session")
def user_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a user's environment, without multicard."""
    if USER_PYTHON:
        _lacks(USER_PYTHON, ("multicard",))
        return USER_PYTHON
    return user_environment(tmp_path_factory.mktemp("user") / "venv")


@pytest.fixture(scope="session")
def lean_python(user_python: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without `EXTRAS`, unless it is `USER_PYTHON`."""
    return user_python if USER_PYTHON else user_environment(tmp_path_factory.mktemp("lean") / "venv", EXTRAS)


def skip_unless(python: str, statement: str) -> None:
    """Skip the test of a script that needs a newer PyTorch than an interpreter has: it cannot run the statement."""
    if subprocess.run([python, "-c", statement], capture_output=True).returncode != 0:
        pytest.skip(f"needs a newer PyTorch ({statement})")


class Script:
    """A run of a script, started with these variables: its `record`, its rows of steps.csv, and what it printed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ, /, **given: Any) -> None:
        self.folder, self._environment = folder, _plain(environment)
        with patch.dict(os.environ, self._environment, clear=True):  # PYTHONPATH may name this package
            self.record = run_job(ScriptParameters(**SHORT | given), None, folder, time_limit_s=LIMIT_S)
        self.log = (folder / "log.txt").read_text()
        with (folder / "steps.csv").open() as file:
            self.steps = list(csv.DictReader(file))

    def completed(self) -> "Script":
        """The same, which must have completed."""
        assert self.record.outcome == "completed", f"{self.record.reason}\n{self.log}"
        return self

    def of_rank(self, rank: int) -> list[dict[str, str]]:
        """Steps of one rank, in order."""
        return [step for step in self.steps if int(step["rank"]) == rank]

    def log_without_observer(self) -> str:
        """What the same command prints where nothing observes it."""
        p = self.record.parameters
        gpus = ",".join(map(str, range(p.devices))) if p.device == "cuda" else ""
        launcher = LAUNCHERS[p.launched_by].environment()
        ended = subprocess.run(
            self.record.command, cwd=p.folder,
            env=self._environment | launcher | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpus},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout
        return ended.stdout


def nanogpt(scripts: Path, place: Path, **options: Any) -> tuple[str, list[str]]:
    """A copy of nanoGPT with a text to learn, and the command that trains a very small model on it."""
    folder = shutil.copytree(scripts / "nanoGPT", place / "nanoGPT")
    data = folder / "data" / "shakespeare_char"
    (data / "input.txt").write_text("To be, or not to be: that is the question.\n" * 99)
    subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
    small = {"compile": False, "eval_iters": 1, "log_interval": 1, "block_size": 16, "batch_size": 4}
    options = small | {"n_head": 2, "n_embd": 32} | options
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return str(folder), ["train.py", "config/train_shakespeare_char.py", *arguments, "--out_dir={run_dir}"]


def torchtune(place: Path, recipe: str, *options: str) -> tuple[str, ...]:
    """The command that tunes `tiny` by a recipe of torchtune's own command."""
    from multicard.programs.llm.prepare_model import prepare_model  # imports torch
    from multicard.programs.models import Model

    (place / "model").mkdir()
    prepare_model("tiny", Model(architecture="tiny"), place / "model", ROOT / "resources")
    texts = ROOT / "resources" / "text" / "instructions.jsonl"
    places = (f"model_dir={place / 'model'}", f"data_files={texts}", "output_dir={run_dir}/out")
    return ("-m", "torchtune._cli.tune", "run", *options, recipe, "--config", "tune_lora.yaml", *places)


def losses(log: str) -> list[str]:
    """Every loss that a script printed, digit by digit."""
    return re.findall(r"\bloss:? ?(\d[\d.e-]*\d)", log)


def every_step_is_seen(run: Script, case: Case, least_bytes: float = 100e6) -> None:
    """Steps, windows, samples, tokens and phases of a completed run are those that were counted by hand, on every rank.

    On a CPU PyTorch alone is resident with more than `least_bytes`.
    """
    made = len(losses(run.log)) + case.prints_after - 1  # the first update ends no step
    assert len(run.steps) == case.devices * made
    for rank in range(case.devices):
        steps = run.of_rank(rank)
        assert [int(step["step"]) for step in steps] == list(range(1, made + 1))
        windows = [step["window"] for step in steps]
        assert windows[:6] == ["warmup"] * 2 + ["measured"] * 4
        assert windows[-case.profiled :] == ["profiled"] * case.profiled
        assert windows[-case.profiled - 1] in ("measured", "warmup")
        assert {int(step["samples"]) for step in steps[2:6]} == {case.samples}
        tokens = "" if case.length is None else str(case.samples * case.length)
        assert {step["tokens"] for step in steps[2:6]} == {tokens}
        has_memory_and_phases(steps[2:6], least_bytes=least_bytes)
        has_transfer = run.record.parameters.device == "cuda" and not case.asks_ahead
        assert {step["transfer_s"] != "" for step in steps} == {has_transfer}
    assert run.record.exit_code == 0
    assert "Traceback" not in run.log
    for rank in run.record.ranks:
        observed = rank.observed
        assert observed.optimizers == (case.optimizer,)
        assert [loader.distinct for loader in observed.loaders] == [True]


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which the observer is not found."""
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "MULTICARD_OBSERVE")}
