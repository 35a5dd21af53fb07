"""The files that a scenario's runs, and all scenarios together, become: measures, tables, verdicts, recommendations."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from multicard.analysis.claims import claims_table, comparisons_table, judge, pooled_table, read_claims
from multicard.analysis.evidence import read_evidence
from multicard.analysis.measures import measure_scenario, outcome_table
from multicard.analysis.provenance import notes, synthetic
from multicard.analysis.recommend import as_markdown
from multicard.analysis.scaling import add_scaling
from multicard.analysis.scenario_tables import MEASURES, OUTCOME_TABLE, ScenarioTables, gather, store
from multicard.analysis.tables import write_scenario_tables
from multicard.core.files import atomic_write


def write_scenario(folders: Sequence[Path], not_run: Mapping[str, str], out: Path) -> None:
    """Write measures.csv, runs.csv and the tables of a scenario to the folder `out`.

    Parameters
    ----------
    folders
        Directories of its runs.
    not_run
        Reasons by run id, of the runs that have none.

    Raises
    ------
    UserError
        If a file of a run is missing or damaged.
    """
    store(gather(folders), out)
    measures = add_scaling(measure_scenario(list(folders)))
    _write(outcome_table(list(folders), dict(not_run)), out / OUTCOME_TABLE)
    _write(measures, out / MEASURES)
    tables = ScenarioTables(out)
    write_scenario_tables(measures, out, notes(tables), synthetic(tables))


def write_claims(
    claims: Path, results: Path, scenarios: Sequence[str], verdicts: Path, tests: Path, comparisons: Path
) -> None:
    """Check the claims against the scenarios of a results folder: CSVs with a row per claim, test and comparison.

    Raises
    ------
    UserError
        If the claims are faulty, or a scenario's measures are not there.
    """
    judged = judge(read_claims(claims), read_evidence(results, scenarios))
    _write(claims_table(judged), verdicts)
    _write(pooled_table(judged), tests)
    _write(comparisons_table(judged), comparisons)


def write_recommendations(results: Path, scenarios: Sequence[str], out: Path) -> None:
    """Write what the scenarios of a results folder recommend, as Markdown.

    Raises
    ------
    UserError
        If a scenario's measures are not there.
    """
    text = as_markdown(read_evidence(results, scenarios))
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _write(table: pd.DataFrame, path: Path) -> None:
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False)
