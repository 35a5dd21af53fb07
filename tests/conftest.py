"""What several tests share."""

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from multicard.config.read_run import read_run
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.prepared import folder_name
from multicard.launch.job import run_job
from multicard.programs.datasets import Digits
from multicard.programs.machine import Machine
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.prepare import prepare
from multicard.share.pack import pack
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

# They need torchtune when they are imported.
collect_ignore = [] if find_spec("torchtune") else ["llm/test_memory_estimate.py", "llm/test_packing.py"]
pytest_plugins = ["emulated_gpu.fixtures", "observed_scripts", "script.equipment", "tuning_runs"]

ROOT = Path(__file__).parents[1]
# What is made at the top of a checkout, which copies of the project are without.
MADE = {".git", ".venv", ".snakemake", "results", "data", ".pytest_cache", ".ruff_cache", ".mypy_cache"}
# Folders of the longest files: started first, since a file stays with one worker, and a long one that starts last
# leaves the others idle.
LONGEST = ("slurm", "script", "emulated", "workflow", "llm", "vision", "launch", "docs", "cli", "observe", "machine")

# Real training, as short as it can be.
TINY: dict[str, Any] = {
    "device": "cpu",
    "width_mult": 0.25,
    "image_size": 16,
    "batch_size": 8,
    "epochs": 1,
    "steps_per_epoch": 8,
    "warmup_steps": 2,
    "profiled_steps": 3,
}


# torch.compile then makes plain C++: to learn which vector instructions work, every process would compile and load a
# program for each. It starts no processes to compile for GPUs either, before there is something to compile.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCH_WARM_POOL", "0")

# A shell starts what runs in its background deaf to Ctrl-C, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def popen_options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options with which this process starts programs, as it starts them."""
    options: dict[str, Any] = {}
    popen = subprocess.Popen

    def noted(*arguments: Any, **given: Any) -> Any:
        options.update(given)
        return popen(*arguments, **given)

    monkeypatch.setattr(subprocess, "Popen", noted)
    return options


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """Have a hangup end this process, as it does unless the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ran(*command: object, limit_s: float = 1800, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that ran to its end; its output is text, and its exit code is not judged."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s, **options)


def refusal(call: Callable[[], object], error: type[BaseException] = UserError) -> str:
    """The one line with which a call refuses its input."""
    with pytest.raises(error) as stopped:
        call()
    [line] = str(stopped.value).splitlines()
    return line


def refused(out: Path, prepare: Callable[[], object]) -> str:
    """The one line that refuses what is to be prepared in `out`, where nothing may stay."""
    line = refusal(prepare)
    assert not out.exists() or not list(out.iterdir())
    return line


def pytest_collection() -> None:
    """Look for no garbage meanwhile: to import the tests and what they test makes a million objects, which stay."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine lacks, saying so, and put the longest files first."""
    places = {folder: place for place, folder in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(LONGEST)))  # stable: otherwise as collected
    no_gpu = Machine.here().gpus == 0
    no_torchtune = find_spec("torchtune") is None
    for item in items:
        if item.get_closest_marker("gpu") and no_gpu:  # a keyword is also the name of a folder
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        if item.get_closest_marker("torchtune") and no_torchtune:
            item.add_marker(pytest.mark.skip(reason="needs torchtune (make torchtune), and is run by its interpreter"))
        if "nsys" in item.keywords and shutil.which("nsys") is None:
            item.add_marker(pytest.mark.skip(reason="needs nsys on the PATH (envs/install-nsys.sh)"))


def pytest_collection_finish() -> None:
    """Look for garbage from now on, among what tests make."""
    gc.freeze()
    gc.enable()


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that whichever worker of xdist needs it first makes for all."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not folder.exists():
            unfinished = factory.mktemp("unfinished") / name
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "digits", partial(prepare, "digits", Digits(source="digits")))


def add_digits(folder: Path, digits: Path) -> None:
    """Spare a project the preparation of the digits."""
    shutil.copytree(digits, folder / "data" / folder_name("digits", Digits(source="digits")))


@pytest.fixture(scope="session")
def two_rank_run(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two real processes under PyTorch's profiler."""

    def train(folder: Path) -> None:
        parameters = VisionParameters(**TINY, strategy="ddp-ds", devices=2, profiler="kineto")
        record = run_job(parameters, digits, folder, time_limit_s=1800)
        assert record.outcome == "completed", (folder / "log.txt").read_text()
        # Whether this machine was busy meanwhile must not show in what is made of the run.
        write_json(folder / "run.json", record.as_json() | {"conditions": []})

    return made_once(tmp_path_factory, "two_rank_run", train)


@pytest.fixture(scope="session")
def extracted_run(two_rank_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with its activity tables."""

    def extract(folder: Path) -> None:
        shutil.copytree(two_rank_run, folder)
        export_run(folder)
        extract_run(folder, read_run(folder).ranks)

    return made_once(tmp_path_factory, "extracted_run", extract)


@pytest.fixture(scope="session")
def recorded_results(extracted_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two repeats."""
    from recorded_runs import add_run  # which imports this module

    folder = tmp_path_factory.mktemp("recorded") / "results"
    for repeat in (1, 2):
        add_run(extracted_run, folder, repeat=repeat)
    return folder


@pytest.fixture(scope="session")
def recorded_archive(recorded_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from recorded_runs import experiment  # as above

    path = tmp_path_factory.mktemp("archive") / "two.tar.gz"
    assert len(pack(experiment(recorded_results, 2), path).runs) == 2
    return path


@pytest.fixture
def without_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path_without_nsys())


def path_without_nsys() -> str:
    """The PATH less every folder that holds nsys."""
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "nsys").exists())
