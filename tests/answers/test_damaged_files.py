"""A file that was cut is named in one line, wherever it is read; nothing is computed of what is left of it."""

from pathlib import Path

import pytest

from conftest import refusal
from multicard.answers.outputs import write_scenario
from multicard.core.errors import UserError
from multicard.report.results import ScenarioPlan, read_contents
from multicard.results.gathering import tables_of
from multicard.results.measure import measure_run
from multicard.results.tables import ScenarioTables
from multicard.share.pack import pack
from recorded_runs import add_run, experiment

pytestmark = pytest.mark.slow  # the run that is damaged is a real one


@pytest.fixture
def folder(extracted_run: Path, tmp_path: Path) -> Path:
    return add_run(extracted_run, tmp_path / "results")


def cut(path: Path, how: str) -> None:
    content = path.read_text()
    left = {"empty": 0, "half": len(content) // 2, "line": content.rfind("\n", 0, -1) + 1}
    path.write_text(content[: left[how]])


@pytest.mark.parametrize("how", ["line", "half", "empty"])
@pytest.mark.parametrize("name", ["steps.csv", "epochs.csv"])
def test_a_cut_table_of_a_run_is_refused_by_all_that_read_it(folder: Path, name: str, how: str) -> None:
    cut(folder / name, how)
    readers = [measure_run, tables_of, lambda _: pack(experiment(folder.parents[1]), folder / "x.tar.gz")]
    for read in readers:
        assert f"{name}: cut or altered since the run wrote it" in refusal(lambda read=read: read(folder))


@pytest.mark.parametrize(("name", "left"), [("measures.csv", 0), ("measures.csv", -40), ("runs.csv", 200)])
def test_a_cut_table_of_a_scenario_is_no_report_and_is_made_again(folder: Path, name: str, left: int) -> None:
    results = folder.parents[1]
    path = results / "scenarios" / "recorded" / name
    write_scenario([folder], {}, path.parent)
    before = path.read_bytes()
    assert read_contents(results, {"recorded": ScenarioPlan()})
    path.write_bytes(before[:left])
    with pytest.raises(UserError, match=f"{name}: cut or altered since it was made; delete it"):
        read_contents(results, {"recorded": ScenarioPlan()})
    if name == "measures.csv":
        with pytest.raises(UserError, match=f"{name}: cut or altered"):
            _ = ScenarioTables(path.parent).measures
    cut(path.parent / "tables.json", "half")
    write_scenario([folder], {}, path.parent)
    assert path.read_bytes() == before
