"""Figures of costs: tuning techniques in time and memory, energy, memory."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.comparison.comparisons import varied
from multicard.answers.scaling.speedup_tables import over_repeats
from multicard.core.units import BYTES, JOULES, SECONDS, unit_for
from multicard.figures.bars import draw_grouped_bars, rows_height_in
from multicard.figures.catalog import BARS, POINTS, figure
from multicard.figures.points import Quantity, draw_series, series_of
from multicard.figures.series import (
    completed_of,
    configuration_names,
    labels,
    named_runs,
)
from multicard.figures.style import (
    NothingToShow,
    legend_below,
    one_panel,
    side_by_side,
)
from multicard.programs import program_of
from multicard.results.results import Results

# Measures of a GPU's memory, and their names in the legend.
MEMORY_KINDS = {
    "peak_memory_bytes": "allocated (PyTorch)",
    "peak_reserved_bytes": "reserved (PyTorch)",
    "device_memory_used_bytes": "used by everything (NVML)",
}
# Name of `peak_memory_bytes` for CPU processes, which have no other measure of memory.
RESIDENT = "resident (CPU process)"


@figure(
    "What does each fine-tuning technique cost in time and memory?",
    "Iteration time: elapsed time per optimizer step. Peak memory: the highest of any rank; on a GPU what PyTorch "
    "allocated, on a CPU the resident memory of the process, most of which is libraries. DPO processes both answers of "
    f"a sample. {BARS} A configuration without a completed run has its outcome in place of a bar.",
    brief="Time per optimizer step, and the highest memory of any rank (on a CPU mostly libraries). DPO processes "
    "both answers of a sample.",
)
def techniques(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw iteration time (left) and peak memory (right): a group of bars per technique, a bar per number of devices.

    The table has a row per configuration: `series`, its parameters, `repeats`, `iteration_time_s` in seconds and
    `peak_memory_bytes`, both with the bounds of their intervals (`…_low`, `…_high`), and the `outcome`.
    """
    measures = results.frame()
    varying = varied(measures, besides=("technique", "devices", "repeat"))
    technique_parameters: set[str] = set()
    for own_parameters in program_of(measures).own_parameters.values():
        technique_parameters.update(own_parameters)
    # Parameters that belong to one technique are part of the names of groups, all others of the names of series.
    group_parameters = ["technique", *(name for name in varying if name in technique_parameters)]

    def named(rows: pd.DataFrame) -> pd.DataFrame:
        series = configuration_names(measures, rows, besides=tuple(group_parameters))
        groups = [label[:1].upper() + label[1:] for label in labels(rows, group_parameters)]
        return rows.assign(series=series, group=groups)

    data = named(over_repeats(results, ["iteration_time_s", "peak_memory_bytes"], include_lost=True))
    runs = named(completed_of(measures))
    group_height_in = _group_height_in(data)
    height_in = 1.1 + rows_height_in(data["group"].unique(), group_height_in)
    figure, (time_axes, memory_axes) = side_by_side(height_in, share_rows=True)
    time_scale, time_unit = unit_for(data["iteration_time_s"], SECONDS)
    draw_grouped_bars(time_axes, data, runs, "group", "iteration_time_s", time_scale)
    time_axes.set(title="Iteration time", xlabel=f"Time per step ({time_unit})")
    memory_scale, memory_unit = unit_for(data["peak_memory_bytes"], BYTES)
    draw_grouped_bars(memory_axes, data, runs, "group", "peak_memory_bytes", memory_scale)
    memory_axes.set(title="Peak memory per rank", xlabel=f"Peak memory ({memory_unit})")
    legend_below(figure, time_axes)
    other_columns = data.columns.drop(["series", "group"])
    return figure, data[["series", *other_columns]]


def _group_height_in(bars: pd.DataFrame) -> float:
    """Return the height of a group of bars in inches: the more series, the more bars it has."""
    return max(0.34, 0.14 * bars["series"].nunique())


