"""Limits of a machine, recorded by `multicard doctor --measure`: rates with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multicard.analysis.evidence import names_synthetic
from multicard.analysis.runs.conditions import disturbance
from multicard.analysis.runs.run_files import read_object
from multicard.core.errors import UserError
from multicard.core.text import counted
from multicard.core.units import BYTES, BYTES_PER_S, OPERATIONS_PER_S, Units, with_unit
from multicard.core.validation import first_fault
from multicard.stats.interval import Interval
from multicard.stats.pool import geometric_mean_interval

NAMES = {
    "matmul": "matrix multiplication",
    "all_reduce": "all-reduce, bus bandwidth",
}


class Row(BaseModel):
    """A measurement: its work per call, operations or bytes, and seconds per call, one for each block of calls.

    `precision`, `edge` and `threads` are those of matrix products, `devices` and `message_bytes` those of all-reduces.
    """

    measure: Literal[tuple(NAMES)]
    times_s: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    operations: float | None = None
    bytes: float | None = None
    precision: str | None = None
    edge: int | None = None
    threads: int | None = None
    devices: int | None = None
    message_bytes: int | None = None

    @model_validator(mode="after")
    def _counts_something(self) -> "Row":
        if self.operations is None and self.bytes is None:
            raise ValueError("found no work, expected operations or bytes")
        return self

    @property
    def units(self) -> Units:
        """Those of its rate."""
        return BYTES_PER_S if self.operations is None else OPERATIONS_PER_S

    @property
    def rate(self) -> Interval:
        """Work per second, of the geometric mean of the times."""
        work = self.bytes if self.operations is None else self.operations
        return geometric_mean_interval(self.times_s).map(lambda seconds: work / seconds)


class Part(BaseModel):
    """What was measured in common processes; `problem` where something could not be."""

    part: str
    rows: list[Row]
    devices: int | None = None
    problem: str | None = None
    conditions: list[dict[str, Any] | None] = []
    ranks: list[dict[str, Any]] = []

    @property
    def disturbance(self) -> str | None:
        """In words, what else ran, or throttled the GPU; None where nothing did, or nothing is known."""
        return disturbance({"conditions": self.conditions, "ranks": self.ranks})

    @property
    def notes(self) -> list[str]:
        """Lines about what is doubtful or missing."""
        what = self.part.replace("_", "-") + (f" between {self.devices} devices" if self.devices else "")
        lines = [f"Disturbed: {what}: {self.disturbance}"] if self.disturbance else []
        return lines + ([f"Not measured: {what}: {self.problem}"] if self.problem else [])


class MachineLimits(BaseModel):
    """The record of one kind of device of one machine."""

    model_config = ConfigDict(extra="allow")

    device: Literal["cpu", "cuda"]
    seconds: float
    started: str
    host: dict[str, Any] | None = None
    hardware: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    parts: list[Part]

    @property
    def synthetic(self) -> bool:
        """Whether its GPUs are emulated, by their names: then no number means anything."""
        gpus = (self.hardware or {}).get("gpus") or []
        return names_synthetic(gpu.get("name") for gpu in gpus)

    @property
    def notes(self) -> list[str]:
        """Lines about what is doubtful or missing."""
        synthetic = ["Synthetic: on emulated GPUs, no number means anything"] if self.synthetic else []
        return [*synthetic, *(line for part in self.parts for line in part.notes)]


def read_machine(path: Path) -> MachineLimits:
    """Read a record of `multicard doctor --measure`.

    Raises `UserError` if it is not there, or damaged.
    """
    try:
        return MachineLimits.model_validate(read_object(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None


@dataclass(frozen=True)
class Line:
    """A limit in words: what, under which conditions, the mean rate, and its 95% interval."""

    what: str
    of: str
    rate: str
    spread: str


def lines(limits: MachineLimits) -> list[Line]:
    """All limits in words."""
    found = []
    for row in (row for part in limits.parts for row in part.rows):
        rate, units = row.rate, row.units
        spread = "" if rate.low is None else f"{with_unit(rate.low, units)} to {with_unit(rate.high, units)}"
        found.append(Line(NAMES[row.measure], ", ".join(_of(row)), with_unit(rate.value, units), spread))
    return found


def product_rate(limits: MachineLimits, precisions: Sequence[str], threads: int) -> float | None:
    """Operations per second of matrix products in the first of the precisions that was measured; None if none was."""
    rows = (row for part in limits.parts for row in part.rows if row.measure == "matmul")
    products = {(row.precision, row.threads): row.rate.value for row in rows}
    return next((products[each, threads] for each in precisions if (each, threads) in products), None)


def products_disturbed(limits: MachineLimits) -> bool:
    """Whether something disturbed the matrix products, whose rate may then be below the machine's."""
    return any(part.disturbance and any(row.measure == "matmul" for row in part.rows) for part in limits.parts)


def _of(row: Row) -> list[str]:
    """Conditions of a row."""
    found = [
        row.precision,
        row.threads and counted(row.threads, "thread"),
        row.edge and f"{row.edge} × {row.edge}",
        row.devices and f"{row.devices} devices",
        row.message_bytes and f"messages of {with_unit(row.message_bytes, BYTES)}",
    ]
    return [each for each in found if each]
