"""An archive holds the runs, and nothing that names people, machines or places."""

import json
import os
import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import refusal
from machine.machine_record import record as machine_record
from multicard.answers.outputs import write_scenario
from multicard.core.files import described, write_json
from multicard.core.layout import MEMORY_SNAPSHOT
from multicard.results.limits import MachineLimits
from multicard.results.measure import measure_run
from multicard.share.pack import pack
from multicard.share.unpack import unpack
from recorded_runs import add_run, experiment, manifest_of

pytestmark = pytest.mark.slow

HOST, USER, VARIABLE = "zeta9.planted.example", "uplanted", "planted-by-variable"
LACKING = "2 of 30 kernel launches have no kernel: 2 failed (error 700); 1 of 3 steps, held in part, are left out"
# Columns of gathered tables whose texts an archive leaves out: names of the user's code and classes. In all other
# tables these are the names of traces.
LEFT_OUT = {
    "host_work": ("site",),
    "code_lines": ("site", "function", "called"),
    "loaders": ("kind", "sampler"),
}


def contents(path: Path) -> dict[str, bytes]:
    """Members of an archive as any tool reads them."""
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def plant(value: Any, canary: str, keys: bool = True) -> Any:
    """JSON with a text in the place of every text and, with `keys`, as one more key of every object but of numbers."""
    if isinstance(value, dict):
        more = {canary: canary} if keys and any(isinstance(entry, str) for entry in value.values()) else {}
        return {name: plant(entry, canary, keys) for name, entry in value.items()} | more
    if isinstance(value, list):
        planted = [plant(entry, canary, keys) for entry in value]
        return planted + [canary] * any(isinstance(entry, str) for entry in value)
    return canary if isinstance(value, str) else value


@pytest.mark.parametrize(
    "canary", [USER, HOST, f"{USER}@{HOST}", f"hf_{'Planted' * 3}1", f"/home/{USER}/x", f"Error: {USER} on {HOST}"]
)
def test_no_text_of_a_record_or_a_table_leaves_that_is_not_of_a_listed_form(
    extracted_run: Path, tmp_path: Path, canary: str
) -> None:
    folder = add_run(extracted_run, tmp_path / "results")
    for name in ("log.txt", MEMORY_SNAPSHOT):
        (folder / name).write_text(canary)
    record = json.loads((folder / "run.json").read_text())
    gpu = {"name": "NVIDIA H100", "capability": "9.0", "memory_bytes": 80_000_000_000}
    record["hardware"]["gpus"], record["variables"] = [gpu], {"NCCL_DEBUG": "INFO"}
    record["reason"] = {"code": "error", "node": "n1", "message": "", "unreported": [{"rank": 1, "node": "n2"}]}
    record["script"] = {"file": "train.py", "sha256": "ab" * 32, "commit": "1", "modified": True}
    record["model"] = {"model": "m", "architecture": "a", "files": record["data"]["files"]}
    record["nodes"] = [{"name": "n", "host": record["host"], "hardware": record["hardware"], "ranks": [0]}]
    record["ranks"][0] |= {"gpus": [{"name": "NVIDIA H100", "uuid": "GPU-1"}]}
    record["ranks"][0]["observed"] = {"loaders": [{"kind": "DataLoader", "distinct": True}], "optimizers": ["Adam"]}
    state = {"clock_reasons": ["gpu_idle"]}
    record["ranks"][0]["gpu_conditions"] = [{"before": state, "after": state, "clock_reasons": ["gpu_idle"]}]
    planted = plant(record, canary, keys=False)
    planted["versions"][canary] = planted["variables"][canary] = canary
    # These name the run; what users write themselves is in another test.
    kept = {name: record[name] for name in ("run", "parameters", "outcome")}
    planted["data"] |= {"dataset": "digits", "source": "digits"}
    planted["model"] |= {"model": "tiny", "architecture": "tiny"}
    planted["profiler"]["used"], planted["files"] = "kineto", record["files"]
    # Anywhere else another key is refused.
    (folder / "run.json").write_text(json.dumps(plant(record, canary) | kept))
    assert refused(tmp_path / "results", tmp_path / "out.tar.gz").endswith(": unknown key")
    (folder / "run.json").write_text(json.dumps(planted | kept))
    for path in (folder / "activity").glob("*.parquet"):
        schema = pq.read_schema(path)
        texts = {field.name for field in schema if pa.types.is_string(field.type)}
        rows = [{name: canary if name in texts else 1 for name in schema.names}] * 3
        table = pa.Table.from_pylist(rows, schema).replace_schema_metadata({canary: canary})
        pq.write_table(table, path)
    index = json.loads((folder / "activity/tables.json").read_text())
    index["tables"]["kernel_classes"]["absent"] = canary
    files = [described(path) for path in (folder / "activity").glob("*.parquet")]
    index = plant(index, canary) | {"files": files} | {"notices": [canary, f"{canary}: process 1: {LACKING}"]}
    (folder / "activity/tables.json").write_text(json.dumps(index))
    write_json(tmp_path / "results/machine/zeta9-cuda.json", plant_machine(canary))

    pack(experiment(tmp_path / "results"), tmp_path / "out.tar.gz")
    for name, content in contents(tmp_path / "out.tar.gz").items():
        if name.endswith(".parquet"):
            table = pq.read_table(pa.BufferReader(content))
            content = repr((table.to_pylist(), table.schema.metadata)).encode() + content
        assert b"planted" not in content.lower(), name
        assert not name.endswith(MEMORY_SNAPSHOT)
        if name.endswith("tables.json"):
            assert json.loads(content)["notices"] == [f"process 1: {LACKING}"]


