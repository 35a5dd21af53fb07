"""Synthetic measures and tables that the figures draw."""

import re
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from multicard.answers.scaling.speedup_tables import add_scaling
from multicard.figures.caption import caption
from multicard.figures.draw import draw
from multicard.programs import PROGRAMS
from multicard.results.gathering import store
from multicard.results.measure import MEASURES_OF
from multicard.results.results import Results
from multicard.results.tables import MEASURES, SCHEMAS, with_run
from multicard.runs.parameters import as_columns


def measured(workload: str, *rows: dict[str, Any]) -> pd.DataFrame:
    """Measures of runs: parameters, `outcome` and measures given, the rest defaults or empty."""
    model, measures = PROGRAMS[workload].parameters, MEASURES_OF[workload]
    filled = []
    for number, row in enumerate(rows):
        given = {name: value for name, value in row.items() if name in model.model_fields}
        known = {name: value for name, value in row.items() if name in (*measures, "disturbance")}
        parameters = model.model_validate({"device": "cpu", **given}).model_dump()
        head = {"run": f"run{number}", "outcome": row.get("outcome", "completed"), "reason": None}
        filled.append(head | as_columns(parameters) | dict.fromkeys(measures) | known)
    return add_scaling(pd.DataFrame(filled))


def gathered(folder: Path, measures: pd.DataFrame, **tables: Iterable[dict[str, Any]]) -> Results:
    """Store measures, and rows of gathered tables with the columns that matter, as a scenario's folder has them.

    A table without rows is left out: in a folder without an index it is read as empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stated = {name: list(rows) for name, rows in tables.items()}
    schemas = {name: with_run(SCHEMAS[name]) for name in stated}
    store({name: pa.Table.from_pylist(rows, schemas[name]) for name, rows in stated.items() if rows}, folder)
    measures.to_csv(folder / MEASURES, index=False)
    return Results.read_scenario(folder)


def drawn(name: str, measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw a figure that needs the measures alone; pyplot has forgotten it."""
    figure, data = draw(name, Results(measures))
    return closed(figure), data


def two_repeats(**row: Any) -> list[dict[str, Any]]:
    """Two repeats of a configuration, the second with times that are a tenth longer."""
    slower = {name: value * 1.1 for name, value in row.items() if name.endswith("_s") and "per_s" not in name}
    return [row | {"repeat": 1}, row | slower | {"repeat": 2}]


def made_once(make: Callable[[], pd.DataFrame]) -> Callable[[], pd.DataFrame]:
    """Give copies of a table that is made once."""
    made = cache(make)
    return wraps(make)(lambda: made().copy())


@made_once
def pictures() -> pd.DataFrame:
    """Two strategies on one and two devices, two repeats; two precisions: five configurations."""
    rows = []
    for strategy, devices, precision, seconds in (
        ("ddp", 1, "fp32", 0.10), ("ddp", 2, "fp32", 0.20), ("ddp-ds", 1, "fp32", 0.12), ("ddp-ds", 2, "fp32", 0.14),
        ("ddp-ds", 2, "fp64", 0.30),
    ):  # fmt: skip
        rows += two_repeats(
            strategy=strategy, devices=devices, precision=precision, iteration_time_s=seconds,
            throughput_samples_per_s=64 * (devices if strategy == "ddp-ds" else 1) / seconds,
            forward_s=seconds / 3, backward_s=seconds / 2, other_s=seconds / 6, test_accuracy=0.9,
            profiler_overhead=0.05, estimated_epoch_time_s=60 * seconds / devices,
        )  # fmt: skip
    return measured("vision", *rows)


