"""The report as one self-contained HTML file; the same input gives the same bytes."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from multicard.core.files import atomic_write
from multicard.core.layout import NOT_RUN, OUTCOMES, SEARCHES, machine_records, search_tables
from multicard.core.templates import html_template
from multicard.experiment.workload import workload_of
from multicard.figures.catalog import PAPER, load_drawing
from multicard.papers.judge import NOT_MEASURED
from multicard.report.environment import environment, machine_page
from multicard.report.results import FigureFiles, Plan, Results, Scenario, figure_files, read_results
from multicard.report.tables import in_words, nothing_to_show, numbers_table, run_table
from multicard.runs.record import RunRecord

# A larger SVG has so many points that the PNG is the better picture.
LARGEST_SVG_BYTES = 1_000_000
MOST_ANSWERS = 3  # under a question
DARK_TEXT, DARK_PAGE = (0xE6, 0xE9, 0xEE), (0x1A, 0x1F, 0x25)  # as in page.css
LAST = ("not judged", NOT_MEASURED)  # verdicts that say nothing of a claim
FACTS = ("refuted_if", "paper", "source", "hardware", "conditions", "our_choice")  # of a claim


def write_report(folder: Path, out: Path, plans: Mapping[str, Plan]) -> None:
    """Write the report of a results folder to `out`; `plans` and errors as of `read_results`.

    All text of the results is escaped, and no script can run.
    """
    results = read_results(folder, plans)
    places = [f"{SEARCHES}/{path.stem}" for path in search_tables(folder)]
    template = html_template(
        Path(__file__).with_name("page.html.j2"),
        {"words": in_words, "numbers": numbers_table, "picture": _picture},
    )
    scenarios = [_scenario(each, results.records) for each in results.scenarios]
    for number, figure in enumerate((figure for each in scenarios for figure in each["figures"]), 1):
        figure["number"] = number
    text = template.render(
        style=Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8")),
        scenarios=scenarios,
        most_answers=MOST_ANSWERS,
        paper=PAPER,
        runs=run_table(results),
        incomplete=_incomplete(results.runs),
        claims=_claims(results),
        not_measured=NOT_MEASURED,
        advice=results.advice,
        environment=environment(list(results.records.values())),
        records=len(results.records),
        machines=[machine_page(path) for path in machine_records(folder)],
        searches=[each for place in places if (each := figure_files(folder, place))],
    )
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _scenario(scenario: Scenario, records: Mapping[str, RunRecord]) -> dict[str, Any]:
    where = environment([records[run] for run in scenario.runs["run"] if run in records])
    jobs = scenario.advice.jobs if scenario.advice else []
    answers = [
        f"{job.name}: {' '.join(job.answers)}" if len(jobs) > 1 else " ".join(job.answers)
        for job in jobs[:MOST_ANSWERS]
        if job.answers
    ]
    steps = [each.step for each in jobs[:MOST_ANSWERS] if each.step]
    lost = scenario.runs["outcome"].astype(str).value_counts().drop("completed", errors="ignore")
    return vars(scenario) | {
        "outcomes": {name: lost[name] for name in (*OUTCOMES, NOT_RUN, *sorted(lost.index)) if name in lost},
        "runs": len(scenario.runs),
        "mixed": where.mixed,
        "jobs": jobs,
        "answers": answers,
        "figures": [_figure(each, answers, steps, _is_of_papers(scenario)) for each in scenario.figures],
    }


def _is_of_papers(scenario: Scenario) -> bool:
    """Return whether the papers ran such jobs: their figures say nothing about a user's own program."""
    has_runs = "workload" in scenario.measures and len(scenario.measures)
    return bool(has_runs) and not workload_of(scenario.measures).is_user_program


def _figure(figure: FigureFiles, answers: Sequence[str], steps: Sequence[str], is_of_papers: bool) -> dict[str, Any]:
    drawing = load_drawing(figure.name)
    paper_figure = drawing.paper_figure or ""
    is_alike = is_of_papers and paper_figure.startswith("A, ")
    of_step = drawing.profiled or figure.name in ("step_breakdown", "step_times")
    return {
        "finding": f"{'; '.join(steps)}." if of_step and steps else " ".join(answers),
        "question": drawing.question,
        "caption": drawing.caption,
        "of_paper": paper_figure.removeprefix("A, ") if is_alike else None,
        "nothing": nothing_to_show(figure.numbers),
        "files": figure,
    }


def _picture(figure: FigureFiles) -> str | None:
    """A figure's picture as a data: URI. As the source of an image, an SVG runs no script and loads nothing."""
    if figure.svg and not (figure.png and figure.svg.stat().st_size > LARGEST_SVG_BYTES):
        kind, content = "svg+xml", for_the_dark(figure.svg.read_text(encoding="utf-8")).encode()
    elif figure.png:
        kind, content = "png", figure.png.read_bytes()
    else:
        return None
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


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


def _claims(results: Results) -> list[dict[str, Any]]:
    """Rows of claims.csv with their tests, those that were judged first; none where no claim was."""
    claims, tests = results.claims, results.claim_tests
    if claims is None or tests is None or claims["verdict"].isin(LAST).all():
        return []
    found = [
        row
        | {
            "tests": tests[tests["claim"] == row["claim"]].to_dict("records"),
            "facts": {in_words(name): row[name] for name in FACTS if row.get(name)},
        }
        for row in claims.to_dict("records")
    ]
    return sorted(found, key=lambda row: LAST.index(row["verdict"]) if row["verdict"] in LAST else -1)


def _incomplete(runs: pd.DataFrame) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Runs that were not run or did not complete, by outcome and reason: these, and the names of the runs."""
    rest = runs[runs["outcome"] != "completed"]
    groups = [
        (str(outcome), str(reason), list(rows["run"]))
        for (outcome, reason), rows in rest.groupby(["outcome", "reason"], sort=False)
    ]
    return {
        "Not run here": [group for group in groups if group[0] == NOT_RUN],
        "Did not complete": [group for group in groups if group[0] != NOT_RUN],
    }
