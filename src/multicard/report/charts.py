"""Interactive charts: the numbers of a figure's CSV, as the page's script hands them to plotly.js."""

from typing import Any

import pandas as pd

from multicard.core.text import counted, for_html
from multicard.core.units import BYTES, confidence, number, unit_for
from multicard.experiment.figures import FIGURES
from multicard.figures.bars import missing, places
from multicard.figures.llm import COLUMNS, STATE
from multicard.figures.series import unit
from multicard.figures.style import colours
from multicard.report.wording import DIGITS, Measure, in_words, is_number, measure

# Quantiles of the boxes, as plotly.js names them.
BOXES = {"lowerfence": "p1_s", "q1": "p25_s", "median": "median_s", "q3": "p75_s", "upperfence": "p99_s"}

# Panels of bars, of those that the CSV has; the model state is a panel of its own.
PANELS = ("iteration_time_s", "tokens_per_s", "peak_memory_bytes")


def chart(name: str, data: pd.DataFrame) -> dict[str, Any] | None:
    """Give what the page needs to chart the numbers of a figure; None for figures without a chart.

    The chart has panels, one per measure. Each has a point per row of `data` that has a value, with its hover text;
    bars also have a word in the place of each that is missing. Names come from files, and plotly.js reads a few HTML
    tags in text: they are escaped.
    """
    kind = FIGURES[name].chart
    if kind is None or "nothing_to_show" in data:
        return None
    if kind == "boxes":
        return _boxes(data) if {"configuration", "steps", *BOXES.values()} <= set(data) else None
    by = "devices" if kind == "lines" else FIGURES[name].axis
    values = [column for column in data if f"{column}_low" in data and f"{column}_high" in data]
    if kind == "bars":
        values = [column for column in PANELS if column in values]
    if "series" not in data or by not in data or not data[values].notna().any(axis=None):
        return None
    data = data.assign(series=data["series"].astype(str))
    names, groups = (list(dict.fromkeys(data[column])) for column in ("series", by))
    if kind == "lines":
        data, ticks, width = data.assign(x=data[by].astype(float)), [(float(n), n) for n in sorted(groups)], None
    else:  # groups are at 0, 1, 2 …, as in the printed figure
        at, width = places(groups, names)
        data = data.assign(x=[at[key] for key in zip(data[by], data["series"], strict=True)])
        ticks = list(enumerate(groups))
    panels = [_panel(data, column, by, names) for column in values]
    if kind == "bars" and set(COLUMNS.values()) <= set(data):
        panels.append(_state(data, by, names))
    return {
        "kind": kind,
        "x": for_html(_axis(by, data)),
        "ticks": [{"at": at, "text": for_html(_named(by, group))} for at, group in ticks],
        "width": width,
        "series": [
            {"name": for_html(each), "colour": colour}
            for each, colour in zip(names, _hexadecimal(len(names)), strict=True)
        ],
        "panels": panels,
    }


def _boxes(data: pd.DataFrame) -> dict[str, Any]:
    """One box per configuration, lying, the first on top."""
    how = measure("step_time_s", data["p99_s"])
    names = [for_html(str(name)) for name in data["configuration"]]
    said = [
        f"{row['configuration']}: median {how.shown(row['median_s'])} {how.unit}, half of "
        f"{counted(row['steps'], 'step')} within [{how.shown(row['p25_s'])}, {how.shown(row['p75_s'])}], 98% within "
        f"[{how.shown(row['p1_s'])}, {how.shown(row['p99_s'])}]"
        for _, row in data.iterrows()
    ]
    return {
        "kind": "boxes",
        "x": for_html(how.heading),
        "ticks": [{"at": name, "text": name} for name in names],
        "series": [],
        "panels": [
            {
                "title": for_html(how.heading),
                "names": names,
                "texts": [for_html(text) for text in said],
                **{name: (data[column] * how.factor).tolist() for name, column in BOXES.items()},
            }
        ],
    }


def _panel(data: pd.DataFrame, column: str, by: str, names: list[str]) -> dict[str, Any]:
    how = measure(column, data[[column, f"{column}_high"]].max(axis=1))
    known = data[column].notna()
    points = []
    for each in names:
        rows = data[(data["series"] == each) & known].sort_values("x")
        points.append([_point(row, column, by, how) for _, row in rows.iterrows()])
    ideal = {"speedup": "equal", "efficiency": "one"}.get(column) if by == "devices" else None
    return {
        "title": for_html(how.heading),
        "points": points,
        "missing": _missing(data[~known], names) if by != "devices" else [],
        "ideal": ideal,
        "factor": how.factor,
    }


def _state(data: pd.DataFrame, by: str, names: list[str]) -> dict[str, Any]:
    """The model state of a rank, its parts stacked, as in the printed figure."""
    sizes = data[list(COLUMNS.values())].astype(float)
    total = sizes.sum(axis=1)
    factor, size = unit_for(total, BYTES)
    parts = []
    for part, column in COLUMNS.items():
        bars = [
            {
                "series": names.index(row["series"]),
                "x": row["x"],
                "y": float(row[column]) * factor,
                "text": for_html(
                    f"{row['series']}, {_named(by, row[by])}: {part} {number(row[column] * factor, DIGITS)} of "
                    f"{number(total[index] * factor, DIGITS)} {size}"
                ),
            }
            for index, row in data[sizes[column].notna()].iterrows()
        ]
        colour, hatch = STATE[part]
        parts.append({"name": in_words(part), "colour": colour, "hatch": hatch[:1], "bars": bars})
    empty = sizes.isna().all(axis=1)
    title = f"Model-state memory ({size})"
    return {"title": title, "parts": parts, "missing": _missing(data[empty], names)}


def _missing(rows: pd.DataFrame, names: list[str]) -> list[dict[str, Any]]:
    """Places of missing bars, with the outcome of their configurations."""
    outcomes = rows["outcome"] if "outcome" in rows else ["completed"] * len(rows)
    return [
        {"series": names.index(series), "x": x, "text": for_html(missing(str(outcome)))}
        for series, x, outcome in zip(rows["series"], rows["x"], outcomes, strict=True)
    ]


def _point(row: pd.Series, column: str, by: str, how: Measure) -> dict[str, Any]:
    value, low, high = (row[name] for name in (column, f"{column}_low", f"{column}_high"))
    several = is_number(low) and is_number(high) and row.get("repeats", 0) > 1
    said = f"{how.shown(value)} {how.unit}".strip()
    if is_number(repeats := row.get("repeats")):
        ends = (how.shown(low), how.shown(high)) if several and low != high else (None, None)
        said += f" {confidence(*ends, round(repeats))}"
    return {
        "x": row["x"],
        "y": float(value) * how.factor,
        "down": max(0.0, float(value - low) * how.factor) if several else 0.0,
        "up": max(0.0, float(high - value) * how.factor) if several else 0.0,
        "text": for_html(f"{row['series']}, {_named(by, row[by])}: {said}"),
    }


def _axis(by: str, data: pd.DataFrame) -> str:
    if by != "devices":
        return ""
    kinds = set(data["device"]) if "device" in data else set()
    return {"cuda": "GPUs", "cpu": "CPU processes"}.get(kinds.pop() if len(kinds) == 1 else "", "Devices")


def _named(by: str, group: Any) -> str:
    return f"{group:g}" if by == "devices" else unit(by, group)


def _hexadecimal(count: int) -> list[str]:
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours(count)]
