"""Every cell of the table of frameworks is held by a test, or says that nobody tried it."""

import re

import test_frameworks

from conftest import ROOT

PAGE = ROOT / "docs" / "own-training-frameworks.md"
PUBLISHED = (ROOT / "tests" / "record" / "test_observe_published.py").read_text(encoding="utf-8")
NANOGPT = "nanoGPT, python"
OTHERS = {
    "torchtune, command": hasattr(test_frameworks, "test_torchtune_by_its_own_command"),
    "pytorch/examples imagenet, python": "def test_imagenet_of_pytorchs_examples(" in PUBLISHED,
    NANOGPT: "def test_nanogpt(" in PUBLISHED,
}


def rows() -> dict[str, list[str]]:
    """Cells of the table by framework and launcher."""
    [table] = re.findall(
        r"^\| Framework \| Launcher .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.M
    )
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {f"{framework}, {launcher}": others for framework, launcher, *others in cells}


def test_what_the_table_says_is_tested_or_untried() -> None:
    tested = test_frameworks.CASES.keys() | {name for name, is_tested in OTHERS.items() if is_tested}
    said = {row for row, cells in rows().items() if "untried" not in cells}
    assert said == tested
    assert all(rows()[name][1:] == ["yes"] * 4 for name in (*test_frameworks.CASES, *OTHERS) if name != NANOGPT)
    assert rows()[NANOGPT][1:] == ["yes", "backward, optimizer", "as stated", "yes"]
    assert all(set(cells[1:]) == {"untried"} for row, cells in rows().items() if row not in tested)


def test_numbers_of_devices_are_those_of_the_tests() -> None:
    assert {name: rows()[name][0] for name in test_frameworks.CASES} == {
        name: str(case.devices) for name, case in test_frameworks.CASES.items()
    }