def plant_machine(canary: str) -> dict[str, Any]:
    """Limits of a machine with a text in the place of every text that may be another one."""
    limits = machine_record(canary)
    named = {"device", "part", "measure"}

    def planted(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: planted(entry, key) for key, entry in value.items()}
        if isinstance(value, list):
            return [planted(entry, name) for entry in value]
        return canary if isinstance(value, str) and name not in named else value

    parameters = [part.get("parameters") for part in limits["parts"]]
    limits = planted(limits)
    for part, own in zip(limits["parts"], parameters, strict=True):
        part |= {"parameters": own} if own else {}
    return limits | {"variables": {"NCCL_TOPO_FILE": canary}}


def test_keys_phases_parameters_and_limits_of_machines_stay_whatever_the_user_is_called(
    extracted_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "data")
    change = {"command": [f"/home/{os.environ['USER']}/train.py", "Sam"], "host": {"name": HOST}}
    folder = add_run(extracted_run, tmp_path / "results", change=lambda record: record.update(change))
    limits = machine_record(HOST) | {"variables": {"NCCL_TOPO_FILE": f"/home/{USER}/x.xml", "NCCL_NET": VARIABLE}}
    write_json(tmp_path / "results/machine/zeta9-cuda.json", limits)
    pack(experiment(tmp_path / "results"), tmp_path / "out.tar.gz")
    unpack(tmp_path / "out.tar.gz", tmp_path)
    record, kept = (json.loads((each / "run.json").read_text()) for each in (folder, tmp_path / folder.name))
    for entry in record["data"]["files"]:
        del entry["name"]
    for name in ("run", "parameters", "data", "hardware", "versions"):
        assert kept[name] == record[name], name
    assert "command" not in kept
    phases = (pq.read_table(each / "activity/phases.parquet")["phase"] for each in (folder, tmp_path / folder.name))
    assert next(phases).equals(next(phases))
    kept = json.loads(contents(tmp_path / "out.tar.gz")["machine/1-cuda.json"])
    assert kept["host"]["name"] == "host-1"
    assert not any(word in json.dumps(kept) for word in (USER, HOST, VARIABLE))
    whole = MachineLimits.model_validate_json(json.dumps(limits)).model_dump(mode="json", exclude_unset=True)
    assert [part["rows"] for part in kept["parts"]] == [part["rows"] for part in whole["parts"]]


def test_limits_of_a_machine_are_packed_without_a_warning(extracted_run: Path, tmp_path: Path) -> None:
    add_run(extracted_run, tmp_path / "results")
    write_json(tmp_path / "results/machine/zeta9-cuda.json", machine_record(HOST))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack(experiment(tmp_path / "results"), tmp_path / "out.tar.gz")
    assert "machine/1-cuda.json" in contents(tmp_path / "out.tar.gz")


