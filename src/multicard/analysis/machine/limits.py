"""Limits of a machine, recorded by `multicard doctor --measure`: rates with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from multicard.analysis.runs.conditions import disturbance
from multicard.core.sharing import AS_IT_IS, SETTING, TIME, VARIABLE_NAMES, VERSION, ErrorText, Keys, Words
from multicard.core.text import counted
from multicard.core.units import BYTES, BYTES_PER_S, OPERATIONS_PER_S, Units, with_unit
from multicard.runs.environment import gpu_names, is_synthetic
from multicard.runs.reading import read_model
from multicard.runs.record import Hardware, Host, NodeConditions, RankRecord
from multicard.stats.interval import Interval
from multicard.stats.pool import geometric_mean_interval

# Measurements by the name that they have in a record, in words.
NAMES = {
    "matmul": "matrix multiplication",
    "all_reduce": "all-reduce, bus bandwidth",
}


class Row(BaseModel):
    """A measurement: its work per call, in operations or bytes, and its seconds per call.

    Matrix products have a `precision`, the `edge` of their square matrices and `threads`, all-reduces have `devices`
    and `message_bytes`.
    """

    measure: Annotated[Literal["matmul", "all_reduce"], AS_IT_IS]
    # One time for each block of calls.
    times_s: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    operations: float | None = None
    bytes: float | None = None
    precision: Annotated[str | None, Words("fp64", "fp32", "tf32", "bf16", "fp16")] = None
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
        """Units of its rate: operations per second if it counts operations, else bytes per second."""
        return BYTES_PER_S if self.operations is None else OPERATIONS_PER_S

    @property
    def rate(self) -> Interval:
        """Work per second, by the geometric mean of the times."""
        work = self.operations if self.operations is not None else self.bytes
        # `_counts_something` refuses a measurement without either.
        assert work is not None
        return geometric_mean_interval(self.times_s).map(lambda seconds: work / seconds)


class Part(BaseModel):
    """Measurements that were made in common processes."""

    part: Annotated[str, Words("device", "all_reduce")]
    rows: list[Row]
    devices: int | None = None
    # Why something could not be measured.
    problem: Annotated[str | None, ErrorText()] = None
    # What else ran while it was measured, in the form that records of runs have.
    conditions: tuple[NodeConditions | None, ...] = ()
    ranks: tuple[RankRecord, ...] = ()

    @property
    def disturbance(self) -> str | None:
        """Words for what else ran, or throttled the GPU; None if nothing did, or nothing is known."""
        return disturbance(self.conditions, self.ranks)

    @property
    def notes(self) -> list[str]:
        """Lines about what is doubtful or missing."""
        name = self.part.replace("_", "-")
        if self.devices:
            name += f" between {self.devices} devices"
        notes = []
        if self.disturbance:
            notes.append(f"Disturbed: {name}: {self.disturbance}")
        if self.problem:
            notes.append(f"Not measured: {name}: {self.problem}")
        return notes


class MachineLimits(BaseModel):
    """The record of one kind of device of one machine."""

    device: Annotated[Literal["cpu", "cuda"], AS_IT_IS]
    seconds: float
    started: Annotated[str, TIME]
    ended: Annotated[str | None, TIME] = None
    host: Host | None = None
    hardware: Hardware | None = None
    versions: Annotated[dict[str, str | None] | None, Keys(), VERSION] = None
    variables: Annotated[dict[str, str] | None, VARIABLE_NAMES, SETTING] = None
    parts: list[Part]

    @property
    def synthetic(self) -> bool:
        """True if its GPUs are emulated, by their names: then no number means anything."""
        return is_synthetic(gpu_names(self.hardware))

    @property
    def notes(self) -> list[str]:
        """Lines about what is doubtful or missing."""
        synthetic = ["Synthetic: on emulated GPUs, no number means anything"] if self.synthetic else []
        return [*synthetic, *(line for part in self.parts for line in part.notes)]


def read_machine(path: Path) -> MachineLimits:
    """Read a record of `multicard doctor --measure`.

    Raises `UserError` if it is not there, or damaged.
    """
    return read_model(path, MachineLimits)


@dataclass(frozen=True)
class Line:
    """A limit in words."""

    what: str
    conditions: str
    rate: str  # mean
    spread: str  # 95% interval; empty if there is none


def lines(limits: MachineLimits) -> list[Line]:
    """Return all limits in words."""
    words = []
    for row in _rows(limits):
        rate = row.rate
        spread = ""
        if rate.low is not None and rate.high is not None:
            spread = f"{with_unit(rate.low, row.units)} to {with_unit(rate.high, row.units)}"
        words.append(Line(NAMES[row.measure], _conditions(row), with_unit(rate.value, row.units), spread))
    return words


def product_rate(limits: MachineLimits, precisions: Sequence[str], threads: int) -> float | None:
    """Return the operations per second of matrix products in the first of the precisions that was measured.

    None if none was with so many threads.
    """
    products = {(row.precision, row.threads): row for row in _rows(limits) if row.measure == "matmul"}
    for precision in precisions:
        if (precision, threads) in products:
            return products[precision, threads].rate.value
    return None


def products_disturbed(limits: MachineLimits) -> bool:
    """True if something disturbed the matrix products, whose rate may then be below the machine's."""
    return any(part.disturbance and any(row.measure == "matmul" for row in part.rows) for part in limits.parts)


def _rows(limits: MachineLimits) -> list[Row]:
    return [row for part in limits.parts for row in part.rows]


def _conditions(row: Row) -> str:
    """Return the conditions of a measurement in words."""
    conditions = []
    if row.precision:
        conditions.append(row.precision)
    if row.threads:
        conditions.append(counted(row.threads, "thread"))
    if row.edge:
        conditions.append(f"{row.edge} × {row.edge}")
    if row.devices:
        conditions.append(f"{row.devices} devices")
    if row.message_bytes:
        conditions.append(f"messages of {with_unit(row.message_bytes, BYTES)}")
    return ", ".join(conditions)
