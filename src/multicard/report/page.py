"""The report as one self-contained HTML file; the same input gives the same bytes."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from multicard.core.files import atomic_write
from multicard.core.layout import SEARCHES, search_tables
from multicard.core.text import counted
from multicard.figures.catalog import catalog
from multicard.papers.verdicts import NOT_MEASURED
from multicard.report.conclusions import judged_claims
from multicard.report.environment import environment
from multicard.report.machines import MachinePage, machine_pages
from multicard.report.results import (
    NOT_RUN,
    FigureFiles,
    Plan,
    Results,
    Scenario,
    figure_files,
    read_results,
)
from multicard.report.run_table import run_table
from multicard.report.tables import nothing_to_show, numbers_table
from multicard.report.wording import in_words

# A larger SVG has so many points that the PNG is the better picture.
LARGEST_SVG_BYTES = 1_000_000
MOST_ANSWERS = 3  # under a question
DARK_TEXT, DARK_PAGE = (0xE6, 0xE9, 0xEE), (0x1A, 0x1F, 0x25)  # as in page.css


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
    templates.filters |= {"words": in_words, "counted": counted, "code": _code}
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
        most_answers=MOST_ANSWERS,
        runs=run_table(results),
        incomplete=_incomplete(results.runs),
        claims=judged_claims(results),
        not_measured=NOT_MEASURED,
        advice=results.advice,
        environment=environment(results.records.values()),
        records=len(results.records),
        machines=[(each, each.figure and _picture(each.figure)) for each in machines],
        searches=[(each.name, _picture(each), numbers_table(each.numbers)) for each in searches],
    )


def _scenario(scenario: Scenario, records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    where = environment(records[run] for run in scenario.runs["run"] if run in records)
    jobs = scenario.advice.jobs if scenario.advice else []
    answers = [
        f"{job.name}: {' '.join(job.answers)}" if len(jobs) > 1 else " ".join(job.answers)
        for job in jobs[:MOST_ANSWERS]
        if job.answers
    ]
    steps = [each.step for each in jobs[:MOST_ANSWERS] if each.step]
    return {
        "name": scenario.name,
        "question": scenario.question,
        "outcomes": {name: count for name, count in scenario.outcomes.items() if name != "completed"},
        "runs": len(scenario.runs),
        "mixed": where.mixed,
        "synthetic": where.synthetic,
        "notes": scenario.notes,
        "jobs": jobs,
        "answers": answers,
        "figures": [_figure(each, answers, steps) for each in scenario.figures],
    }


def _figure(figure: FigureFiles, answers: Sequence[str], steps: Sequence[str]) -> dict[str, Any]:
    of_step = catalog()[figure.name].profiled or figure.name in ("step_breakdown", "step_times")
    return {
        "finding": f"{'; '.join(steps)}." if of_step and steps else " ".join(answers),
        "name": figure.name,
        "title": in_words(figure.name),
        "words": catalog()[figure.name],
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
    if path is None:
        return None
    content = path.read_bytes()
    if path == figure.svg:
        content = for_the_dark(content.decode("utf-8")).encode("utf-8")
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def for_the_dark(svg: str) -> str:
    """Add to a picture how its greys look on a dark page: white as the page, black as its text; hues stay."""
    rules = ["text{fill:#e6e9ee}"]
    for name, grey, level in sorted(set(re.findall(r"(fill|stroke): (#([0-9a-f]{2})\3\3)\b", svg))):
        light = int(level, 16) / 255
        dark = "".join(
            f"{round(text + (page - text) * light):02x}" for text, page in zip(DARK_TEXT, DARK_PAGE, strict=True)
        )
        rules.append(f'[style*="{name}: {grey}"]{{{name}:#{dark} !important}}')
    body, end, rest = svg.rpartition("</svg>")
    return f"{body}<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>{end}{rest}"


def _code(text: str) -> Markup:
    """Text from files, with what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


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
