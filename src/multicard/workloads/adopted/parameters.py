"""The parameters of a run that was made from traces, as the user stated them."""

from typing import ClassVar, Literal

from pydantic import Field

from multicard.runs.parameters import JobParameters, worded
from multicard.workloads.script.parameters import OwnParameters, slug

# Pattern of a program's name, which becomes a part of the run id.
PROGRAM = r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,39}$"


class AdoptedParameters(JobParameters):
    """Parameters of one run that was made from traces.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(AdoptedParameters(program="resnet", devices=2, args={"batch": 32}))
    'adopted_resnet_cuda2_batch-32_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("program", "devices")

    # Parameters of other workloads that state how a program is launched and recorded, which a trace does not show. As
    # class variables they are no fields: pydantic removes the base class's fields. mypy takes that for an error.
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
        """The program's own parameters with their values, sorted by name."""
        return [f"{name}-{slug(self.args[name])}" for name in sorted(self.args)]

    @property
    def distributed(self) -> bool:
        """True if several ranks form a process group."""
        return self.devices > 1
