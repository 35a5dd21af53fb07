"""Build the emulated GPUs: shared libraries by g++, and a small virtual environment whose processes see them.

    python tests/emulated_gpu/build.py     # prints the environment's Python

Run it with the Python of multicard's environment, which stays as it is: the new one refers to its packages. Everything
is made in `.emulated/` of the checkout, or in the folder MULTICARD_EMULATED. Other sources are built into a folder of
their own, so that programs that run meanwhile keep what they began with; what was built is not built again.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = HERE / "src"
RUNTIME = "libcudart.so.13"


@dataclass(frozen=True)
class Library:
    """A shared library that takes the place of NVIDIA's of the same name."""

    name: str  # of the file, and its SONAME
    sources: tuple[str, ...]  # patterns below src/
    versioned: bool = False  # its symbols carry its name as version, as those of the original do
    with_torch: bool = False  # it calls PyTorch

    def files(self) -> list[Path]:
        """Its sources."""
        return sorted(file for pattern in self.sources for file in SOURCES.glob(pattern))


# The runtime comes first: the others are linked with it.
LIBRARIES = (
    Library(RUNTIME, ("runtime/*.cpp",), versioned=True),
    Library("libcuda.so.1", ("driver*.cpp",)),
    Library("libnvidia-ml.so.1", ("nvml.cpp",)),
    Library("libnccl.so.2", ("nccl/*.cpp",)),
    Library("libcupti.so.13", ("cupti.cpp",), versioned=True),
    Library("libemulated_operators.so", ("operators/*.cpp",), with_torch=True),
)


class BuildError(Exception):
    """Why the emulated GPUs cannot be built; one line, or the compiler's own."""


def missing() -> str | None:
    """Why this machine or this environment cannot have emulated GPUs; None where it can."""
    if shutil.which("g++") is None:
        return "emulated GPUs need g++ (apt-get install g++)"
    if sys.platform != "linux":
        return "emulated GPUs need Linux"
    torch = _package("torch")
    if torch is None or not (torch / "lib" / "libtorch_cuda.so").exists():
        return "emulated GPUs need a CUDA build of PyTorch"
    if not (_packages() / "nvidia" / "cu13" / "include" / "cuda_runtime_api.h").exists():
        return "emulated GPUs need PyTorch for CUDA 13 with its packages of headers (nvidia/cu13)"
    return None


def build(folder: Path) -> Path:
    """Build below `folder` what is not there; the Python of the emulated environment.

    Processes that build at the same time wait for each other.

    Raises
    ------
    BuildError
        If this machine cannot have emulated GPUs, or the compiler fails.
    """
    problem = missing()
    if problem:
        raise BuildError(problem)
    folder.mkdir(parents=True, exist_ok=True)
    version = folder.resolve() / _version()
    libraries, built = version / "lib", version / "built"
    with _locked(folder / "lock"):
        if not built.exists():
            libraries.mkdir(parents=True, exist_ok=True)
            first, *others = LIBRARIES
            _compile(first, libraries)
            # The longest first; there is memory for two of PyTorch's headers at a time.
            with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
                list(workers.map(lambda library: _compile(library, libraries), reversed(others)))
        python = _make_environment(version)
        built.touch()
    return python


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _packages() -> Path:
    """The site-packages that hold PyTorch."""
    torch = _package("torch")
    return torch.parent if torch else Path(sysconfig.get_path("purelib"))


def _compile(library: Library, folder: Path) -> None:
    """Compile a library; all sources with PyTorch's headers at once, since the headers take longer than they do."""
    packages = _packages()
    includes = [
        packages / "nvidia" / "cu13" / "include",
        packages / "nvidia" / "nccl" / "include",
        packages / "triton" / "backends" / "nvidia" / "include",  # cuda.h, and crt/ of the runtime
    ]
    options = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wno-deprecated-declarations"]
    links = [f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN"]
    if library.with_torch:
        torch = packages / "torch"
        includes += [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
        options += ["-O1"]  # it calls more than it computes
        links += [f"-L{torch / 'lib'}", "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda"]
    if library.name != RUNTIME:
        links += [str(folder / RUNTIME)]
    sources = ["-x", "c++", "-", "-x", "none"] if library.with_torch else [str(file) for file in library.files()]
    unit = "".join(f'#include "{file}"\n' for file in library.files()) if library.with_torch else None
    if library.versioned:
        (folder / f"{library.name}.map").write_text(f"{library.name} {{ global: *; }};\n")
        links += [f"-Wl,--version-script={folder / library.name}.map"]
    command = ["g++", *options, *(f"-isystem{path}" for path in includes), *sources, "-o", str(folder / library.name)]
    command += [*links, "-lrt", "-ldl", "-lpthread"]
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"cannot build {library.name}: {shlex.join(command)}\n{done.stderr}")


def _version() -> str:
    """Eight digits for what is built: the files here, the compiler, this Python and its PyTorch."""
    torch = _package("torch")
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(f"{compiler} {sys.executable} {sys.version} {HERE} {torch}".encode())
    files = [path for path in SOURCES.rglob("*") if path.is_file()]
    files += [HERE / name for name in ("build.py", "emulation_hook.py", "nvidia_smi.py", "nsys")]
    for file in [*sorted(files), *([torch / "version.py"] if torch else [])]:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def _make_environment(folder: Path) -> Path:
    """A virtual environment without packages of its own, but for the hook that loads the libraries."""
    environment = folder / "venv"
    python = environment / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(environment)], check=True)
    paths = {
        "libraries": str(folder / "lib"),
        "sources": str(ROOT / "src"),
        "packages": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(_packages())}),
        "programs": [str(environment / "bin")],
    }
    _write(packages / "emulation_hook.json", json.dumps(paths, indent=1))
    _write(packages / "emulation_hook.py", (HERE / "emulation_hook.py").read_text())
    _write(packages / "emulation_hook.pth", "import emulation_hook\n")
    _write(environment / "bin" / "nvidia-smi", f"#!{python}\n{(HERE / 'nvidia_smi.py').read_text()}", executable=True)
    _write(environment / "bin" / "nsys", (HERE / "nsys").read_text(), executable=True)
    # The base's programs in Python (multicard, snakemake), run by the emulated Python.
    for program in Path(sysconfig.get_path("scripts")).iterdir():
        line, _, rest = program.read_bytes().partition(b"\n") if program.is_file() else (b"", b"", b"")
        interpreter = line.removeprefix(b"#!").strip()
        runs_python = line.startswith(b"#!") and Path(os.fsdecode(interpreter)).name.startswith("python")
        if runs_python and not program.name.startswith("pip"):  # nothing is installed here
            _write(environment / "bin" / program.name, f"#!{python}\n" + rest.decode(), executable=True)
    return python


def _write(path: Path, text: str, executable: bool = False) -> None:
    """Write a file unless it holds that already: processes of another test may be using it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text)
        partial.chmod(0o755 if executable else 0o644)
        partial.replace(path)


def default_folder() -> Path:
    return Path(os.environ.get("MULTICARD_EMULATED") or ROOT / ".emulated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where to build (default: %(default)s)")
    try:
        print(build(parser.parse_args().folder))
    except BuildError as error:
        sys.exit(f"build.py: {error}")


if __name__ == "__main__":
    main()
