"""A table whose content was altered is refused by whatever reads it, though it may still be one that can be read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import refusal
from multicard.answers.outputs import write_scenario
from multicard.api.results import read_results
from multicard.config.load import check
from multicard.core.files import read_json, write_json
from multicard.core.layout import ARCHIVED_TABLES
from multicard.report.results import ScenarioPlan, read_contents
from multicard.results.gathering import tables_of
from multicard.results.run_files import RunFiles
from multicard.results.tables import ScenarioTables
from multicard.share.pack import pack
from multicard.share.whole import check_files
from multicard.trace.extract import write_tables
from multicard.trace.tables import ACTIVITIES, ActivityTables
from script_runs import configuration, parameters_of_all, write_script_run

CONFIG = configuration(vary={"devices": [1], "args": {"batch_size": [32], "amp": ["none"]}}, figures=["step_breakdown"])
PHASES = [
    {"report": "report", "rank": 0, "process": 7, "step": step, "phase": phase, "start_s": start, "duration_s": 0.1}
    for step in range(1, 5)
    for phase, start in (("step", 0.25 * step), ("forward", 0.25 * step), ("backward", 0.25 * step + 0.1))
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose trace showed phases of steps."""
    [p] = parameters_of_all(CONFIG)
    folder = write_script_run(tmp_path / "results", p, 0.25)
    absent = dict.fromkeys(ACTIVITIES, "not recorded")
    write_tables(ActivityTables({"phases": PHASES}, absent), folder, "none")
    return folder


def test_every_altered_bit_of_a_table_of_activity_is_found(run: Path) -> None:
    path = run / "activity" / "phases.parquet"
    whole = path.read_bytes()
    readers: tuple[Callable[[], object], ...] = (
        lambda: RunFiles(run).activity("phases", ["duration_s"]),
        lambda: check_files(RunFiles(run), traced=True),
    )
    for read in readers:
        read()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        for read in readers:
            assert refusal(read).startswith(f"{path}: cut or altered since it was made; delete "), at


def test_status_finds_an_altered_or_lost_table_that_no_measure_needs(run: Path) -> None:
    path = run / "activity" / "kernels.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(lambda: check_files(RunFiles(run), traced=True)).startswith(f"{path}: cut or altered")
    path.unlink()
    assert refusal(lambda: check_files(RunFiles(run), traced=True)).startswith(f"{path}: missing; delete ")


def test_status_finds_an_altered_record_by_its_second_copy(run: Path) -> None:
    record = run / "run.json"
    (run / ".outcome").mkdir()
    shutil.copy(record, run / ".outcome")
    check_files(RunFiles(run), traced=True)
    record.write_text(record.read_text().replace('"wall_time_s": 60.0', '"wall_time_s": 61.0'))
    assert refusal(lambda: check_files(RunFiles(run), traced=True)).startswith(
        f"{record}: altered since the run wrote it"
    )


@pytest.mark.parametrize("name", ARCHIVED_TABLES)
def test_an_altered_table_of_a_run_is_refused_by_status_measures_and_archive(run: Path, name: str) -> None:
    path = run / "activity" / f"{name}.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    experiment = check({"results": str(run.parents[1]), **CONFIG}, "mine.yaml", outside=False)
    readers = [
        lambda: check_files(RunFiles(run), traced=True),
        lambda: tables_of(run),
        lambda: pack(experiment, run.parents[2] / "all.tar.gz"),
    ]
    for read in readers:
        assert refusal(read).startswith(f"{path}: cut or altered since it was made")


@pytest.mark.parametrize(
    ("files", "said"), [("x", "files: "), ([{"name": "phases.parquet"}], "files.0.bytes: "), ([7], "files.0: ")]
)
def test_a_damaged_list_of_checksums_is_one_line(run: Path, files: object, said: str) -> None:
    index = run / "activity" / "tables.json"
    write_json(index, read_json(index) | {"files": files})
    assert refusal(lambda: RunFiles(run).activity("phases", ["step"])).startswith(f"{index}: {said}")


@pytest.mark.parametrize("name", ["runs.csv", "measures.csv", "steps.parquet", "timeline.parquet"])
def test_an_altered_table_of_a_scenario_is_refused_by_every_reader(run: Path, name: str) -> None:
    results = run.parents[1]
    write_scenario([run], {"other": "needs a GPU"}, results / "scenarios" / "ours")
    path = results / "scenarios" / "ours" / name
    content = path.read_bytes()
    at = content.index(b"needs") if name == "runs.csv" else content.rindex(b"1") if path.suffix == ".csv" else 9
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    tables = ScenarioTables(path.parent)
    readers: dict[str, list[Callable[[], object]]] = {
        "runs.csv": [
            lambda: read_results(results).runs,
            lambda: read_results(results).scenario("ours").runs,
            lambda: repr(read_results(results).scenario("ours")),
            lambda: tables.reasons_not_run,
            lambda: read_contents(results, {"ours": ScenarioPlan()}),
        ],
        "measures.csv": [
            lambda: read_results(results).measures,
            lambda: tables.measures,
            lambda: read_contents(results, {"ours": ScenarioPlan()}),
        ],
        "steps.parquet": [lambda: read_results(results).steps, lambda: tables.table("steps")],
        "timeline.parquet": [lambda: read_results(results).scenario()["timeline"], lambda: tables.table("timeline")],
    }
    for read in readers[name]:
        assert refusal(read).startswith(f"{path}: cut or altered since it was made")