@made_once
def texts() -> pd.DataFrame:
    """Two techniques on one and two devices, two repeats; two data sets: five configurations."""
    rows = []
    for technique, dataset, devices, seconds, tokens in (
        ("lora", "preferences", 1, 0.10, 100), ("lora", "preferences", 2, 0.16, 200),
        ("dpo", "preferences", 1, 0.20, 220), ("dpo", "preferences", 2, 0.30, 440),
        ("lora", "articles", 1, 0.50, 800),
    ):  # fmt: skip
        rows += two_repeats(
            technique=technique, dataset=dataset, devices=devices, iteration_time_s=seconds,
            tokens_per_s=tokens / seconds, tokens_per_step=tokens, tokens_per_sample=tokens / devices / 4,
            padding_share=0.1, forward_s=seconds / 3, backward_s=seconds / 2, other_s=seconds / 6,
            peak_memory_bytes=900_000_000, weights_bytes=20_000_000, adapters_bytes=1_000_000,
            gradients_bytes=1_000_000, optimizer_bytes=2_000_000,
        )  # fmt: skip
    return measured("llm", *rows)


def scaled(workload: str, phases: tuple[str, ...], **more: Any) -> pd.DataFrame:
    """Steps in equal phases on one to four devices, two repeats; two batch sizes: five configurations."""
    rows = []
    for size, devices, seconds in ((32, 1, 0.10), (32, 2, 0.12), (64, 1, 0.20), (64, 2, 0.22), (64, 4, 0.24)):
        rows += two_repeats(
            args={"batch_size": size}, devices=devices, iteration_time_s=seconds, steps_per_s=1 / seconds,
            throughput_samples_per_s=size * devices / seconds,
            **{phase: seconds / len(phases) for phase in phases}, **more,
        )  # fmt: skip
    return measured(workload, *rows)


@made_once
def scripts() -> pd.DataFrame:
    command = ["train.py", "{batch_size}"]
    return scaled("script", ("backward_s", "other_s"), command=command, profiler_overhead=0.05)


@made_once
def adopted() -> pd.DataFrame:
    """Traces of two batch sizes, whose steps have no phases."""
    rows = scaled("script", ("other_s",), command=["theirs"], launcher="traces", steps_from="ranges")
    return rows.assign(traced_devices=rows["devices"])


def legend(figure: Figure) -> list[list[str]]:
    """Entries of each legend of a figure."""
    return [[text.get_text() for text in each.get_texts()] for each in figure.legends]


def lengths(axes: Axes) -> dict[str, list[float]]:
    """Lengths of the lying bars of each series, not a number where there is none."""
    drawn = [each for each in axes.containers if len(each) and hasattr(each[0], "get_width")]
    return {each.get_label(): [bar.get_width() for bar in each] for each in drawn}


def lines(axes: Axes) -> dict[str, list[list[float]]]:
    """Points of each line with a label, or with whiskers."""
    plain = [line for line in axes.get_lines() if not line.get_label().startswith("_") and len(line.get_xdata())]
    found = {line.get_label(): line for line in plain}
    found |= {each.get_label(): each.lines[0] for each in axes.containers if hasattr(each, "lines")}
    return {name: [list(map(float, values)) for values in line.get_data()] for name, line in found.items()}


def words(axes: Axes) -> list[str]:
    """What is written inside a panel besides the numbers of bars."""
    return [text.get_text() for text in axes.texts if re.search("[a-z]", text.get_text())]


def group_names(axes: Axes) -> list[str]:
    """Names of the rows of a panel, each on one line."""
    return [" ".join(text.get_text().split()) for text in axes.get_yticklabels()]


def heading(axes: Axes) -> str:
    """Title of a panel, wherever its style puts it."""
    return axes.get_title() + axes.get_title(loc="left")


def said(name: str, results: Results) -> str:
    """All words in a figure, on one line."""
    figure, _ = draw(name, results)
    return " ".join(word for text in closed(figure).findobj(Text) for word in text.get_text().split())


def explained(name: str, results: Results) -> str:
    """The caption of a figure."""
    figure, data = draw(name, results)
    closed(figure)
    return caption(name, results, data)


def closed(figure: Figure) -> Figure:
    """Let pyplot forget a figure."""
    plt.close(figure)
    return figure
