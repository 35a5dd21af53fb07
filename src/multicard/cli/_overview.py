"""Print the end of a finished experiment's output: results, caveats, where the report is, and what to do next."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from multicard.cli._console import console, say
from multicard.cli._next_step import command_line, next_step, with_repeats
from multicard.core.errors import UserError
from multicard.core.terminal import plain
from multicard.core.text import counted
from multicard.core.units import ARGS_PREFIX, UNKNOWN, heading, number_in, unit_for, units_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from multicard.config.experiment import Experiment
    from multicard.results.results import Results

# Short headings for columns that have longer names.
HEADINGS = {
    "throughput_samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "steps_per_s": "steps/s",
    "data_share": "data wait", "exposed_communication_share": "exposed communication",
}  # fmt: skip
# The question that the number of devices answers, below the table.
HOW_MUCH_FASTER = "how much faster"
UNCOUNTED = "the samples of a step are unknown, so throughput is in steps and there is no speed-up; state them with"


def print_results(
    experiment: "Experiment",
    config: Path,
    headlines: Mapping[str, str] | None = None,
    profile: str | None = None,
) -> None:
    """Print what could change the results of the scenarios, where the report is, and what to do next.

    If there is a single scenario, a table of its configurations is printed first, and after what could change the
    results stand the answers that sum them up. Of several scenarios, the answer of each follows its question.

    `config`: configuration file of the experiment. `headlines`: the answers of scenarios, by the names of those that
    have one. `profile`: profile of Snakemake by which runs go to a cluster; None if they run on this machine.

    Raises `UserError` if a scenario was not measured.
    """
    from multicard.results.results import Results
    from multicard.results.tables import MEASURES

    folder = Path(experiment.results)
    outcomes: dict[str, str] = {}  # by run, because scenarios may share runs
    lines: list[str] = []
    answers: list[str] = []
    is_alone = len(experiment.scenarios) == 1
    for name, scenario in experiment.scenarios.items():
        tables = folder / "scenarios" / name
        if not (tables / MEASURES).is_file():
            raise UserError(f"{tables}: not measured")
        results = Results.read_scenario(tables)
        outcomes |= {run.run: run.outcome for run in results.runs}
        if is_alone:
            lines += [*_print_table(scenario.question, results), *_cost_lines(results)]
            answers = _brief(results)
        elif headlines and name in headlines:
            answers += [scenario.question, f"  {headlines[name]}"]
        lines += [line if is_alone else f"{name}: {line}" for line in _lines_below(results)]
    lines += _changed_scripts(experiment)
    following = _next_step(experiment, config, outcomes, profile)
    details = command_line("recommend", experiment.results)
    if is_alone and answers and not following.endswith(details):
        answers.append(f"more: {details}")
    say(*dict.fromkeys(lines), *answers, f"report: {folder / 'report.html'}", following)


def _brief(results: "Results") -> list[str]:
    """Return the answers that sum up the results, a line each: how much faster, what grew, and what to try first."""
    from multicard.answers.answer import HOW_MANY
    from multicard.answers.choice.recommend import advise

    jobs = advise(results).jobs
    if not jobs:
        return []
    device_counts = {configuration["devices"] for configuration in results.configurations()}
    lines = []
    for answer in jobs[0].brief:
        is_asked = answer.question != HOW_MANY or len(device_counts) > 1
        if is_asked:
            question = HOW_MUCH_FASTER if answer.question == HOW_MANY else answer.question.lower()
            lines.append(f"{question}: {answer.sentence}")
    return lines


def _print_table(question: str, results: "Results") -> list[str]:
    """Print the configurations of a scenario, if it has any; return lines that explain the table."""
    from multicard.answers.overview import measures_shown, overview
    from multicard.answers.scaling.headline import STATES_SAMPLES, TABLE_STATES_SAMPLES

    frame = results.frame()
    if frame.empty:
        return []
    rows = overview(results)
    say(*overview_tables(question, rows, measures_shown(results), console().width))
    lines = []
    if rows["iteration_time_s_low"].notna().any():
        lines.append("in brackets: the 95% CI over repeats")
    if any(run.is_completed for run in results.runs):
        is_from_traces = "traced_devices" in frame and frame["traced_devices"].notna().any()
        if rows["data_share"].isna().all():
            wrap = "no loader of PyTorch's was seen; wrap yours with multicard.marks.wrap_loader"
            lines.append(f"data wait: {'not in the traces' if is_from_traces else wrap}")
        if "steps_per_s" in rows and rows["steps_per_s"].notna().any():
            lines.append(f"{UNCOUNTED} {TABLE_STATES_SAMPLES if is_from_traces else STATES_SAMPLES}")
    lost = rows[rows["reason"] != ""]
    return lines + [f"{row['outcome'].replace('_', ' ')}: {row['reason']}" for _, row in lost.iterrows()]


def _cost_lines(results: "Results") -> list[str]:
    """Return what parts of the step cost, which the answers of several scenarios say themselves."""
    from multicard.answers import ablation

    return ablation.cost_lines(ablation.costs(results))


def _lines_below(results: "Results") -> list[str]:
    """Return lines: which runs cannot run here, and what could change the results."""
    from multicard.answers.notes import notes
    from multicard.answers.scaling.headline import headline

    lines = list(headline(results).caveats)
    lines += [f"{count} cannot run here: {reason}" for reason, count in Counter(results.reasons_not_run()).items()]
    return lines + notes(results, profiled=True, remedies=True)


def _changed_scripts(experiment: "Experiment") -> Iterator[str]:
    """Yield a line for each script that has changed since it was measured, because its runs are not measured again."""
    from multicard.config.read_run import read_run_if_any
    from multicard.config.runs import distinct, expand
    from multicard.core.files import sha256
    from multicard.core.system import read_or_none
    from multicard.launch.start import rank_command

    folder = Path(experiment.results) / "runs"
    changed: Counter[str] = Counter()
    for name, run in distinct(expand(experiment)).items():
        script = rank_command(run.parameters).script
        record = read_run_if_any(folder / name) if script is not None else None
        measured = record.script if record is not None else None
        if script is None or measured is None or measured.file is None or measured.sha256 is None:
            continue
        checksum = read_or_none(partial(sha256, script))
        if checksum not in (None, measured.sha256):
            changed[measured.file] += 1
    for file, count in changed.items():
        were = f"{counted(count, 'run')} {'was' if count == 1 else 'were'}"
        yield f"{file} has changed since {were} measured; delete their folders in {folder} to measure them again"


def _next_step(experiment: "Experiment", config: Path, outcomes: Mapping[str, str], profile: str | None) -> str:
    """Return the line that says what to do next, for what purpose, and by which command.

    `outcomes`: by run. `profile`: as for `print_results`.
    """
    from multicard.config.added_repeats import open_scenarios

    # Without the profile, what ran on a cluster would go on on its login node.
    options = ["--profile", profile] if profile else []
    failed = sum(outcome != "completed" for outcome in outcomes.values())
    if failed:
        lost = f"{failed} of {counted(len(outcomes), 'run')} did not complete"
        return next_step(f"as {lost}, see why in log.txt and run them again", "run", config, *options, "--retry-failed")
    if open_scenarios(experiment):
        return next_step("to add repeats until comparisons are decided", "run", config, *options)
    if all(scenario.repeats.most == 1 for scenario in experiment.scenarios.values()):
        if not _launches(experiment):
            add = "for intervals, add rows with a column repeat to the table of traces, and read it again"
            return next_step(add, "analyze", "--as-runs", "TABLE", "--overwrite")
        line = with_repeats(config, 3, *options)
        if line is not None:
            return line
        change = f"for intervals, set repeats: 3 in {config} (finished runs are kept) and run it again"
        return next_step(change, "run", config, *options)
    return next_step("for the best configuration and what to try", "recommend", experiment.results)


def _launches(experiment: "Experiment") -> bool:
    """Return True if any run is of a job that multicard launches."""
    from multicard.config.runs import distinct, expand
    from multicard.launchers import LAUNCHERS

    return any(LAUNCHERS[run.parameters.launched_by].launches for run in distinct(expand(experiment)).values())


class Column(NamedTuple):
    """A column of the table of configurations."""

    heading: str
    cells: Sequence[str]
    justify: Literal["left", "right"]

    @property
    def cell_width(self) -> int:
        """Number of characters of the longest cell or word of the heading; headings may break between words."""
        return max(map(len, (*self.heading.split(), *self.cells)))

    @property
    def width(self) -> int:
        """Number of characters that the column takes: the cell, a blank on each side of it, and a line."""
        return self.cell_width + 3


def overview_tables(title: str, rows: "pd.DataFrame", measures: list[str], width: int) -> list["Table"]:
    """Return tables of configurations for the terminal: parameters, measures with their intervals, and outcomes.

    `rows`: made by `answers.overview`. Measures that no configuration has are left out, and so are the outcomes if all
    configurations completed. Measures that do not fit into `width` characters follow in further tables, so that no
    number is cut.
    """
    parameters = []
    for name in rows:
        # The value and the interval of a measure have columns that begin with its name.
        is_of_measure = name.startswith(tuple(measures))
        if name not in ("outcome", "reason") and not is_of_measure:
            parameters.append(_parameter_column(rows, name))
    columns = [_measure_column(rows, name) for name in measures if rows[name].notna().any()]
    all_completed = (rows["outcome"] == "completed").all()
    if not all_completed or not columns:
        columns.append(_outcome_column(rows))
    # Each table repeats the parameters, and the line at its right edge takes a character.
    parameters_width = sum(column.width for column in parameters)
    parts = _fitting_parts(columns, available=width - 1 - parameters_width)
    tables = [_table([*parameters, *part]) for part in parts]
    tables[0].title = plain(title)
    return tables


def _outcome_column(rows: "pd.DataFrame") -> Column:
    cells = [str(outcome).replace("_", " ") for outcome in rows["outcome"]]
    return Column("outcome", cells, "left")


def _parameter_column(rows: "pd.DataFrame", name: str) -> Column:
    cells = [_parameter_cell(value) for value in rows[name]]
    return Column(name.removeprefix(ARGS_PREFIX), cells, "left")


def _parameter_cell(value: object) -> str:
    is_nan = value != value
    return UNKNOWN if is_nan else str(value)


def _measure_column(rows: "pd.DataFrame", name: str) -> Column:
    """Return a column with a measure's values, each with its interval, in the unit that suits the largest value."""
    units = units_of(name)
    factor, unit = unit_for(rows[name], units) if units else (1.0, "")
    values, lows, highs = (rows[f"{name}{end}"] * factor for end in ("", "_low", "_high"))
    cells = [number_in(value, low, high) for value, low, high in zip(values, lows, highs, strict=True)]
    words = HEADINGS.get(name) or heading(name)
    return Column(f"{words} ({unit})" if unit else words, cells, "right")


def _fitting_parts(columns: Sequence[Column], available: int) -> list[list[Column]]:
    """Divide columns, in order, into parts that fit into the available width; a wider column is a part by itself."""
    parts: list[list[Column]] = []
    remaining = 0
    for column in columns:
        if column.width > remaining or not parts:
            parts.append([])
            remaining = available
        parts[-1].append(column)
        remaining -= column.width
    return parts


def _table(columns: Sequence[Column]) -> "Table":
    from rich.table import Table

    table = Table(title_justify="left")
    for column in columns:
        table.add_column(plain(column.heading), overflow="fold", justify=column.justify, width=column.cell_width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(plain, cells))
    return table