@figure(
    "How much energy does an image, or a token, cost?",
    "Energy of all GPUs in the measured steps, from NVML's counter: for vision runs per processed image, for LLM runs "
    f"per token without padding. {POINTS} CPUs, memory, fans and idle GPUs are not metered.",
    brief="All GPUs in the measured steps, by NVML's counter. CPUs, fans and idle GPUs are not metered.",
)
def energy(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the energy of the GPUs per sample, or per token for LLM runs, over the number of devices.

    The table has a row per configuration: `series`, its parameters, `repeats`, and `energy_per_sample_j` or
    `energy_per_token_j` in joules with the bounds of its interval (`…_low`, `…_high`).
    """
    measures = results.frame()
    work = program_of(measures).unit
    if measures[work.energy].isna().all():
        is_on_cpus = set(measures["device"]) == {"cpu"}
        reason = " (a CPU has no meter)" if is_on_cpus else ": the GPUs were not metered"
        raise NothingToShow(f"no energy was recorded{reason}")
    series = series_of(results, [work.energy])
    figure, axes = one_panel(series.height_in)
    scale, unit = unit_for(series.means[work.energy], JOULES)
    title = f"Energy per {work.name}, all GPUs"
    label = f"Energy per {work.name} ({unit})"
    draw_series(axes, series, Quantity(work.energy, title, label, scale))
    legend_below(figure, axes)
    return figure, series.means


@figure(
    "How much memory does training need?",
    "Highest peak of any GPU in the measured steps: allocated (by PyTorch, for tensors), reserved (by PyTorch's "
    "allocator, which keeps what tensors release), and used by everything on the GPU (by NVML, before any test, with "
    "CUDA's context and NCCL's buffers); on CPUs the resident memory of any process, most of it libraries. "
    f"{BARS} A configuration without a completed run has its outcome in place of a bar.",
    brief="Highest peak of any device in the measured steps: of tensors, of PyTorch's allocator, and of all on the "
    "GPU; on CPUs of the process, mostly libraries.",
)
def memory(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the peak memory of the fullest device: a group of bars per configuration, a bar per kind of memory.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, those measures of
    `MEMORY_KINDS` in bytes that any run has, with the bounds of their intervals (`…_low`, `…_high`), and the `outcome`.
    """
    measures = results.frame()
    recorded = [column for column in MEMORY_KINDS if measures[column].notna().any()]
    if not recorded:
        raise NothingToShow("no memory was recorded")
    data = over_repeats(results, recorded, include_lost=True)
    data.insert(0, "configuration", configuration_names(measures, data))
    bars = _by_kind(data, recorded)
    runs = _by_kind(named_runs(measures), recorded)
    figure, axes = one_panel(1.1 + rows_height_in(data["configuration"], _group_height_in(bars)))
    scale, unit = unit_for(bars["memory_bytes"], BYTES)
    draw_grouped_bars(axes, bars, runs, "configuration", "memory_bytes", scale)
    axes.set(title="Peak memory of the fullest device", xlabel=f"Peak memory ({unit})")
    legend_below(figure, axes)
    return figure, data


def _by_kind(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return a table of bars: the rows once for each kind of memory, its name as `series`, its size as `memory_bytes`.

    Rows on CPUs, and rows without a value, are kept for the first of `columns` only.
    """
    parts = []
    for column in columns:
        new_names = {f"{column}{bound}": f"memory_bytes{bound}" for bound in ("", "_low", "_high")}
        part = rows.rename(columns=new_names)
        if column != columns[0]:
            # A run that did not complete has one place for its outcome. A run on CPUs has one kind of memory.
            has_value = part["memory_bytes"].notna()
            is_on_gpu = part["device"] != "cpu"
            part = part[has_value & is_on_gpu]
        is_on_cpu = part["device"] == "cpu"
        series = np.where(is_on_cpu, RESIDENT, MEMORY_KINDS[column])
        parts.append(part.assign(series=series))
    shown = ["configuration", "series", "repeats", "outcome", *(f"memory_bytes{end}" for end in ("", "_low", "_high"))]
    return pd.concat(parts, ignore_index=True).filter(shown)