def test_equal_runs_give_equal_bytes(recorded_results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(recorded_results, copy, copy_function=shutil.copy)  # with other times
    once, again = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    pack(experiment(recorded_results, 2), once)
    pack(experiment(copy, 2), again)
    assert once.read_bytes() == again.read_bytes()


def test_measures_and_tables_of_an_archive_are_those_of_the_runs(
    recorded_results: Path, recorded_archive: Path, tmp_path: Path
) -> None:
    manifest = manifest_of(recorded_archive)
    assert [run.rpartition("_")[2] for run in manifest.runs] == ["r1", "r2"]
    assert manifest.experiment["scenarios"]["recorded"]["question"] == "What is recorded?"
    assert "results" not in manifest.experiment
    assert {file.name for file in manifest.files} | {"manifest.json"} == set(contents(recorded_archive))
    (tmp_path / "runs").mkdir()
    unpack(recorded_archive, tmp_path / "runs")
    folders = sorted((recorded_results / "runs").iterdir())
    for folder in folders:
        mine, theirs = measure_run(folder), measure_run(tmp_path / "runs" / folder.name)
        pd.testing.assert_series_equal(pd.Series(mine), pd.Series(theirs))
    for name, runs in (("mine", folders), ("theirs", sorted((tmp_path / "runs").iterdir()))):
        write_scenario(runs, {}, tmp_path / name / "scenario")
    there = tmp_path / "theirs" / "scenario"
    for path in (tmp_path / "mine" / "scenario").iterdir():
        if path.suffix == ".parquet":
            mine, theirs = (pq.read_table(folder / path.name) for folder in (path.parent, there))
            kept = [column for column in mine.column_names if column not in LEFT_OUT.get(path.stem, ("report",))]
            assert mine.select(kept).equals(theirs.select(kept)), path.name
        elif path.name not in ("runs.csv", "tables.json"):  # the first names hosts, the second has checksums of all
            assert path.read_bytes() == (there / path.name).read_bytes(), path.name


def test_incomplete_runs_and_those_of_other_experiments_are_skipped(
    recorded_results: Path, extracted_run: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "results"
    shutil.copytree(recorded_results, mine)
    lacking = add_run(extracted_run, mine, repeat=3)
    (lacking / "activity" / "tables.json").unlink()
    add_run(extracted_run, mine, repeat=4)
    packed = pack(experiment(mine, 3), tmp_path / "x.tar.gz")
    assert packed.incomplete == [lacking / "activity" / "tables.json"]
    assert [run.rpartition("_")[2] for run in manifest_of(tmp_path / "x.tar.gz").runs] == ["r1", "r2"]


def refused(folder: Path, out: Path, **keys: Any) -> str:
    line = refusal(lambda: pack(experiment(folder, **keys), out))
    assert not out.is_file()
    return line


def test_names_in_what_the_user_wrote_are_told_not_changed(
    recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", USER)
    datasets = {"digits": {"source": "digits"}, f"{USER}-x": {"source": "digits"}}
    packed = pack(experiment(recorded_results, datasets=datasets), tmp_path / "x.tar.gz")
    assert packed.names == [USER]
    assert f"{USER}-x" in manifest_of(tmp_path / "x.tar.gz").experiment["datasets"]
    assert pack(experiment(recorded_results), tmp_path / "y.tar.gz").names == []


def test_what_cannot_be_archived_is_one_line(extracted_run: Path, recorded_results: Path, tmp_path: Path) -> None:
    assert "x.rar: expected a name that ends in .tar.gz" in refused(recorded_results, tmp_path / "x.rar")
    assert "found no complete run of the experiment" in refused(tmp_path / "none", tmp_path / "x.tar.gz")
    assert "cannot be written" in refused(recorded_results, Path("/proc/x.tar.gz"))

    folder = add_run(extracted_run, tmp_path / "a", change=lambda record: record.update(run="other"))
    folder.rename(folder.parent / add_run(extracted_run, tmp_path / "b").name)
    assert "run: found 'other', expected 'vision_digits" in refused(tmp_path / "a", tmp_path / "x.tar.gz")

    record = next((tmp_path / "b").glob("runs/*/run.json"))
    record.write_text('{"run"')
    assert "run.json: does not parse as JSON: " in refused(tmp_path / "b", tmp_path / "x.tar.gz")

    folder = add_run(extracted_run, tmp_path / "c", change=lambda record: record.pop("files"))
    (folder / "steps.csv").write_text((folder / "steps.csv").read_text() + "0,1,some words\n")
    said = refused(tmp_path / "c", tmp_path / "x.tar.gz")
    assert "steps.csv: found columns or text that multicard does not write" in said

    folder = add_run(extracted_run, tmp_path / "e", change=lambda record: record.pop("files"))
    pd.read_csv(folder / "steps.csv").drop(columns="tokens").to_csv(folder / "steps.csv", index=False)
    said = refused(tmp_path / "e", tmp_path / "x.tar.gz")
    assert "steps.csv: found columns or text that multicard does not write" in said

    folder = add_run(extracted_run, tmp_path / "d")
    (folder / "activity" / "phases.parquet").write_bytes(b"PAR1 no")
    assert "phases.parquet: cut or altered since it was made" in refused(tmp_path / "d", tmp_path / "x.tar.gz")
