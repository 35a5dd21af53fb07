"""Fixtures for tests on emulated GPUs: the Python of the emulated environment runs programs in other processes."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emulated_gpu.build import BuildError, build, default_folder, missing

ROOT = Path(__file__).parents[2]
PREFIX = "NVIDIA_EMU_"
NOTHING_COMPUTES = "kernel that nothing computes"


class EmulatedGpus:
    """A machine of emulated GPUs, whose memory no other test shares.

    In `log` the emulation writes what happens: contexts, errors, captures, kernels that nothing computes. Of these one
    fails the test, unless the test sets `computes_all` to False.
    """

    def __init__(self, python: Path, log: Path):
        self.python, self.log, self.computes_all = python, log, True
        self.machine = uuid.uuid4().hex[:12]

    def environment(self, **settings: object) -> dict[str, str]:
        """Environment variables of a process.

        Settings go by their names: `gpus=2`, `gpu_gib="16,0.4"`, `nvml="no-energy"`. Names in capitals are variables as
        they stand: `CUDA_VISIBLE_DEVICES="0"`.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith((PREFIX, "CUDA_", "PYTEST_", "PYTHONPATH", "VIRTUAL_ENV"))
        }
        stated = {name if name.isupper() else f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
        own = {f"{PREFIX}LOG": str(self.log), f"{PREFIX}MACHINE": self.machine, "OMP_NUM_THREADS": "1"}
        return {**kept, **own, **stated}

    def run(self, *arguments: object, limit_s: float = 300, **settings: object) -> subprocess.CompletedProcess[str]:
        """Run the emulated Python; its output is text, and its exit code is not judged."""
        command = [str(self.python), *map(str, arguments)]
        environment = self.environment(**settings)
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)

    def output(self, program: str, limit_s: float = 300, **settings: object) -> str:
        """What a program, given as text, prints; it must exit with 0."""
        done = self.run("-c", program, limit_s=limit_s, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def logged(self, text: str = "") -> list[str]:
        """The lines of the log that hold the text."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if text in line]


@pytest.fixture(scope="session")
def emulated_python() -> Path:
    """The Python of the emulated environment, which is built first if it must be; workers of xdist wait for it."""
    problem = missing()
    if problem:
        pytest.skip(problem)
    try:
        return build(default_folder())
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def emulated(emulated_python: Path, tmp_path: Path) -> Iterator[EmulatedGpus]:
    """Emulated GPUs; an operator that nothing computes fails the test, whatever the program made of it."""
    with _machine(emulated_python, tmp_path) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def emulated_gpus(emulated_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedGpus]:
    """The same for all tests of a module."""
    with _machine(emulated_python, tmp_path_factory.mktemp("emulated")) as gpus:
        yield gpus


@contextmanager
def _machine(python: Path, folder: Path) -> Iterator[EmulatedGpus]:
    gpus = EmulatedGpus(python, folder / "emulated-gpus.log")
    yield gpus
    (Path("/dev/shm") / f"emulated-gpu-{os.getuid()}-{gpus.machine}").unlink(missing_ok=True)
    not_computed = gpus.logged(NOTHING_COMPUTES)
    assert not (gpus.computes_all and not_computed), not_computed
