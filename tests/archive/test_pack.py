"""An archive holds the runs, and nothing that names people, machines or places."""

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from limits.machine_record import record as machine_record
from multicard.analysis.machine_limits import MachineLimits
from multicard.analysis.measures import measure_run
from multicard.archive.pack import pack
from multicard.archive.unpack import read_manifest, unpack
from multicard.core.errors import UserError
from multicard.core.files import write_json
from recorded_runs import add_run, experiment

HOST, USER, TOKEN, VARIABLE = "zeta9.planted.example", "uplanted", "hf_PlantedPlantedPlanted1", "planted-by-variable"
PLANTED = (HOST, "zeta9", USER, TOKEN, VARIABLE, "planted", "/srv/")


def contents(path: Path) -> dict[str, bytes]:
    """Members of an archive as any tool reads them."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def plant(record: dict[str, Any]) -> None:
    home = f"/home/{USER}/jobs"
    record["host"]["name"] = HOST
    record["command"] += [f"{home}/train.py", "--to", "/srv/planted/out", f"API_TOKEN={TOKEN}"]
    record["outcome"] = "failed"
    record["reason"] = {"code": "error", "rank": 0, "message": f"ValueError: {TOKEN} was not let in by {HOST}"}
    record["profiler"]["why"] = f"no nsys at {home}/bin of {USER}"
    record["profiler"]["trace_missing"] = f"{home}/x.sqlite is damaged on {HOST}"
    record["ranks"][0]["binding"]["note"] = f"no node of {HOST.upper()}"
    record["ranks"][0]["energy"][0]["reason"] = f"no meter, says {USER}@{HOST}"


def test_planted_secrets_are_in_no_member(extracted_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_SECRET", VARIABLE)
    folder = add_run(extracted_run, tmp_path / "results", change=plant)
    (folder / "log.txt").write_text(f"{TOKEN} {HOST}")
    path = folder / "activity" / "ranges.parquet"
    table = pq.read_table(path)
    names = [f"/srv/planted/a.py(3): step of {USER} on {HOST} {VARIABLE} {TOKEN}"] * table.num_rows
    assert names
    at = table.schema.get_field_index("range")
    noted = table.set_column(at, "range", pa.array(names)).replace_schema_metadata({"made by": USER, "multicard": HOST})
    pq.write_table(noted, path)
    index = json.loads((folder / "activity/tables.json").read_text())
    index["tables"]["kernels"]["absent"] = f"/home/{USER}/t.sqlite: not a readable SQLite database"
    (folder / "activity/tables.json").write_text(json.dumps(index))

    secret = experiment(tmp_path / "results")
    for suffix in (".tar.gz", ".zip"):
        out = tmp_path / f"out{suffix}"
        pack(secret, out)
        members = contents(out)
        for name, content in members.items():
            if name.endswith(".parquet"):
                table = pq.read_table(pa.BufferReader(content))
                content = repr((table.to_pylist(), table.schema.metadata)).encode() + content
            for word in PLANTED:
                assert word.encode() not in content.lower(), (name, word)
        assert not [name for name in members if "log" in name or "trace" in name]
        record = json.loads(next(content for name, content in members.items() if name.endswith("run.json")))
        assert record["host"]["name"] == "host-1"
        assert record["reason"] == {"code": "error", "rank": 0, "message": "ValueError: text removed"}
        assert record["hardware"] == json.loads((folder / "run.json").read_text())["hardware"]
        assert record["versions"] == json.loads((folder / "run.json").read_text())["versions"]


def test_limits_of_machines_come_along_without_names(
    extracted_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_SECRET", VARIABLE)
    add_run(extracted_run, tmp_path / "results", change=plant)
    limits = machine_record(HOST)
    limits["parts"][0]["problem"] = f"no end of /home/{USER}/x on {HOST}"
    limits["links"]["problem"] = f"{USER} may not ask"
    limits["variables"] = {"NCCL_TOPO_FILE": f"/home/{USER}/topology.xml", "NCCL_NET": VARIABLE}
    write_json(tmp_path / "results/machine/zeta9-cuda.json", limits)
    pack(experiment(tmp_path / "results"), tmp_path / "out.tar.gz")
    content = contents(tmp_path / "out.tar.gz")["machine/1-cuda.json"]
    for word in PLANTED:
        assert word.encode() not in content.lower(), word
    kept, without = json.loads(content), ("host", "links", "numa", "variables", "parts")
    assert kept["host"]["name"] == "host-1"
    assert kept["links"]["nvidia_smi"] == limits["links"]["nvidia_smi"]
    assert [part["rows"] for part in kept["parts"]] == [part["rows"] for part in _as_read(limits)["parts"]]
    assert {key: kept[key] for key in limits if key not in without} == {
        key: value for key, value in limits.items() if key not in without
    }


def _as_read(limits: dict[str, Any]) -> dict[str, Any]:
    return MachineLimits.model_validate(limits).model_dump(mode="json")


def test_equal_runs_give_equal_bytes(recorded_results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(recorded_results, copy, copy_function=shutil.copy)  # with other times
    for suffix in (".tar.gz", ".zip"):
        once, again = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        pack(experiment(recorded_results, 2), once)
        pack(experiment(copy, 2), again)
        assert once.read_bytes() == again.read_bytes()


def test_the_measures_of_a_run_are_those_of_its_recording(
    recorded_results: Path, recorded_archive: Path, tmp_path: Path
) -> None:
    unpack(recorded_archive, tmp_path)
    for folder in (recorded_results / "runs").iterdir():
        mine, theirs = measure_run(folder), measure_run(tmp_path / folder.name)
        pd.testing.assert_series_equal(pd.Series(mine), pd.Series(theirs))
        for table in (folder / "activity").glob("*.parquet"):
            assert pq.read_table(table).equals(pq.read_table(tmp_path / folder.name / "activity" / table.name))


def test_the_manifest_says_what_is_there_and_how_it_was_configured(recorded_archive: Path) -> None:
    manifest = read_manifest(recorded_archive)
    assert [run.parameters["repeat"] for run in manifest.runs] == [1, 2]
    assert manifest.experiment["scenarios"]["recorded"]["question"] == "What is recorded?"
    assert "results" not in manifest.experiment
    assert {file.name for file in manifest.files} | {"manifest.json"} == set(contents(recorded_archive))


def test_incomplete_runs_and_those_of_other_experiments_are_skipped(
    recorded_results: Path, extracted_run: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "results"
    shutil.copytree(recorded_results, mine)
    lacking = add_run(extracted_run, mine, repeat=3)
    (lacking / "activity" / "tables.json").unlink()
    add_run(extracted_run, mine, repeat=4)
    packed = pack(experiment(mine, 3), tmp_path / "x.zip")
    assert packed.incomplete == [lacking.name]
    assert [run.parameters["repeat"] for run in read_manifest(tmp_path / "x.zip").runs] == [1, 2]


def refused(folder: Path, out: Path, **keys: Any) -> str:
    with pytest.raises(UserError) as stopped:
        pack(experiment(folder, **keys), out)
    [line] = str(stopped.value).splitlines()
    assert not out.is_file()
    return line


def test_a_data_set_that_names_somebody_is_refused(
    recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", USER)
    datasets = {"digits": {"source": "digits"}, f"{USER}-x": {"source": "digits"}}
    assert f"datasets.{USER}-x: holds the name '{USER}'" in refused(
        recorded_results, tmp_path / "x.zip", datasets=datasets
    )


def test_what_cannot_be_archived_is_one_line(extracted_run: Path, recorded_results: Path, tmp_path: Path) -> None:
    assert "x.rar: expected a name that ends in .tar.gz or .zip" in refused(recorded_results, tmp_path / "x.rar")
    assert "found no complete run of the experiment" in refused(tmp_path / "none", tmp_path / "x.zip")
    assert "cannot be written" in refused(recorded_results, Path("/proc/x.zip"))

    folder = add_run(extracted_run, tmp_path / "a", change=lambda record: record.update(run="other"))
    folder.rename(folder.parent / add_run(extracted_run, tmp_path / "b").name)
    assert "found the run other, expected vision_digits" in refused(tmp_path / "a", tmp_path / "x.zip")

    record = next((tmp_path / "b").glob("runs/*/run.json"))
    record.write_text('{"run"')
    assert "run.json: not the record of a run" in refused(tmp_path / "b", tmp_path / "x.zip")

    folder = add_run(extracted_run, tmp_path / "c")
    (folder / "steps.csv").write_text((folder / "steps.csv").read_text() + "0,1,some words\n")
    assert "steps.csv: found a column or text that multicard does not write" in refused(
        tmp_path / "c", tmp_path / "x.zip"
    )

    folder = add_run(extracted_run, tmp_path / "d")
    (folder / "activity" / "phases.parquet").write_bytes(b"PAR1 no")
    assert "phases.parquet: not a readable Parquet file" in refused(tmp_path / "d", tmp_path / "x.zip")
