"""The report as one self-contained HTML file; the same input gives the same bytes."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from multicard.core.files import atomic_write
from multicard.core.layout import SEARCHES, search_tables
from multicard.core.text import counted
from multicard.experiment.figures import FIGURES
from multicard.papers.claims import NOT_MEASURED
from multicard.report.conclusions import claims_of, markdown
from multicard.report.environment import environment
from multicard.report.machines import MachinePage, machine_pages
from multicard.report.results import (
    NOT_RUN,
    FigureFiles,
    Plan,
    Results,
    Scenario,
    count_outcomes,
    figure_files,
    read_results,
)
from multicard.report.run_table import run_table
from multicard.report.tables import nothing_to_show, numbers_table
from multicard.report.wording import in_words

# A larger SVG has so many points that the PNG is the better picture.
LARGEST_SVG_BYTES = 1_000_000


def write_report(results: Path, out: Path, plans: Mapping[str, Plan] | None = None) -> None:
    """Write the report of a results folder to `out`; `plans` and errors as of `read_results`."""
    searches = [each for path in search_tables(results) if (each := figure_files(path.parent, SEARCHES, path.stem))]
    text = render(read_results(results, plans), machine_pages(results), searches)
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render(results: Results, machines: Sequence[MachinePage] = (), searches: Sequence[FigureFiles] = ()) -> str:
    """Give the page. All text of `results` is escaped; the script is named by its hash, so no other can run."""
    folder = Path(__file__).parent
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"words": in_words, "counted": counted}
    scenarios = [_scenario(each, results.records) for each in results.scenarios]
    number = 0
    for each in scenarios:
        for figure in each["figures"]:
            number += 1
            figure["number"] = number
    script = (folder / "runs.js").read_text(encoding="utf-8")
    return templates.get_template("page.html.j2").render(
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        scenarios=scenarios,
        outcomes=count_outcomes(results.runs["outcome"]),
        runs=run_table(results),
        incomplete=_incomplete(results.runs),
        claims=None if results.claims is None else claims_of(results.claims, results.claim_tests),
        not_measured=NOT_MEASURED,
        is_judged=results.is_judged,
        verdicts=None if results.claims is None else results.claims["verdict"].value_counts(sort=False).to_dict(),
        recommendations=None if results.recommendations is None else markdown(results.recommendations),
        environment=environment(results.records.values()),
        records=len(results.records),
        gain=results.gain,
        machines=[(each, each.figure and _picture(each.figure)) for each in machines],
        searches=[(each.name, _picture(each), numbers_table(each.numbers)) for each in searches],
    )


def _scenario(scenario: Scenario, records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    where = environment(records[run] for run in scenario.runs["run"] if run in records)
    return {
        "name": scenario.name,
        "question": scenario.question,
        "outcomes": scenario.outcomes,
        "runs": len(scenario.runs),
        "mixed": where.mixed,
        "synthetic": where.synthetic,
        "notes": scenario.notes,
        "figures": [_figure(each) for each in scenario.figures],
    }


def _figure(figure: FigureFiles) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": in_words(figure.name),
        "words": FIGURES[figure.name],
        "nothing": nothing_to_show(figure.numbers),
        "picture": _picture(figure),
        "table": numbers_table(figure.numbers),
        "files": f"figures/{figure.scenario}/{figure.name}",
    }


def _picture(figure: FigureFiles) -> str | None:
    """A figure's picture as a data: URI. As the source of an image, an SVG runs no script and loads nothing."""
    path, kind = figure.svg, "image/svg+xml"
    if path is None or (path.stat().st_size > LARGEST_SVG_BYTES and figure.png):
        path, kind = figure.png, "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}" if path else None


def _incomplete(runs: pd.DataFrame) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Runs that were not run or did not complete, by outcome and reason: these, and the names of the runs."""
    rest = runs[runs["outcome"] != "completed"]
    groups = [
        (str(outcome), str(reason), list(rows["run"]))
        for (outcome, reason), rows in rest.groupby(["outcome", "reason"], sort=False)
    ]
    return {
        "not_run": [group for group in groups if group[0] == NOT_RUN],
        "ended": [group for group in groups if group[0] != NOT_RUN],
    }
