"""Limits of a machine, recorded by `multicard doctor --measure`: rates with their spread, the fit of all-reduces."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multicard.analysis.evidence import names_synthetic
from multicard.analysis.runs.conditions import disturbance
from multicard.analysis.runs.run_files import read_object
from multicard.analysis.scaling.alpha_beta import AlphaBeta, fit
from multicard.analysis.scenario_tables import MACHINE_TABLE, ScenarioTables
from multicard.analysis.statistics import Interval, product_of
from multicard.core.errors import UserError, first_fault
from multicard.core.text import counted
from multicard.core.units import BYTES, BYTES_PER_S, OPERATIONS_PER_S, SECONDS, Units, number, percent, with_unit
from multicard.experiment.parameters import DEFAULT_WORKLOAD
from multicard.experiment.workload import WORKLOADS

# What a row of each kind of work counts, and the unit of its rate; samples have none.
WORK = {"operations": OPERATIONS_PER_S, "bytes": BYTES_PER_S, "samples": None}
NAMES = {
    "matmul": "matrix multiplication",
    "memory_copy": "memory, copy",
    "memory_triad": "memory, triad",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "all_reduce": "all-reduce, bus bandwidth",
    "loader": "loader alone",
}
SHOWN = ("dataset", "image_size", "batch_size", "precision")  # of a job, also where it is the default


class Row(BaseModel):
    """A measurement: its work per call, one of `WORK`, and seconds per call, one for each block of calls."""

    model_config = ConfigDict(extra="allow")

    measure: Literal[tuple(NAMES)]
    times_s: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    operations: float | None = None
    bytes: float | None = None
    samples: float | None = None
    devices: int | None = None
    message_bytes: int | None = None

    @model_validator(mode="after")
    def _counts_something(self) -> "Row":
        if all(getattr(self, kind) is None for kind in WORK):
            raise ValueError(f"found no work, expected one of {', '.join(WORK)}")
        return self

    @property
    def kind(self) -> str:
        """Which work it counts."""
        return next(kind for kind in WORK if getattr(self, kind) is not None)

    @property
    def time_s(self) -> Interval:
        """Geometric mean over the blocks."""
        return product_of([(1.0, self.times_s)])

    @property
    def rate(self) -> Interval:
        """Work per second: of the mean time, with the ends of its interval."""
        work, time = getattr(self, self.kind), self.time_s
        low, high = (None if end is None else work / end for end in (time.high, time.low))
        return Interval(work / time.value, low, high, time.repeats, time.left_out, time.coverage)


class Part(BaseModel):
    """What was measured in common processes; `problem` where something could not be."""

    model_config = ConfigDict(extra="allow")

    part: str
    rows: list[Row]
    devices: int | None = None
    problem: str | None = None
    conditions: list[dict[str, Any] | None] = []
    ranks: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {}

    @property
    def disturbance(self) -> str | None:
        """In words, what else ran, or throttled the GPU; None where nothing did, or nothing is known."""
        return disturbance({"conditions": self.conditions, "ranks": self.ranks})

    @property
    def notes(self) -> list[str]:
        """Lines about what is doubtful or missing."""
        between = [f"between {self.devices} devices"] if self.devices else []
        what = " ".join([self.part.replace("_", "-"), *between, *_stated(self.parameters)])
        lines = [f"Disturbed: {what}: {self.disturbance}"] if self.disturbance else []
        return lines + ([f"Not measured: {what}: {self.problem}"] if self.problem else [])

    @property
    def all_reduces(self) -> list[Row]:
        """Its rows of all-reduces."""
        return [row for row in self.rows if row.measure == "all_reduce"]


class MachineLimits(BaseModel):
    """The record of one kind of device of one machine."""

    model_config = ConfigDict(extra="allow")

    device: Literal["cpu", "cuda"]
    seconds: float
    started: str
    host: dict[str, Any] | None = None
    hardware: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    variables: dict[str, Any] | None = None
    numa: dict[str, Any] | None = None
    links: dict[str, Any] | None = None
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


class _Machines(BaseModel):
    machines: list[MachineLimits]


def read_machine(path: Path) -> MachineLimits:
    """Read a record of `multicard doctor --measure`.

    Raises
    ------
    UserError
        If it is not there, or damaged.
    """
    return _read(MachineLimits, path)


def machines_of(tables: ScenarioTables) -> list[MachineLimits]:
    """The limits of machines that a scenario was measured with; none where its folder does not say."""
    path = tables.folder / MACHINE_TABLE
    return _read(_Machines, path).machines if path.is_file() else []


def _read(model: type[Any], path: Path) -> Any:
    try:
        return model.model_validate(read_object(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None


def fits(limits: MachineLimits) -> dict[int, AlphaBeta]:
    """α and β of all-reduces by their number of devices."""
    found = {}
    for part in limits.parts:
        rows = part.all_reduces
        fitted = fit([row.bytes for row in rows], [row.time_s.value for row in rows]) if rows else None
        if fitted:
            found[rows[0].devices] = fitted
    return found


def loader_rates(limits: MachineLimits, job: dict[str, Any], undisturbed: bool = False) -> dict[int, Interval]:
    """Samples per second of the loader of a `Workload.loader_job` alone, by its number of workers.

    `undisturbed`: only where nothing else ran then.
    """
    return {
        row.model_extra["num_workers"]: row.rate
        for part in limits.parts
        if part.parameters == job and not (undisturbed and part.disturbance)
        for row in part.rows
        if row.measure == "loader"
    }


def all_reduces(limits: MachineLimits) -> pd.DataFrame:
    """Bus bandwidth of all-reduces, with the ends of its interval, and the time and bus bandwidth of the fit.

    A row for each number of `devices` and `message_bytes`.
    """
    fitted, table, bandwidth = fits(limits), [], "bus_bandwidth_bytes_per_s"
    for row in (row for part in limits.parts for row in part.all_reduces):
        line, rate = fitted.get(row.devices), row.rate
        expected = float(line.time_s([row.bytes])[0]) if line else None
        table.append(
            {"devices": row.devices, "message_bytes": row.message_bytes, "time_s": row.time_s.value}
            | {bandwidth: rate.value, f"{bandwidth}_low": rate.low, f"{bandwidth}_high": rate.high}
            | {"fitted_time_s": expected, f"fitted_{bandwidth}": row.bytes / expected if expected else None}
        )
    return pd.DataFrame(table)


@dataclass(frozen=True)
class Line:
    """A limit in words: what, under which conditions, the mean rate, and its 95% interval."""

    what: str
    of: str
    rate: str
    spread: str

    @classmethod
    def of_interval(cls, what: str, of: Sequence[str], interval: Interval, units: Units | None) -> "Line":
        """With the ends of the interval as its spread; without units these are samples per second."""
        ends = () if interval.low is None else (interval.low, interval.high)
        value, *spread = (with_unit(each, units) if units else number(each) for each in (interval.value, *ends))
        return cls(what, ", ".join(of), value if units else f"{value} samples/s", " to ".join(spread))


def lines(limits: MachineLimits) -> list[Line]:
    """All limits in words; of all-reduces the fastest size of each number of devices, and the fit."""
    found, fitted = [], fits(limits)
    for part in limits.parts:
        rows = part.all_reduces
        for row in [max(rows, key=lambda row: row.rate.value)] if rows else part.rows:
            found.append(Line.of_interval(NAMES[row.measure], _of(row, part), row.rate, WORK[row.kind]))
        if rows and (line := fitted.get(rows[0].devices)):
            of, deviation = f"{rows[0].devices} devices", f"times deviate by {percent(line.residual)}"
            found += [
                Line.of_interval("all-reduce, latency α", [of], line.alpha_s, SECONDS),
                Line.of_interval("all-reduce, bandwidth β", [of, deviation], line.beta_bytes_per_s, BYTES_PER_S),
            ]
    return found


def product_rate(limits: MachineLimits, precisions: Sequence[str], threads: int) -> float | None:
    """Operations per second of matrix products in the first of the precisions that was measured; None if none was."""
    products = {
        (row.model_extra.get("precision"), row.model_extra.get("threads")): row.rate.value
        for part in limits.parts
        for row in part.rows
        if row.measure == "matmul"
    }
    return next((products[each, threads] for each in precisions if (each, threads) in products), None)


def products_disturbed(limits: MachineLimits) -> bool:
    """Whether something disturbed the matrix products, whose rate may then be below the machine's."""
    return any(part.disturbance and any(row.measure == "matmul" for row in part.rows) for part in limits.parts)


def _of(row: Row, part: Part) -> list[str]:
    """Conditions of a row."""
    extra = row.model_extra
    threads = extra.get("threads")
    found = [str(extra[name]) for name in ("precision", "host_memory") if extra.get(name)]
    found += [counted(threads, "thread")] if threads else []
    found += [f"{extra['edge']} × {extra['edge']}"] if extra.get("edge") else []
    found += [f"arrays of {with_unit(extra['array_bytes'], BYTES)}"] if extra.get("array_bytes") else []
    found += [f"{row.devices} devices"] if row.devices else []
    found += [f"messages of {with_unit(row.message_bytes, BYTES)}"] if row.message_bytes else []
    found += [f"num_workers {extra['num_workers']}"] if "num_workers" in extra else []
    return [*found, *_stated(part.parameters)]


def _stated(parameters: dict[str, Any]) -> list[str]:
    """Parameters of a job that are not the defaults, and those that say what it is about."""
    model = WORKLOADS[parameters.get("workload", DEFAULT_WORKLOAD)].parameters.model_fields
    return [
        f"{name} {value}"
        for name, value in parameters.items()
        if name in SHOWN or (name in model and name != "device" and value != model[name].default)
    ]
