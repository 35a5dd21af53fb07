"""The page of public captures is what multicard says of them, and agrees with what their authors said."""

import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from public_captures import CAPTURES, DOCS, PAGE, PICTURES, digest, page, read, shown

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))
# Differences that the page explains: their span is that of kernels, and the pair's rest is the span without two parts.
EXPLAINED_MS = {"change of the rest (theirs: launch overhead and idle)": 0.07, "span (theirs: *step time*)": 0.07}


def compared() -> list[list[str]]:
    [section] = re.findall(
        r"^\| both GPUs together .*\n\| --- .*\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.M
    )
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines()]


@pytest.mark.parametrize("row", compared(), ids=lambda row: row[0].strip())
def test_multicard_and_the_authors_agree_to_their_last_digit(row: list[str]) -> None:
    what, *both = row
    theirs, ours = ([float(number) for number in re.findall(r"[-+]?[\d.]+", text.replace("−", "-"))] for text in both)
    assert len(theirs) == len(ours) > 0
    # 0.01 ms: what they print was added up from rounded numbers.
    allowed = EXPLAINED_MS.get(what, 0.0101 if "ms" in both[0] else 0.0)
    assert all(abs(a - b) <= allowed for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("file", PICTURES.values())
def test_pictures_are_small_shown_and_have_a_digest(file: str) -> None:
    assert f"](assets/{file})" in PAGE.read_text(encoding="utf-8")
    assert (DOCS / "assets" / file).stat().st_size < 100_000
    assert re.fullmatch(r"[0-9a-f]{64}", Image.open(DOCS / "assets" / file).text["Description"])


@pytest.mark.slow
@pytest.mark.skipif(
    not all((FOLDER / capture.path).is_file() for capture in CAPTURES.values()),
    reason="set MULTICARD_TRACES to a folder with the captures that docs/public-captures.md names",
)
def test_page_and_pictures_are_what_multicard_says_of_the_captures() -> None:
    traces = read(FOLDER)
    assert page(traces) == PAGE.read_text(encoding="utf-8"), "python benchmarks/public_captures.py --traces FOLDER"
    for name, file in PICTURES.items():
        assert Image.open(DOCS / "assets" / file).text["Description"] == digest(shown(name, traces)), file
