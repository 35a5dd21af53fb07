"""The documents say what the code does."""

import doctest
from importlib import import_module

from conftest import ROOT
from multicard.analysis.runs.measures import MEASURES
from multicard.core.layout import EPOCH_COLUMNS, FROM_FIRST_RANK, OUTCOMES, STEP_COLUMNS
from multicard.core.reasons import WORDINGS
from multicard.launch.job import OF_EVERY_RANK
from multicard.trace.tables import ACTIVITIES

FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src"
EXAMPLES = [
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCES.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
ACTIVITY_COLUMNS = {name for activity in ACTIVITIES.values() for name in activity.schema.names}


def test_every_key_of_a_record_and_every_column_is_documented() -> None:
    words = {*FROM_FIRST_RANK, *OF_EVERY_RANK, *OUTCOMES, *WORDINGS, *MEASURES, *STEP_COLUMNS, *EPOCH_COLUMNS}
    assert {word for word in words | {*ACTIVITIES} | ACTIVITY_COLUMNS if f"`{word}`" not in FILES} == set()


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90 and max(len(line) for line in lines if "→" not in line) <= 120


def test_examples_in_docstrings_are_true() -> None:
    assert [module for module in EXAMPLES if doctest.testmod(import_module(module)).failed] == []
