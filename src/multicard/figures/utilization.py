"""How much of what a device can compute a run reaches, and where the rest of its steps goes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import configurations, means
from multicard.analysis.runs.breakdown import COLUMNS
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import OPERATIONS_PER_S, unit_for
from multicard.figures.bars import absent, group_axis, height_of, row_repeats, stacked_rows
from multicard.figures.series import configuration_names, named_runs
from multicard.figures.style import HATCHES, PHASE_COLOURS, WIDTH_IN, NothingToShow, filled, legend_below, say
from multicard.figures.timeline import LOOKS

LOOK = {
    "compute": LOOKS["compute"],
    "compute or communication": (LOOKS["compute"][0], HATCHES[2]),
    "exposed communication": LOOKS["exposed communication"],
    "waiting for other ranks": LOOKS["idle (before a collective)"],
    "memory operations": LOOKS["exposed memory operations"],
    "launch overhead": LOOKS["idle (host-bound)"],
    "host busy elsewhere": ("#A6761D", HATCHES[1]),
    "data loading": (PHASE_COLOURS["data"], HATCHES[1]),
    "evaluation": (PHASE_COLOURS["evaluation"], HATCHES[2]),
    "stalls": ("#E31A1C", HATCHES[3]),
    "other": LOOKS["idle (other)"],
}
MEASURES = ("mfu", "hfu", "achieved_flop_per_s")
LEAST = 1e-3  # share of a step from which on a part is drawn
HOW = "for the peak: multicard doctor --measure"
NAME_WIDTH, NAME_LINES = 34, 2  # characters of a line of a configuration's name, and its lines
LABEL_WIDTH = 24  # characters of a line under the narrow panel
COLOUR = PHASE_COLOURS["optimizer"]


def utilization(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """MFU of each configuration, where operations were counted, and the parts of its step."""
    # Tables of earlier versions have none of these.
    needed = (*tables.measures, *MEASURES, "mfu_of", *COLUMNS.values())
    measures = tables.measures.reindex(columns=list(dict.fromkeys(needed)))
    shares = measures[list(COLUMNS.values())].astype(float)
    measures = measures.assign(**shares.fillna(0.0).where(shares.notna().any(axis=1), axis=0))
    parts = means(measures, list(COLUMNS.values())).drop(columns="repeats")
    data = configurations(measures, list(MEASURES))
    data = data.merge(parts, on=[name for name in parts if name in data], how="left")
    data = data.rename(columns={name: part for part, name in COLUMNS.items()})
    data = data.astype(dict.fromkeys((*MEASURES, *COLUMNS), float))
    if data[["achieved_flop_per_s", *COLUMNS]].isna().all(axis=None):
        raise NothingToShow("neither operations nor parts of steps are known")
    names = configuration_names(measures, data)
    data.insert(0, "configuration", names)
    shown_names = [filled(name, NAME_WIDTH, NAME_LINES) for name in names]
    size = (WIDTH_IN, 1.3 + height_of(len(data)))
    counted = data[["mfu", "achieved_flop_per_s"]].notna().any(axis=None)
    ratios = (2, 3) if counted else (1,)
    figure, panels = plt.subplots(1, len(ratios), figsize=size, sharey=True, width_ratios=ratios, squeeze=False)
    *rates, right = panels[0]
    for left in rates:
        _draw_rates(left, data, named_runs(measures), shown_names, measures["mfu_of"].dropna().unique().tolist())
    shown = {part: 100 * data[part] for part in LOOK if (data[part] >= LEAST).any()}
    stacked_rows(right, shown_names, shown, LOOK, "Where the step goes", "Share of the step (%)")
    right.set_xlim(0, 100)
    if data[list(COLUMNS)].isna().all(axis=None):
        say(right, "no parts of steps were recorded")
    legend_below(figure, *rates, right)
    return figure, data


def _draw_rates(axes: Axes, data: pd.DataFrame, runs: pd.DataFrame, names: list[str], whose: list[str]) -> None:
    """Bars of MFU before HFU; of the rate itself where no peak is known."""
    known = data["mfu"].notna().any()
    value = "mfu" if known else "achieved_flop_per_s"
    scale, unit = (100.0, "%") if known else unit_for(data[value], OPERATIONS_PER_S)
    where, style = range(len(data)), {"height": 0.7, "edgecolor": "0.2", "linewidth": 0.4}
    axes.barh(where, data[value] * scale, color=COLOUR, label="MFU" if known else "_", zorder=2, **style)
    row_repeats(axes, data, runs, value, scale)
    if (data["hfu"] > data["mfu"]).any():
        hatch = HATCHES[1]
        axes.barh(where, data["hfu"] * scale, color="white", hatch=hatch, label="HFU", zorder=1.5, **style)
    for place, (_, row) in zip(where, data.iterrows(), strict=True):
        if pd.isna(row[value]):
            unknown = row["outcome"] == "completed" and pd.notna(row["achieved_flop_per_s"])
            row["outcome"] = "peak unknown" if unknown else row["outcome"]
            absent(axes, place, row, horizontal=True)
    group_axis(axes, names, horizontal=True, known=data[value].notna().any())
    peak = f"{whose[0]} peak".replace("vendor", "vendor's") if len(whose) == 1 else "peak, measured or vendor's"
    of = filled(f"Of the {peak} (%)", LABEL_WIDTH) if known else f"Rate per device ({unit});\n{HOW}"
    axes.set(title="Model FLOP utilization" if known else "Operations of the model", xlabel=of)
