"""Write the files of a scenario (measures, tables, headline), and the recommendations of all scenarios together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from multicard.answers.choice.recommend import as_markdown
from multicard.answers.scaling.headline import headline
from multicard.answers.scaling.speedup_tables import add_scaling
from multicard.core.files import atomic_write, described, write_json
from multicard.core.layout import ANSWER, SCENARIO_INDEX, SCENARIO_TABLES
from multicard.results.breakdown import complete_breakdowns
from multicard.results.gathering import joined, store, tables_of
from multicard.results.limits import read_machine
from multicard.results.measure import measure_run, runs_table
from multicard.results.outcomes import outcome_of, outcome_table
from multicard.results.per_run import trace_shares
from multicard.results.results import Results
from multicard.results.run_files import RunFiles
from multicard.results.tables import MEASURES, OUTCOME_TABLE, ScenarioTables, write_csv
from multicard.results.utilization import within_peaks


def write_scenario(
    folders: Sequence[Path],
    not_run: Mapping[str, str],
    out: Path,
    machines: Sequence[Path] = (),
    looks: int = 1,
) -> None:
    """Write measures.csv, runs.csv, the headline and the gathered tables of a scenario to `out`, then their index.

    `folders`: directories of the scenario's runs. `not_run`: for each run that was not made, and so has no directory,
    the reason by its id. `machines`: files with the limits of machines. `looks`: see `Block`.

    Raises `UserError` if a file of a run or of a
    machine is missing or damaged.
    """
    # Without these two files a folder counts as not measured, until all tables in it have been replaced.
    for name in (SCENARIO_INDEX, MEASURES):
        (out / name).unlink(missing_ok=True)
    limits = [read_machine(path) for path in machines]
    parts, measured, outcomes = [], [], []
    for folder in folders:
        # Only one run is held in memory at a time, because a run may have many steps.
        run = RunFiles(folder)
        parts.append(tables_of(run))
        measured.append(measure_run(run, limits))
        outcomes.append(outcome_of(run))
    store(joined(parts), out)
    # Tables leave out the runs that `measures` shows to be ablated. It is empty here, so the shares are of all runs.
    traced = Results(runs_table([]), scenarios=(ScenarioTables(out),))
    # These functions change shares of the step, utilization and speed-up, but no time that `measure_run` returned.
    measures = within_peaks(runs_table(complete_breakdowns(measured, trace_shares(traced))))
    write_csv(outcome_table(outcomes, not_run), out / OUTCOME_TABLE)
    write_csv(add_scaling(measures), out / MEASURES)
    # The index, which is written last, is not there yet to state the looks.
    tables = ScenarioTables(out, looks)
    write_json(out / ANSWER, asdict(headline(Results(tables.measures, tables.provenances, (tables,)))))
    written = [MEASURES, OUTCOME_TABLE, *(f"{name}.parquet" for name in SCENARIO_TABLES)]
    stated_looks = {"looks": looks} if looks > 1 else {}
    write_json(out / SCENARIO_INDEX, {"files": [described(out / name) for name in written], **stated_looks})


def write_recommendations(results: Path, scenarios: Sequence[str], out: Path) -> None:
    """Write the recommendations that follow from the scenarios of a results folder, as Markdown, to the file `out`.

    Raises `UserError` if the measures of a scenario are missing.
    """
    text = as_markdown(Results.read(results, scenarios))
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
