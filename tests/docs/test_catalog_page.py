"""The page about figures and tables has what the code has, in the code's own words."""

import re

import pandas as pd
import pytest

from conftest import ROOT
from multicard.analysis.claims import COLUMNS, COMPARISON_COLUMNS
from multicard.analysis.measures import outcome_table
from multicard.analysis.scenario_tables import SCHEMAS
from multicard.analysis.tables import COSTS, scaling_models_table, speedup_table
from multicard.experiment.config import FIGURE_AXIS, FIGURE_WORKLOAD
from multicard.figures.captions import CAPTIONS

FIGURES, FILES = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("figures.md", "files.md"))
SECTIONS = dict(re.findall(r"^### `(\w+)`\n\n(.*?)(?=^##)", FIGURES, re.M | re.S))


def test_the_page_has_the_figures_of_the_catalog_in_its_order() -> None:
    assert list(SECTIONS) == list(CAPTIONS)


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_figure_is_described_in_the_words_of_its_caption_with_what_it_does_not_say(name: str) -> None:
    heading, caption, limits = (" ".join(part.split()) for part in SECTIONS[name].strip().split("\n\n"))
    words = CAPTIONS[name]
    needs = [f"`vary.{FIGURE_AXIS[name]}`"] if name in FIGURE_AXIS else []
    needs += [f"workload `{FIGURE_WORKLOAD[name]}`"] if name in FIGURE_WORKLOAD else []
    answered = f" Answers {words.answers}." if words.answers else ""
    needed = f" Needs {', '.join(needs)}." if needs else ""
    assert heading == f"**{words.question}**{answered}{needed}"
    assert caption == words.caption
    assert limits.startswith("*What it does not say:* ")


def test_every_column_of_the_written_tables_is_described() -> None:
    rows = [
        {"workload": "vision", "strategy": "ddp-ds", "scaling": scaling, "devices": devices, "outcome": "completed"}
        | {"iteration_time_s": 1.0 / devices, "throughput_samples_per_s": 90.0 * devices}
        for scaling in ("weak", "strong")
        for devices in (1, 2, 4)
    ]
    measures = pd.DataFrame(rows)
    columns = {
        *speedup_table(measures),
        *scaling_models_table(measures),
        *scaling_models_table(measures[:0]),
        *COSTS,
    } - {
        "strategy",
        "devices",
    }
    assert {"serial_share_error", "serial_fraction_low", "reason", "others"} <= columns
    assert {name for name in columns if f"`{name}`" not in FIGURES} == set()


@pytest.mark.parametrize("word", sorted({*COLUMNS, *COMPARISON_COLUMNS, *SCHEMAS["runs_info"].names}))
def test_every_column_of_claims_and_of_gathered_runs_is_described(word: str) -> None:
    assert f"`{word}`" in FILES


@pytest.mark.parametrize("word", list(outcome_table([], {})))
def test_every_column_of_outcomes_is_described(word: str) -> None:
    assert f"`{word}`" in FILES
