"""The parameters of a run that was made of traces: what was stated of it."""

from typing import ClassVar, Literal

from pydantic import Field

from multicard.runs.parameters import JobParameters, worded
from multicard.workloads.script.parameters import OwnParameters, slug

PROGRAM = r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,39}$"


class AdoptedParameters(JobParameters):
    """One run of which there are traces.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(AdoptedParameters(program="resnet", devices=2, args={"batch": 32}))
    'adopted_resnet_cuda2_batch-32_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("program", "devices")

    # A trace does not say how its program was launched and recorded, so these are no parameters here. To mypy a class
    # variable in place of an instance's is an error; to pydantic it removes the base class's field.
    binding: ClassVar[str] = "none"  # type: ignore[misc]
    threads: ClassVar[int] = 1  # type: ignore[misc]
    seed: ClassVar[int] = 0  # type: ignore[misc]
    warmup_steps: ClassVar[int] = 0  # type: ignore[misc]
    profiled_steps: ClassVar[int] = 0  # type: ignore[misc]
    ablate: ClassVar[str] = "none"  # type: ignore[misc]
    profiler: ClassVar[str] = "none"  # type: ignore[misc]
    memory_snapshot: ClassVar[bool] = False  # type: ignore[misc]

    workload: Literal["adopted"] = Field("adopted", description="The kind of job.")
    program: str = worded(
        "{}",
        "Name of what was traced; runs of different programs are not compared.",
        default="traces",
        pattern=PROGRAM,
    )
    args: OwnParameters = {}  # noqa: RUF012, pydantic gives each its own

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def id_parts(self) -> list[str]:
        """The program's own parameters, in the order of their names."""
        return [f"{name}-{slug(self.args[name])}" for name in sorted(self.args)]

    @property
    def distributed(self) -> bool:
        """True if several ranks form a process group."""
        return self.devices > 1
