"""The pages about figures and tables have what the code has, in the code's own words."""

import re

from conftest import ROOT
from multicard.analysis.runs.measures import outcome_table
from multicard.analysis.scenario_tables import SCHEMAS
from multicard.figures.__main__ import page
from multicard.figures.catalog import catalog
from multicard.papers.judge import COLUMNS, TEST_COLUMNS

FIGURES, FILES = page(), (ROOT / "docs" / "files.md").read_text(encoding="utf-8")


def test_the_page_says_of_each_figure_what_its_catalog_does() -> None:
    for entry in catalog().values():
        [section] = re.findall(rf"^### `{entry.name}`\n\n(.*?)(?=^##)", FIGURES, re.M | re.S)
        heading, caption = (" ".join(part.split()) for part in section.strip().split("\n\n"))
        assert heading.startswith(f"**{entry.question}**")
        assert all(need.removeprefix("workload ") in heading for need in entry.needs.split(" and "))
        assert (entry.answers or "") in heading
        assert caption == entry.caption


def test_every_column_of_the_written_tables_is_described() -> None:
    columns = {*COLUMNS, *TEST_COLUMNS, *SCHEMAS["runs_info"].names, *outcome_table([], {})}
    assert {name for name in columns if f"`{name}`" not in FILES} == set()


def test_every_test_that_the_definitions_name_is_there() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", (ROOT / "docs/measuring.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []
