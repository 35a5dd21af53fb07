"""The documents say what the code does."""

import subprocess
import sys

import pytest

from conftest import ROOT
from multicard.analysis.measures import MEASURES
from multicard.core.layout import EPOCH_COLUMNS, OUTCOMES, STEP_COLUMNS
from multicard.trace.tables import ACTIVITIES

FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
ACTIVITY_COLUMNS = {name for activity in ACTIVITIES.values() for name in activity.schema.names}


@pytest.mark.parametrize("word", sorted({*MEASURES, *STEP_COLUMNS, *EPOCH_COLUMNS, *OUTCOMES, *ACTIVITIES}))
def test_every_column_and_table_is_documented(word: str) -> None:
    assert f"`{word}`" in FILES


@pytest.mark.parametrize("word", sorted(ACTIVITY_COLUMNS))
def test_every_activity_column_is_documented(word: str) -> None:
    assert f"`{word}`" in FILES


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_examples_in_docstrings_are_true() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", "src/multicard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
