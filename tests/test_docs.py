"""The documents say what the code does, in the code's own words."""

import doctest
import re
import subprocess
import tomllib
from collections.abc import Callable
from importlib import import_module

import pytest
import yaml

from conftest import ROOT
from multicard.answers.measures_page import page as measures_page
from multicard.answers.scaling.speedup_tables import add_scaling
from multicard.config.experiment import PARAMETERS
from multicard.config.figures import FIGURES
from multicard.config.parameters_page import page as parameters_page
from multicard.core.layout import EPOCH_COLUMNS, OUTCOMES, STEP_COLUMNS
from multicard.core.reasons import WORDINGS
from multicard.figures.__main__ import page
from multicard.figures.catalog import load_drawing
from multicard.papers.tables import claims_table, judge_papers, table_of_tests
from multicard.results.measure import runs_table
from multicard.results.outcomes import outcome_table
from multicard.results.results import Results
from multicard.results.tables import SCHEMAS
from multicard.runs.page import page as record_page
from multicard.trace.tables import ACTIVITIES

FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src"
EXAMPLES = [
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCES.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_every_outcome_reason_and_column_is_documented() -> None:
    words = {*OUTCOMES, *WORDINGS, *STEP_COLUMNS, *EPOCH_COLUMNS}
    words |= {*ACTIVITIES, *(name for activity in ACTIVITIES.values() for name in activity.schema.names)}
    judged = judge_papers(Results.joined([]))
    words |= {*claims_table(judged), *table_of_tests(judged)}
    words |= {*SCHEMAS["runs_info"].names, *outcome_table([], {})}
    assert {word for word in words if f"`{word}`" not in FILES} == set()


def test_every_column_of_measures_but_parameters_has_a_definition() -> None:
    defined = re.findall(r"^\| `(\w+)` \|", measures_page(), re.M)
    assert set(defined) == set(add_scaling(runs_table([]))) - set(PARAMETERS)


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90 and max(len(line) for line in lines if "→" not in line) <= 120


def test_examples_in_docstrings_are_true() -> None:
    assert [module for module in EXAMPLES if doctest.testmod(import_module(module)).failed] == []


def test_the_page_says_of_each_figure_what_its_catalog_does() -> None:
    figures = page()
    for entry in FIGURES.values():
        drawing = load_drawing(entry.name)
        [section] = re.findall(rf"^### `{entry.name}`\n\n(.*?)(?=^##)", figures, re.M | re.S)
        heading, caption = (" ".join(part.split()) for part in section.strip().split("\n\n"))
        assert heading.startswith(f"**{drawing.question}**")
        assert entry.needs in heading.replace("`", "")
        assert (drawing.paper_figure or "") in heading
        assert caption == drawing.caption


@pytest.mark.parametrize(
    ("name", "made", "command"),
    [
        ("run-record", record_page, "python -m multicard.runs > docs/run-record.md"),
        ("measures", measures_page, "python -m multicard.answers > docs/measures.md"),
        ("figures", page, "python -m multicard.figures > docs/figures.md"),
        ("parameters", lambda: f"{parameters_page()}\n", "python -m multicard.config --docs > docs/parameters.md"),
    ],
)
def test_pages_that_follow_from_the_code_are_in_the_repository_as_it_makes_them(
    name: str, made: Callable[[], str], command: str
) -> None:
    """So that links to them lead somewhere in a clone and on a forge, too."""
    assert (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") == made(), f"run: {command}"


def test_every_test_that_the_definitions_name_is_there() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", (ROOT / "docs/statistics.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_targets_and_markers_that_contributing_names_are_there() -> None:
    """Paths, links and the other commands of the page are checked by docs/test_pages.py."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^    |`)make ([\w./-]+)", text, re.M))
    assert {".venv/dev-ready", "lint", "test-all"} < targets
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, check=True)
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in options["markers"]}
    assert {"slow", "rare"} <= set(re.findall(r"pytest\.mark\.(\w+)", text)) <= markers


def test_hooks_of_commits_run_the_programs_of_make_lint() -> None:
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook["entry"].removesuffix(" --force-exclude") for repo in settings["repos"] for hook in repo["hooks"]]
    lint = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [hook for hook in hooks if f"{hook}\n" not in lint and f"{hook} --check" not in lint] == []
    assert len(hooks) == len(re.findall(r"^\.venv/bin/(?:ruff|mypy|snakefmt)\b", lint, re.M))
