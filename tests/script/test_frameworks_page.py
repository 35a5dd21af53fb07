"""What the table of frameworks says of the cases of the tests."""

import re

from conftest import ROOT
from script.equipment import CASES, ON_GPUS

PAGE = ROOT / "docs" / "own-training.md"


def test_every_case_is_a_row_with_what_is_seen_of_it_and_where_it_was_tried() -> None:
    [table] = re.findall(
        r"^\| Framework \| Launcher .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.M
    )
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    rows = {f"{framework}, {launcher}": others for framework, launcher, *others in cells}
    for name, case in CASES.items():
        where = ", ".join(["CPU", *(["emulated GPU"] if name in ON_GPUS else [])])
        assert rows[name] == [str(case.devices), where, *["yes"] * 4], name
