"""The report as one self-contained HTML file; the same input gives the same bytes."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from multicard.answers.answer import COSTS, GREW, HOW_MANY, NEXT, Answer
from multicard.answers.choice.advice import JobAdvice
from multicard.answers.choice.choices import Choices
from multicard.core.files import atomic_write
from multicard.core.layout import NOT_RUN, OUTCOMES, SEARCHES, machine_records, search_tables
from multicard.core.templates import html_template
from multicard.figures.catalog import HOW_TO_READ, Drawing, load_drawing
from multicard.figures.marks import marks_in
from multicard.papers.claim import PAPERS, Paper
from multicard.papers.verdicts import NOT_MEASURED
from multicard.programs import program_of
from multicard.report.configurations import configurations_table
from multicard.report.environment import environment, machine_limits
from multicard.report.hover import PointedMark, pointed_marks
from multicard.report.links import figure_links, run_links, trace_address
from multicard.report.results import (
    FigureFiles,
    ReportContents,
    ScenarioContents,
    ScenarioPlan,
    figure_files,
    read_contents,
)
from multicard.report.step_timeline import StepTimeline, step_timeline
from multicard.report.tables import PageTable, common_to, in_words, nothing_to_show, numbers_table, run_table
from multicard.runs.record import RunRecord

# An SVG of more bytes has very many points; the page then shows the PNG, if there is one.
LARGEST_SVG_BYTES = 1_000_000
MOST_ANSWERS = 3  # number of jobs whose answers are shown under the question of a scenario
OWN_PAPER = "A"  # the paper whose figures some figures are compared with
# Colours of text and background in dark mode (red, green, blue), the same as in page.css.
DARK_TEXT, DARK_PAGE = (0xE6, 0xE9, 0xEE), (0x1A, 0x1F, 0x25)
# Verdicts that do not judge a claim. Claims with these verdicts are shown after the others, in this order.
NO_VERDICTS = ("not judged", NOT_MEASURED)
# Columns of claims.csv that are shown when a reader opens a claim, in this order.
CLAIM_FACTS = ("refuted_if", "source", "hardware", "conditions", "our_choice")
# Figures of the measured window whose alternative text states where the time of a step goes. All figures of the
# profiled window have that text, too.
STEP_FIGURES = ("step_breakdown", "step_times")


@dataclass(frozen=True)
class FigureSection:
    """What the template shows of a figure."""

    number: int
    drawing: Drawing
    files: FigureFiles
    table: PageTable  # its numbers, without what all tables of the scenario have in common
    finding: str  # what it shows, for the picture's alternative text
    paper_figure: str | None  # figure of paper A to compare it with, such as "figure 2"; None if there is none
    nothing: str | None  # why it is empty; None if it is not


@dataclass(frozen=True)
class ScenarioSection:
    """What the template shows of a scenario."""

    name: str
    question: str
    answers: list[str]
    not_run: list[str]  # combinations of measured gains that were not run, as Markdown
    # Its jobs, each with its answers to further questions.
    jobs: list[tuple[JobAdvice, list[Answer]]]
    run_count: int
    outcomes: dict[str, int]  # number of runs that did not complete or were not run, by outcome
    mixed: str | None  # what differs between the runs, see `Environment.mixed`
    figures: list[FigureSection]
    timeline: StepTimeline | None  # None if no run recorded phases on several ranks
    common: list[tuple[str, str]]  # names and values that are equal in all rows of all figures' tables
    notes: list[str]


class ClaimTest(NamedTuple):
    """What the template shows of a test of a claim: what it states, and what was found."""

    statement: str
    finding: str


class Claim(NamedTuple):
    """What the template shows of a claim of the papers."""

    verdict: str
    text: str
    tests: list[ClaimTest]
    papers: list[Paper]
    facts: dict[str, str]


class IncompleteRuns(NamedTuple):
    """Runs that did not complete, with the same outcome for the same reason."""

    outcome: str
    reason: str
    names: list[str]


def write_report(folder: Path, out: Path, plans: Mapping[str, ScenarioPlan]) -> None:
    """Write the report of a results folder to `out`. Arguments and errors are those of `read_contents`.

    All text of the results is escaped, so that none of it runs as a script. The page's own script is named by its
    digest in the policy of the page, so that browsers run no other.
    """
    contents = read_contents(folder, plans)
    template = html_template(
        Path(__file__).with_name("page.html.j2"),
        {
            "words": in_words,
            "numbers": numbers_table,
            "picture": _picture,
            "marks": _marks,
            "run_links": lambda run: run_links(folder, run, out),
            "trace_address": lambda run: trace_address(folder, run, out),
            "figure_links": lambda path_in_results: figure_links(folder, path_in_results, out),
        },
    )
    runs = run_table(contents)
    links_of_runs = [run_links(folder, run, out) for run in runs.full_names]
    figure_numbers = count(1)
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    searches = [figure_files(folder, f"{SEARCHES}/{path.stem}") for path in search_tables(folder)]
    text = template.render(
        style=Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        scenarios=[_scenario_section(scenario, contents.records, figure_numbers) for scenario in contents.scenarios],
        names=_names(contents),
        paper=PAPERS[OWN_PAPER],
        how_to_read=HOW_TO_READ,
        configurations=configurations_table(contents),
        try_next=NEXT,
        runs=replace(runs, links=links_of_runs if any(links_of_runs) else []),
        incomplete=_incomplete_runs(contents.runs),
        claims=_claims(contents),
        not_measured=NOT_MEASURED,
        advice=contents.advice,
        environment=environment(list(contents.records.values())),
        records=len(contents.records),
        machines=[machine_limits(path) for path in machine_records(folder)],
        searches=[search for search in searches if search is not None],
    )
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _scenario_section(
    scenario: ScenarioContents, records: Mapping[str, RunRecord], figure_numbers: Iterator[int]
) -> ScenarioSection:
    records_of_runs = [records[run] for run in scenario.runs["run"] if run in records]
    jobs = scenario.advice.jobs if scenario.advice else []
    answers = _answers(scenario.answer, jobs)
    steps = [job.step for job in jobs[:MOST_ANSWERS] if job.step]
    tables = {files.name: numbers_table(files.numbers) for files in scenario.figures}
    common = common_to(list(tables.values()))
    figures = []
    for files in scenario.figures:
        drawing = load_drawing(files.name)
        shows_steps = drawing.profiled or files.name in STEP_FIGURES
        figure = FigureSection(
            number=next(figure_numbers),
            drawing=drawing,
            files=files,
            table=tables[files.name].without_same(common),
            finding=f"{'; '.join(steps)}." if shows_steps and steps else " ".join(answers),
            paper_figure=_paper_figure(drawing, scenario),
            nothing=nothing_to_show(files.numbers),
        )
        figures.append(figure)
    return ScenarioSection(
        name=scenario.name,
        question=scenario.question,
        answers=answers,
        not_run=[job.combination.sentence for job in jobs[:MOST_ANSWERS] if job.combination],
        jobs=[(job, _further_answers(job)) for job in jobs[:MOST_ANSWERS]],
        run_count=len(scenario.runs),
        outcomes=_lost_by_outcome(scenario.runs),
        mixed=environment(records_of_runs).mixed,
        figures=figures,
        timeline=step_timeline(scenario.results),
        common=common,
        notes=scenario.notes,
    )


def _answers(answer: Answer, jobs: Sequence[JobAdvice]) -> list[str]:
    """Return the answer of a scenario, then what grew in the steps of its first `MOST_ANSWERS` jobs, as sentences.

    A job is named if there are several.
    """
    answers = [answer.full_sentence]
    for job in jobs[:MOST_ANSWERS]:
        for grown in job.first_screen:
            if grown.question == GREW:
                answers.append(f"{job.name}: {grown.sentence}." if len(jobs) > 1 else grown.full_sentence)
    return answers


def _further_answers(job: JobAdvice) -> list[Answer]:
    """Return the answers on a job that are not among those to the question of its scenario."""
    stated = job.combination.sentence if job.combination else None
    further = [answer for answer in job.first_screen if answer.question not in (HOW_MANY, GREW, COSTS)]
    return [answer for answer in further if answer.is_known and answer.sentence != stated]


def _names(contents: ReportContents) -> dict[str, str]:
    """Return what short names mean, by name, as the programs state it; in Markdown.

    These are the strategies, techniques and launchers of the runs, and the other parameters that scenarios vary, if
    their values are words.
    """
    meanings: dict[str, str] = {}
    for scenario in contents.scenarios:
        configurations = scenario.results.configurations()
        for configuration in configurations:
            program = configuration.program
            name = configuration[program.method]
            if name in program.methods:
                meanings[name] = program.methods[name].description.rstrip(".")
        for name in Choices.differing(configurations) if configurations else ():
            field = program.parameters.model_fields.get(name)
            has_words = all(isinstance(configuration[name], str) for configuration in configurations)
            if field is not None and has_words and name not in (program.method, *program.inputs):
                meanings[name] = str(field.description).rstrip(".")
    return meanings


def _lost_by_outcome(runs: pd.DataFrame) -> dict[str, int]:
    """Return how many runs did not complete or were not run, by outcome: known outcomes first, in their fixed order."""
    counts = runs["outcome"].astype(str).value_counts().drop("completed", errors="ignore")
    outcomes = dict.fromkeys([*OUTCOMES, NOT_RUN, *sorted(counts.index)])
    return {outcome: counts[outcome] for outcome in outcomes if outcome in counts}


def _paper_figure(drawing: Drawing, scenario: ScenarioContents) -> str | None:
    """Return the figure of paper A to compare with; None if there is none, or the scenario is of another program."""
    if not drawing.paper_figure or not drawing.paper_figure.startswith(f"{OWN_PAPER}, "):
        return None
    if not scenario.has_programs or program_of(scenario.measures).paper != OWN_PAPER:
        return None
    return drawing.paper_figure.removeprefix(f"{OWN_PAPER}, ")


def _picture(figure: FigureFiles) -> str | None:
    """Return a figure's picture as a data: URI; None if it has no picture.

    The page uses the URI as the source of an image: there, an SVG can run no script and load nothing.
    """
    if figure.svg and not _shows_png(figure):
        svg = for_the_dark(figure.svg.read_text(encoding="utf-8"))
        return _data_uri("svg+xml", svg.encode())
    if figure.png:
        return _data_uri("png", figure.png.read_bytes())
    return None


def _shows_png(figure: FigureFiles) -> bool:
    """True if the page shows the PNG of a figure although it has an SVG, which is too large."""
    return bool(figure.svg and figure.png and figure.svg.stat().st_size > LARGEST_SVG_BYTES)


def _marks(figure: FigureFiles) -> list[PointedMark]:
    """Return the marks of a figure that the page shows as an SVG; empty if it has none, or is shown as a PNG."""
    if figure.svg is None or _shows_png(figure):
        return []
    return pointed_marks(list(marks_in(figure.svg.read_text(encoding="utf-8"))))


def _data_uri(image_type: str, content: bytes) -> str:
    return f"data:image/{image_type};base64,{base64.b64encode(content).decode('ascii')}"


def for_the_dark(svg: str) -> str:
    """Return an SVG with rules for dark mode added. There its greys are replaced; other colours stay.

    White becomes the colour of the dark page, black that of its text, and the greys between are interpolated.
    """
    rules = ["text{fill:#e6e9ee}"]
    # A grey is # and three equal pairs of hexadecimal digits.
    greys = re.findall(r"(fill|stroke): (#([0-9a-f]{2})\3\3)\b", svg)
    for name, grey, level in sorted(set(greys)):
        lightness = int(level, 16) / 255
        rules.append(f'[style*="{name}: {grey}"]{{{name}:{_dark(lightness)} !important}}')
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    body, end, after = svg.rpartition("</svg>")
    return f"{body}{style}{end}{after}"


def _dark(lightness: float) -> str:
    """Return the colour that replaces a grey on a dark page. `lightness`: from 0 (black) to 1 (white).

    >>> _dark(0), _dark(1)
    ('#e6e9ee', '#1a1f25')
    """
    channels = [round(text + (page - text) * lightness) for text, page in zip(DARK_TEXT, DARK_PAGE, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def _claims(contents: ReportContents) -> list[Claim]:
    """Return the claims with their tests, judged claims first; empty if no claim was judged."""
    table = contents.claims
    tests = contents.claim_tests
    if table is None or tests is None or table["verdict"].isin(NO_VERDICTS).all():
        return []
    claims = []
    for row in table.to_dict("records"):
        is_of_claim = tests["claim"] == row["claim"]
        tests_of_claim = [ClaimTest(test.test, test.finding) for test in tests[is_of_claim].itertuples()]
        facts = {in_words(name): row[name] for name in CLAIM_FACTS if row.get(name)}
        papers = [PAPERS[letter] for letter in str(row.get("paper", "")).split(", ") if letter in PAPERS]
        claims.append(Claim(row["verdict"], row["claim_text"], tests_of_claim, papers, facts))
    return sorted(claims, key=_verdict_order)


def _verdict_order(claim: Claim) -> int:
    return NO_VERDICTS.index(claim.verdict) if claim.verdict in NO_VERDICTS else -1


def _incomplete_runs(runs: pd.DataFrame) -> dict[str, list[IncompleteRuns]]:
    """Return the runs that were not run, and those that did not complete, each under the title of their list."""
    incomplete = runs[runs["outcome"] != "completed"]
    groups = [
        IncompleteRuns(str(outcome), str(reason), list(rows["run"]))
        for (outcome, reason), rows in incomplete.groupby(["outcome", "reason"], sort=False)
    ]
    return {
        "Not run here": [group for group in groups if group.outcome == NOT_RUN],
        "Did not complete": [group for group in groups if group.outcome != NOT_RUN],
    }
