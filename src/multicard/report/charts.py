"""Interactive charts: what a figure's CSV holds, as the page's script hands it to plotly.js."""

import html
from typing import Any

import pandas as pd

from multicard.figures.series import unit
from multicard.figures.style import colours
from multicard.report.wording import Measure, is_number, measure

# Figures that are drawn against the number of devices; and in groups of bars, with the column of the groups.
LINES = ("iteration_time", "speedup")
BARS = {"techniques": "technique"}

# Quantiles of the boxes, as plotly.js names them.
BOXES = {"lowerfence": "p1_s", "q1": "p25_s", "median": "median_s", "q3": "p75_s", "upperfence": "p99_s"}

# Of the bars, panels that a figure's CSV need not have all.
PANELS = ("iteration_time_s", "tokens_per_s", "peak_memory_bytes", "weights_bytes")


def chart(name: str, data: pd.DataFrame) -> dict[str, Any] | None:
    """Give what the page needs to draw a figure's numbers anew; None for figures that it does not draw.

    The chart has panels, one per measure. Each has a point per row of `data` that has a value, with what it says
    when pointed at. Names come from files, and plotly.js reads a few HTML tags in text: they are escaped.
    """
    if name == "step_times" and {"configuration", "steps", *BOXES.values()} <= set(data):
        return _boxes(data)
    if name in LINES:
        kind, by = "lines", "devices"
    elif name in BARS:
        kind, by = "bars", BARS[name]
    else:
        return None
    values = [column for column in data if f"{column}_low" in data and f"{column}_high" in data]
    if kind == "bars":
        values = [column for column in PANELS if column in values]
    values = [column for column in values if data[column].notna().any()]
    if not values or "series" not in data or by not in data:
        return None
    names = list(dict.fromkeys(data["series"].astype(str)))
    groups = list(dict.fromkeys(data[by]))
    shown = sorted(groups) if kind == "lines" else groups
    return {
        "kind": kind,
        "x": _escaped(_axis(by, data)),
        "ticks": [{"at": _place(by, group), "text": _escaped(_named(by, group))} for group in shown],
        "series": [
            {"name": _escaped(each), "colour": colour}
            for each, colour in zip(names, _hexadecimal(len(names)), strict=True)
        ],
        "panels": [_panel(data, column, by, names, name) for column in values],
    }


def _boxes(data: pd.DataFrame) -> dict[str, Any]:
    """One box per configuration, lying, the first on top."""
    how = measure("step_time_s", data["p99_s"])
    names = [_escaped(str(name)) for name in data["configuration"]]
    said = [
        f"{row['configuration']}: median {how.shown(row['median_s'])} {how.unit}, half of {row['steps']} steps within "
        f"[{how.shown(row['p25_s'])}, {how.shown(row['p75_s'])}], 98 % within "
        f"[{how.shown(row['p1_s'])}, {how.shown(row['p99_s'])}]"
        for _, row in data.iterrows()
    ]
    return {
        "kind": "boxes",
        "x": _escaped(how.heading),
        "ticks": [{"at": name, "text": name} for name in names],
        "series": [],
        "panels": [
            {
                "title": _escaped(how.heading),
                "names": names,
                "texts": [_escaped(text) for text in said],
                **{name: (data[column] * how.factor).tolist() for name, column in BOXES.items()},
            }
        ],
    }


def _panel(data: pd.DataFrame, column: str, by: str, names: list[str], figure: str) -> dict[str, Any]:
    how = measure(column, data[[column, f"{column}_high"]].max(axis=1))
    points = []
    for each in names:
        rows = data[(data["series"].astype(str) == each) & data[column].notna()]
        if by == "devices":
            rows = rows.sort_values("devices")
        points.append([_point(row, column, by, how) for _, row in rows.iterrows()])
    ideal = {"speedup": "equal", "efficiency": "one"}.get(column) if figure == "speedup" else None
    return {"title": _escaped(how.heading), "points": points, "ideal": ideal, "factor": how.factor}


def _point(row: pd.Series, column: str, by: str, how: Measure) -> dict[str, Any]:
    value, low, high = (row[name] for name in (column, f"{column}_low", f"{column}_high"))
    several = is_number(low) and is_number(high) and row.get("repeats", 0) > 1
    said = f"{how.shown(value)} {how.unit}".strip()
    if several and low != high:
        said += f" [{how.shown(low)}, {how.shown(high)}]"
    repeats = row.get("repeats")
    counted = f", {repeats:g} repeat{'s' if repeats != 1 else ''}" if is_number(repeats) else ""
    return {
        "x": _place(by, row[by]),
        "y": float(value) * how.factor,
        "down": max(0.0, float(value - low) * how.factor) if several else 0.0,
        "up": max(0.0, float(high - value) * how.factor) if several else 0.0,
        "text": _escaped(f"{row['series']}, {_named(by, row[by])}: {said}{counted}"),
    }


def _axis(by: str, data: pd.DataFrame) -> str:
    if by != "devices":
        return ""
    kinds = set(data["device"]) if "device" in data else set()
    return {"cuda": "GPUs", "cpu": "CPU processes"}.get(kinds.pop() if len(kinds) == 1 else "", "Devices")


def _named(by: str, group: Any) -> str:
    return f"{group:g}" if by == "devices" else unit(by, group)


def _place(by: str, group: Any) -> Any:
    return float(group) if by == "devices" else _escaped(unit(by, group))


def _hexadecimal(count: int) -> list[str]:
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours(count)]


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
