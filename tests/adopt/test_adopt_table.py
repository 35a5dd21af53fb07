"""Tables of traces: what they may say, and the line that names what is wrong, before anything is written."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from adopted_traces import GEMM, UPDATE, trace
from console import multicard
from machine.faked_programs import put
from multicard.adopt.configuration import configuration
from multicard.adopt.table import read_table
from multicard.adopt.traced import gather
from multicard.config.load import check
from multicard.config.runs import distinct, expand
from multicard.core.errors import UserError
from synthetic import PID, kineto_trace, nsys_export
from synthetic import put as put_table

LENGTHS = [10.0] * 5


def table(folder: Path, *lines: str) -> Path:
    (folder / "ours.csv").write_text("\n".join(lines) + "\n")
    return folder / "ours.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    trace(folder / "one.sqlite", LENGTHS)
    trace(folder / "two.sqlite", LENGTHS, LENGTHS)
    trace(folder / "short.json", LENGTHS[:3])
    for rank in range(2):
        trace(folder / "ranks" / f"rank{rank}.json", LENGTHS)
    for rank, lengths in enumerate((LENGTHS, LENGTHS[:3])):
        trace(folder / "unequal" / f"rank{rank}.json", lengths)
    trace(folder / "mixed" / "rank0.json", LENGTHS)
    trace(folder / "mixed" / "rank1.sqlite", LENGTHS)
    nsys_export(folder / "idle.sqlite", cuda=False)
    kineto_trace(folder / "says1.json", rank=1)
    (folder / "no.sqlite").write_text("nothing")
    (folder / "other.json").write_text('{"traceEvents": 3}')
    (folder / "notes.txt").touch()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test, since nothing may be written there."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_columns_are_parameters_of_the_users_own_or_known(folder: Path) -> None:
    lines = ("Trace,devices,Batch Size,amp,samples_per_step,warmup-steps", "one.sqlite,1,32,bf16,64,2")
    runs = read_table(table(folder, *lines, "two.sqlite,2,32,bf16,,"))
    assert [run.id for run in runs] == [
        f"script_ours-230bb4_cuda{n}_launcher-traces_amp-bf16_batch_size-32_r1" for n in (1, 2)
    ]
    assert [run.parameters["args"] for run in runs] == [{"batch_size": 32, "amp": "bf16"}] * 2
    assert [(run.samples_per_step, run.warmup_steps) for run in runs] == [(64, 2), (None, 0)]


def test_files_of_one_run_have_a_pattern(folder: Path) -> None:
    for name in ("many/rank2.json", "many/rank10.json"):
        trace(folder / name, LENGTHS)
    [by_pattern] = read_table(table(folder, "trace,devices", "many/*.json,16"))
    assert [path.name for path in by_pattern.files] == ["rank2.json", "rank10.json"]


def test_the_configuration_expands_into_the_runs_and_what_has_no_trace(folder: Path) -> None:
    rows = ("one.sqlite,1,1,8", "two.sqlite,2,1,8", "short.json,1,2,8", "ranks/*.json,2,1,16")
    runs = read_table(table(folder, "trace,devices,repeat,batch", *rows))
    experiment = check(configuration(runs), "test")
    expanded = distinct(expand(experiment))
    assert {run.id for run in runs} < set(expanded)
    assert len(expanded) == 2 * 2 * 2  # devices, batch, repeats


FAULTS = [
    (["trace,devices", "none.sqlite,1"], "line 2: none.sqlite: no such file"),
    (["trace,devices", "none/*.json,1"], "line 2: none/*.json: no such file"),
    (["trace,devices", "notes.txt,1"], "line 2: notes.txt: is no trace by its name, expected *.nsys-rep, *.qdrep"),
    (["trace,devices", "one.sqlite,two"], "line 2: devices: found 'two', expected a whole number of at least 1"),
    (["trace,devices", "one.sqlite,0"], "line 2: devices: found '0', expected a whole number of at least 1"),
    (["trace,devices", "one.sqlite,"], "line 2: devices: is empty, expected the number of GPUs of the run"),
    (["trace,devices", "one.sqlite,9999"], "line 2: devices: found 9999, expected 1024 or less"),
    (["trace,devices,nodes", "two.sqlite,2,3"], "line 2: 2 devices cannot be shared equally by 3 nodes"),
    (["trace,devices", "one.sqlite,1", "short.json,1"], "line 3: is the same run as {table}, line 2"),
    (["trace,devices,lr", "one.sqlite,1,"], "line 2: lr: is empty; state the value of every row"),
    (["trace,devices,lr", "one.sqlite,1"], "line 2: found 2 cells, expected 3 as in the header"),
    (["trace,gpus", "one.sqlite,1"], "found no column devices"),
    (["trace,devices,lr,lr", "one.sqlite,1,1,1"], "the column lr is there twice"),
    (["trace,devices,β", "one.sqlite,1,1"], "the column 'β' is no name of a parameter"),
    (["trace,devices"], "holds no row below its header"),
    (["trace,devices", "no.sqlite,1"], "line 2: no.sqlite"),
    (["trace,devices", "other.json,1"], "line 2: other.json: no trace of PyTorch's profiler: "),
    (["trace,devices", "idle.sqlite,1"], "line 2: idle.sqlite: holds no kernel of a GPU, expected activity of a GPU"),
    (["trace,devices", "two.sqlite,1"], "line 2: its traces show 2 GPUs at work, and devices is 1"),
    (["trace,devices", "says1.json,1"], "line 2: holds a trace of rank 1, and devices is 1"),
    (["trace,devices", "unequal/*.json,2"], "line 2: ranks of unequal numbers of steps: 2 of rank 1, 4 of rank 0"),
    (["trace,devices", "mixed/*,2"], "line 2: mixed/*: are traces of several profilers, expected those of one run"),
    (["trace,devices,warmup_steps", "one.sqlite,1,4"], "line 2: warmup_steps: found 4, and the traces show 4 steps"),
    (["trace,devices,lr", "one.sqlite,1,1", "two.sqlite,2,1.0"], "line 3: states a value that another row writes"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_written(lines: Sequence[str], fault: str, folder: Path) -> None:
    path = table(folder, *lines)
    before = sorted(folder.rglob("*"))
    [line] = multicard("analyze", "--as-runs", "ours.csv").stderr.splitlines()
    assert fault.format(table=path.name) in line
    assert line.startswith("ours.csv")
    assert sorted(folder.rglob("*")) == before


def test_a_stated_range_that_is_not_there_is_said_in_a_line(folder: Path) -> None:
    _, [error] = gather(read_table(table(folder, "trace,devices", "one.sqlite,1")), None, "loop")
    assert error.endswith("line 2: found no range 'loop' in every rank; the most frequent are: none")


def test_every_row_that_is_wrong_has_a_line(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^\S+ours.csv, line 2: .*\n\S+ours.csv, line 3: [^\n]*$"):
        read_table(table(folder, "trace,devices", "none.sqlite,1", "one.sqlite,x", "two.sqlite,2"))


def test_values_that_combine_to_far_more_runs_than_there_are_traces_are_refused(folder: Path) -> None:
    for number in range(24):
        shutil.copyfile(folder / "one.sqlite", folder / f"n{number}.sqlite")
    rows = [f"n{number}.sqlite,1,{number},name{number}" for number in range(24)]
    runs = read_table(table(folder, "trace,devices,seed,label", *rows))
    with pytest.raises(UserError, match=r"seed, label combine to 576 runs, more than 500, and 24 have traces"):
        configuration(runs)


def test_steps_are_found_with_what_tells_them(folder: Path) -> None:
    trace(folder / "bare.json", LENGTHS, kernels=[(1, GEMM)])
    trace(folder / "one_of_four.json", LENGTHS, kernels=[(1, GEMM), (2, UPDATE)])
    rows = ("two.sqlite,2,1", "bare.json,1,", "one_of_four.json,4,")
    traced, errors = gather(read_table(table(folder, "trace,devices,warmup_steps", *rows)), folder / "made")
    assert errors == []
    assert [(each.devices, each.count if each.steps else None, each.source) for each in traced] == [
        (2, 3, "kernels of an optimizer"), (1, None, None), (1, 4, "kernels of an optimizer"),
    ]  # fmt: skip


def test_processes_that_share_a_gpu_are_one(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "two.sqlite")) as db:
        put_table(db, "TARGET_INFO_GPU", "id INT, name TEXT, uuid TEXT", [(0, "NVIDIA A100", "x"), (1, "Other", "y")])
        put_table(db, "TARGET_INFO_CUDA_DEVICE", "gpuId INT, cudaId INT, pid INT", [(0, 0, PID), (0, 1, PID + 1)])
        db.commit()
    traced, errors = gather(read_table(table(folder, "trace,devices", "two.sqlite,1")), folder / "made")
    assert errors == []
    assert [(each.devices, sorted(each.ranks.values())) for each in traced] == [(1, [0, 1])]
    record = json.loads(next(folder.glob("made/*/run.json")).read_text())
    assert record["versions"] == {"GPU": "NVIDIA A100"}, "the one that ran something"


def test_a_report_is_exported_and_read_as_its_database_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for nsys, since no report of a GPU can be made without one."""
    copies = f"cp {folder}/two.sqlite ${{each#--output=}}"
    put(folder, "nsys", f'for each in "$@"; do case $each in --output=*) {copies};; esac; done')
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    (folder / "capture.nsys-rep").write_bytes(b"x")
    rows = ("capture.nsys-rep,2,report,64", "two.sqlite,2,database,64")
    runs = read_table(table(folder, "trace,devices,kind,samples_per_step", *rows))
    traced, errors = gather(runs, folder / "made")
    assert errors == []
    made = [folder / "made" / each.run.id for each in traced]
    steps = [pd.read_csv(run / "steps.csv") for run in made]
    assert steps[0].equals(steps[1]) and len(steps[0]) == 2 * 3  # of two ranks, without the last of four steps
    assert set(steps[0]["samples"]) == {32}, "of each of two ranks"
    records = [json.loads((run / "run.json").read_text())["adopted"] for run in made]
    assert [record["traces"][0]["name"] for record in records] == ["capture.nsys-rep", "two.sqlite"]
    assert [(record["steps"], record["traced_devices"]) for record in records] == [(4, 2)] * 2
    assert not list(folder.glob("*/capture.sqlite")), "the export is not kept"


@pytest.mark.nsys
@pytest.mark.slow
def test_a_report_of_a_program_without_a_gpu_is_exported_and_refused(folder: Path) -> None:
    profiled = ["nsys", "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--output=cpu", "true"]
    subprocess.run(profiled, cwd=folder, check=True, timeout=600, capture_output=True)
    _, [error] = gather(read_table(table(folder, "trace,devices", "cpu.nsys-rep,1")), None)
    assert error.endswith("line 2: cpu.nsys-rep: holds no kernel of a GPU, expected activity of a GPU")
