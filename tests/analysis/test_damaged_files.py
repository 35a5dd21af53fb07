"""A file that was cut is named in one line, wherever it is read; nothing is computed of what is left of it."""

import json
import shutil
from pathlib import Path

import pytest

from multicard.analysis.consistency import check_run
from multicard.analysis.measures import measure_run
from multicard.analysis.outputs import write_scenario
from multicard.analysis.scenario_tables import ScenarioTables, tables_of
from multicard.archive.pack import pack
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.report.results import read_results
from multicard.trace.extract import extract_run
from recorded_runs import add_run, experiment, write_configuration


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
    readers = [measure_run, tables_of, lambda _: pack(experiment(folder.parents[1]), folder / "x.zip")]
    for read in (*readers, check_run) if name == "steps.csv" else readers:
        with pytest.raises(UserError, match=f"{name}: cut or altered since the run wrote it") as stopped:
            read(folder)
        assert len(str(stopped.value).splitlines()) == 1


@pytest.mark.parametrize("how", ["half", "empty"])
@pytest.mark.parametrize("name", ["run.json", "steps.csv", "activity/tables.json"])
def test_status_names_a_damaged_file_and_goes_on(
    folder: Path, extracted_run: Path, name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(extracted_run, folder.parents[1], repeat=2)
    cut(folder / name, how)
    config = write_configuration(tmp_path / "config.yaml", folder.parents[1], 2)
    with pytest.raises(SystemExit) as ended:
        main(["status", "--config", str(config)])
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 damaged, 1 completed" in lines
    assert [line for line in lines if line.startswith(f"{folder / name}: ")]


@pytest.mark.parametrize("content", ["", '{"run', "{}", '{"tables": {}}', "[]"])
def test_a_damaged_index_of_activity_tables_is_one_line(folder: Path, content: str) -> None:
    (folder / "activity" / "tables.json").write_text(content)
    with pytest.raises(UserError, match=r"tables\.json: ") as stopped:
        pack(experiment(folder.parents[1]), folder / "x.zip")
    assert len(str(stopped.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["run.json", "trace/exported.json"])
def test_extracting_names_a_damaged_file(folder: Path, name: str) -> None:
    cut(folder / name, "half")
    with pytest.raises(UserError, match=f"{Path(name).name}: does not parse as JSON"):
        extract_run(folder)


@pytest.mark.parametrize("left", [0, 5, 40, 200, -40])
@pytest.mark.parametrize("name", ["measures.csv", "runs.csv"])
def test_a_cut_table_of_a_scenario_is_no_report(folder: Path, name: str, left: int, tmp_path: Path) -> None:
    results = folder.parents[1]
    write_scenario([folder], {}, results / "scenarios" / "recorded")
    path = results / "scenarios" / "recorded" / name
    assert read_results(results)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(UserError, match=f"{name}: cut or altered since it was made; delete it"):
        read_results(results)
    if name == "measures.csv":
        with pytest.raises(UserError, match=f"{name}: cut or altered"):
            _ = ScenarioTables(path.parent).measures


def test_tables_are_made_again_over_damaged_ones(folder: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "recorded"
    write_scenario([folder], {}, scenario)
    before = (scenario / "measures.csv").read_bytes()
    cut(scenario / "measures.csv", "half")
    cut(scenario / "tables.json", "half")
    write_scenario([folder], {}, scenario)
    assert (scenario / "measures.csv").read_bytes() == before


def test_a_record_lists_the_files_that_were_written_with_it(two_rank_run: Path, tmp_path: Path) -> None:
    entries = json.loads((two_rank_run / "run.json").read_text())["files"]
    assert [entry["name"] for entry in entries] == ["steps.csv", "epochs.csv"]
    copied = shutil.copytree(two_rank_run, tmp_path / "copied")
    assert [entry["bytes"] for entry in entries] == [(copied / entry["name"]).stat().st_size for entry in entries]
