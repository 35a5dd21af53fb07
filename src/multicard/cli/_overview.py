"""What comes last on the console of a finished experiment: caveats, where the report is, and what to do next."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._console import console, say
from multicard.cli._next_step import next_step
from multicard.core.errors import UserError
from multicard.core.terminal import plain
from multicard.core.text import counted
from multicard.core.units import ARGS_PREFIX, UNKNOWN, heading, number_in, unit_for, units_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from multicard.experiment.config import Experiment
    from multicard.results.results import Results

# Headings that are shorter than the names of their columns.
HEADINGS = {
    "throughput_samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "steps_per_s": "steps/s",
    "data_share": "data wait", "exposed_communication_share": "exposed communication",
}  # fmt: skip
AROUND = 3  # of a column: a line, and a blank on each side
UNCOUNTED = "the samples of a step are unknown, so throughput is in steps and there is no speed-up: state them by"


def print_results(experiment: "Experiment", config: Path) -> None:
    """Print what could change the results of the scenarios, where the report is, and what to do next.

    Of a single scenario there is a table of its configurations before. `config`: the file that states the experiment.

    Raises `UserError` if a scenario was not measured.
    """
    from multicard.results.results import Results
    from multicard.results.tables import MEASURES

    folder = Path(experiment.results)
    outcomes: dict[str, str] = {}  # by run; scenarios may share runs
    lines: list[str] = []
    is_alone = len(experiment.scenarios) == 1
    for name, scenario in experiment.scenarios.items():
        tables = folder / "scenarios" / name
        if not (tables / MEASURES).is_file():
            raise UserError(f"{tables}: not measured")
        results = Results.read_scenario(tables)
        outcomes |= {run.run: run.outcome for run in results.runs}
        if is_alone:
            lines += _print_table(scenario.question, results)
        lines += [line if is_alone else f"{name}: {line}" for line in _lines_below(results)]
    lines += [*_changed_scripts(experiment), f"report: {folder / 'report.html'}"]
    say(*dict.fromkeys(lines), _next_step(experiment, config, outcomes))


def _print_table(question: str, results: "Results") -> list[str]:
    """Print the configurations of a scenario, if it has any; return lines that explain the table."""
    from multicard.analysis.overview import measures_shown, overview
    from multicard.experiment.workload import workload_of

    frame = results.frame()
    if frame.empty:
        return []
    rows = overview(results)
    say(*overview_tables(question, rows, measures_shown(results), console().width))
    lines = []
    if rows["iteration_time_s_low"].notna().any():
        lines.append("in brackets: the 95% CI over repeats")
    if any(run.is_completed for run in results.runs):
        workload = workload_of(frame)
        if rows["data_share"].isna().all():
            lines.append(f"data wait: {workload.data_wait_unknown}")
        if "steps_per_s" in rows and rows["steps_per_s"].notna().any():
            lines.append(f"{UNCOUNTED} {workload.states_samples_by}")
    lost = rows[rows["reason"] != ""]
    return lines + [f"{row['outcome'].replace('_', ' ')}: {row['reason']}" for _, row in lost.iterrows()]


def _lines_below(results: "Results") -> list[str]:
    """Return what parts of the step cost, what cannot run here, and what could change the results."""
    from multicard.analysis import ablation
    from multicard.analysis.notes import notes

    lines = []
    if results.ablated():
        lines += ablation.cost_lines(ablation.costs(results))
        lines += [text for _, text in ablation.not_measured(results)]
    lines += [f"{count} cannot run here: {reason}" for reason, count in Counter(results.reasons_not_run()).items()]
    return lines + notes(results, profiled=True)


def _changed_scripts(experiment: "Experiment") -> Iterator[str]:
    """A line for each script that has changed since it was measured: completed runs are not made again for that."""
    from multicard.core.files import sha256
    from multicard.core.system import read_or_none
    from multicard.experiment.read_run import read_run_if_any
    from multicard.experiment.runs import distinct, expand
    from multicard.experiment.workload import WORKLOADS

    folder, changed = Path(experiment.results) / "runs", Counter()
    for name, run in distinct(expand(experiment)).items():
        script = WORKLOADS[run.parameters.workload].launching(run.parameters).script
        record = read_run_if_any(folder / name) if script else None
        if record is None or record.script is None or record.script.sha256 is None:
            continue
        now = read_or_none(lambda script=script: sha256(script))
        if now not in (None, record.script.sha256):
            changed[record.script.file] += 1
    for script, count in changed.items():
        were = f"{counted(count, 'run')} {'was' if count == 1 else 'were'}"
        yield f"{script} has changed since {were} measured; delete their folders in {folder} to measure them again"


def _next_step(experiment: "Experiment", config: Path, outcomes: Mapping[str, str]) -> str:
    """Return what to do next, what for, and by which command; `outcomes` by run."""
    failed = sum(outcome != "completed" for outcome in outcomes.values())
    if failed:
        lost = f"{failed} of {counted(len(outcomes), 'run')} did not complete"
        return next_step(f"as {lost}, see why in log.txt and run them again", "run", config, "--retry-failed")
    if all(scenario.repeats == 1 for scenario in experiment.scenarios.values()):
        if not _launches(experiment):
            add = "for intervals, add rows with a column repeat to the table of traces, and read it again"
            return next_step(add, "analyze", "--as-runs", "TABLE", "--overwrite")
        change = f"for intervals, set repeats: 3 in {config} (finished runs are kept) and run it again"
        return next_step(change, "run", config)
    return next_step("for the best configuration and what to try", "recommend", experiment.results)


def _launches(experiment: "Experiment") -> bool:
    """Return True if any run is of a job that multicard launches."""
    from multicard.experiment.runs import distinct, expand
    from multicard.experiment.workload import WORKLOADS

    return any(WORKLOADS[run.parameters.workload].launches for run in distinct(expand(experiment)).values())


def overview_tables(title: str, rows: "pd.DataFrame", measures: list[str], width: int) -> list["Table"]:
    """Show configurations by `analysis.overview`: parameters, measures with their intervals, and outcomes.

    Measures that are unknown throughout are left out. Those that do not fit into `width` columns follow in further
    tables, so that no number is cut.
    """
    from rich.table import Table

    parameters = [name for name in rows if name not in ("outcome", "reason") and not name.startswith(tuple(measures))]
    keys = [
        (name.removeprefix(ARGS_PREFIX), [UNKNOWN if value != value else f"{value}" for value in rows[name]])
        for name in parameters
    ]
    columns = []
    for name in measures:
        if rows[name].isna().all():
            continue
        factor, unit = unit_for(rows[name], units) if (units := units_of(name)) else (1.0, "")
        bounds = [rows[f"{name}{end}"] * factor for end in ("", "_low", "_high")]
        words = HEADINGS.get(name) or heading(name)
        cells = [number_in(*each) for each in zip(*bounds, strict=True)]
        columns.append((f"{words} ({unit})" if unit else words, cells))
    columns.append(("outcome", [str(outcome).replace("_", " ") for outcome in rows["outcome"]]))
    parts: list[list[tuple[str, list[str]]]] = []
    left = 0
    for column in columns:
        if _width(column) > left or not parts:
            parts.append([])
            left = width - 1 - sum(map(_width, keys))
        parts[-1].append(column)
        left -= _width(column)
    tables = []
    for part in parts:
        table = Table(title=None if tables else plain(title), title_justify="left")
        for index, column in enumerate(shown := [*keys, *part]):
            head, width_of_cells = column[0], _width(column) - AROUND
            justify = "left" if head == "outcome" or index < len(keys) else "right"
            table.add_column(plain(head), overflow="fold", justify=justify, width=width_of_cells)
        for row in zip(*(cells for _, cells in shown), strict=True):
            table.add_row(*map(plain, row))
        tables.append(table)
    return tables


def _width(column: tuple[str, list[str]]) -> int:
    """Width of a column whose cells have a line each, and words of the heading, with what is around it."""
    head, cells = column
    return AROUND + max(map(len, (*head.split(), *cells)))
