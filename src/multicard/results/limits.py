"""Limits of a machine, recorded by `multicard doctor --measure`: rates with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from multicard.core.sharing import AS_IT_IS, SETTING, TIME, VARIABLE_NAMES, VERSION, ErrorText, Keys, Words
from multicard.core.text import counted
from multicard.core.units import BYTES, BYTES_PER_S, OPERATIONS_PER_S, Units, with_unit
from multicard.results.conditions import disturbance
from multicard.runs.environment import gpu_names, is_synthetic
from multicard.runs.reading import read_model
from multicard.runs.record import Hardware, Host, NodeConditions, RankRecord
from multicard.stats.interval import Interval
from multicard.stats.pool import geometric_mean_interval

# The words for each measurement, by its name in a record.
NAMES = {
    "matmul": "matrix multiplication",
    "all_reduce": "all-reduce, bus bandwidth",
}


class Row(BaseModel):
    """A measurement: its work per call, in `operations` or `bytes`, and its seconds per call.

    Matrix products also have `precision`, `edge` (rows of their square matrices) and `threads`. All-reduces also have
    `devices` and `message_bytes`.
    """

    measure: Annotated[Literal["matmul", "all_reduce"], AS_IT_IS]
    # Seconds per call, one value for each block of calls.
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
        """Units of `rate`: operations per second if `operations` is stated, else bytes per second."""
        return BYTES_PER_S if self.operations is None else OPERATIONS_PER_S

    @property
    def rate(self) -> Interval:
        """Work divided by the geometric mean of `times_s`, with its interval."""
        work = self.operations if self.operations is not None else self.bytes
        # `_counts_something` refuses a measurement that has neither operations nor bytes.
        assert work is not None
        return geometric_mean_interval(self.times_s).map(lambda seconds: work / seconds)


class MeasuredPart(BaseModel):
    """Measurements that were made in the same processes."""

    part: Annotated[str, Words("device", "all_reduce")]
    rows: list[Row]
    devices: int | None = None
    # Why some or all of the measurements could not be made; None if there was no problem.
    problem: Annotated[str | None, ErrorText()] = None
    # CPU use of other processes and states of the GPUs while the part was measured, as in the records of runs.
    conditions: tuple[NodeConditions | None, ...] = ()
    ranks: tuple[RankRecord, ...] = ()

    @property
    def disturbance(self) -> str | None:
        """The cause that disturbed the measurements or throttled the GPU, in words; None if none is known."""
        return disturbance(self.conditions, self.ranks)

    @property
    def notes(self) -> list[str]:
        """Lines about measurements that are doubtful or missing."""
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
    """The record of the limits of one machine, for either its CPUs or its GPUs."""

    device: Annotated[Literal["cpu", "cuda"], AS_IT_IS]
    seconds: float
    started: Annotated[str, TIME]
    ended: Annotated[str | None, TIME] = None
    host: Host | None = None
    hardware: Hardware | None = None
    versions: Annotated[dict[str, str | None] | None, Keys(), VERSION] = None
    variables: Annotated[dict[str, str] | None, VARIABLE_NAMES, SETTING] = None
    parts: list[MeasuredPart]

    @property
    def synthetic(self) -> bool:
        """True if the GPUs are emulated, as their names show; the numbers then mean nothing."""
        return is_synthetic(gpu_names(self.hardware))

    @property
    def notes(self) -> list[str]:
        """Lines about measurements that are doubtful or missing."""
        synthetic = ["Synthetic: on emulated GPUs, no number means anything"] if self.synthetic else []
        return [*synthetic, *(line for part in self.parts for line in part.notes)]


def read_machine(path: Path) -> MachineLimits:
    """Read a record of `multicard doctor --measure`.

    Raises `UserError` if the file is missing or damaged.
    """
    return read_model(path, MachineLimits)


@dataclass(frozen=True)
class Line:
    """A limit in words."""

    what: str
    conditions: str
    rate: str  # the mean rate with its unit
    spread: str  # the 95% interval of the mean; empty if there is none


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
    """Return the operations per second of matrix products in the first of `precisions` that was measured.

    Only measurements with `threads` threads count. None if there are none in these precisions.
    """
    products = {(row.precision, row.threads): row for row in _rows(limits) if row.measure == "matmul"}
    for precision in precisions:
        if (precision, threads) in products:
            return products[precision, threads].rate.value
    return None


def peak_bus_bandwidth(limits: MachineLimits, devices: int) -> float | None:
    """Return the highest bus bandwidth of all-reduces between so many devices, over all sizes of their messages.

    In bytes per second. None if it was not measured between as many devices.
    """
    all_reduces = [row for row in _rows(limits) if row.measure == "all_reduce" and row.devices == devices]
    return max((row.rate.value for row in all_reduces), default=None)


def products_disturbed(limits: MachineLimits) -> bool:
    """Return True if the measurement of matrix products was disturbed. Its rate may then be too low."""
    return any(part.disturbance and any(row.measure == "matmul" for row in part.rows) for part in limits.parts)


def _rows(limits: MachineLimits) -> list[Row]:
    return [row for part in limits.parts for row in part.rows]


def _conditions(row: Row) -> str:
    """Return the conditions of a measurement in words, such as "bf16, 1 thread, 8192 × 8192"."""
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
