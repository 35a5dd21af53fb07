"""job.json, in the scratch folder of a job: what the job's processes need to know.

`launch.job` writes it. The launcher on each node (`launch.node_ranks`, and `launch.node` on each of several nodes) and
the observer inside each of the job's Python processes (`observe`) read it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multicard.core.files import read_json, write_json
from multicard.core.layout import JOB


@dataclass(frozen=True)
class ObservedJob:
    """What the observer of a job needs to know: `observe` in job.json."""

    device: str  # "cpu" or "cuda"
    devices: int
    devices_per_node: int
    ranks: int
    ranks_per_node: int
    warmup_steps: int
    # None if the program itself states how many steps it trains (`multicard.marks.training`).
    measured_steps: int | None
    # The profiler captures at least so many steps; 0 if no profiler is used.
    profiled_steps: int
    # File names and modules, any of which identifies the program that a rank runs.
    program: tuple[str, ...] = ()
    # Parts of a step that the run leaves out, to measure their cost: see `observe.ablation`.
    ablate: tuple[str, ...] = ()
    # True if the floating-point operations of one step are counted.
    count_operations: bool = False
    # True if the history of GPU memory is recorded: see `observe.record.memory_snapshot`.
    memory_snapshot: bool = False


@dataclass(frozen=True)
class JobPaths:
    """Paths of a job that its program may get as arguments; None for what the job does not have."""

    # Folders of the prepared data set and language model.
    data: Path | None = None
    model: Path | None = None
    # The folder in the run directory where the program may save files.
    saved: Path | None = None
    # The file from which an interrupted job resumes, and that the program may replace to be resumed.
    checkpoint: Path | None = None
    # A temporary folder for files of the program.
    scratch: Path | None = None


@dataclass(frozen=True)
class JobFile:
    """The content of job.json."""

    # The folder on this node where ranks write their files.
    scratch: Path
    # The name of the profiler that is used: never "auto".
    profiler: str
    observe: ObservedJob
    # Seconds from the start of the job after which it is ended.
    time_limit_s: float
    # The port on the first node where the ranks of a job on several nodes meet.
    port: int
    # As `JobParameters.stated` returns them; `launch.node` validates them.
    parameters: Mapping[str, Any]
    # A temporary folder in the run directory, which all nodes see.
    shared: Path | None = None
    data: Path | None = None
    model: Path | None = None
    saved: Path | None = None
    checkpoint: Path | None = None

    @property
    def paths(self) -> JobPaths:
        """The paths that the program may get."""
        return JobPaths(self.data, self.model, self.saved, self.checkpoint, self.scratch)

    def write(self) -> Path:
        """Write job.json to the folder `scratch`, and return its path."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        path = self.scratch / JOB
        write_json(path, values)
        return path


_PATHS = ("scratch", "data", "model", "saved", "shared", "checkpoint")


def read_job(path: Path) -> JobFile:
    """Read job.json."""
    values = read_json(path)
    observe = values.pop("observe")
    lists = {"program": tuple(observe["program"]), "ablate": tuple(observe["ablate"])}
    paths = {name: Path(values[name]) for name in _PATHS if values[name] is not None}
    return JobFile(**{**values, **paths, "observe": ObservedJob(**{**observe, **lists})})
