"""`multicard doctor --measure` on the CPUs of this machine, which need not be idle, and what is said of its record."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from machine_record import ALPHA_S, BETA, SIZES, record

from conftest import ran, refusal
from console import multicard
from multicard.core.layout import machine_file
from multicard.core.units import BYTES_PER_S, OPERATIONS_PER_S, with_unit
from multicard.results.limits import MachineLimits, lines, read_machine


@pytest.mark.slow
def test_everything_is_measured_counted_printed_and_drawn(tmp_path: Path) -> None:
    options = ("--measure", "--device", "cpu", "--devices", "2", "--seconds", "0.02")
    done = ran(Path(sys.prefix, "bin/multicard"), "doctor", *options, cwd=tmp_path, limit_s=2400)
    assert done.returncode == 0, done.stdout + done.stderr
    results, printed = tmp_path / "results", done.stdout
    limits = read_machine(machine_file(results, "cpu"))
    assert [part.part for part in limits.parts] == ["device", "all_reduce"]
    assert [part.problem for part in limits.parts] == [None] * 2
    device, reduced = ([row.model_dump() for row in part.rows] for part in limits.parts)
    assert {row["measure"] for row in device} == {"matmul"}
    assert {row["precision"] for row in device} == {"fp64", "fp32", "bf16", "fp16"}
    assert all(row["operations"] == 2 * row["edge"] ** 3 for row in device)
    # As docs/choosing.md says; between two ranks the bytes that bus bandwidth counts are those of the message.
    assert [(row["message_bytes"], row["bytes"]) for row in reduced] == [(4**p, 4**p) for p in (5, 8, 10, 12, 13)]
    assert {(row["devices"], len(row["times_s"])) for row in reduced} == {(2, 7)}

    record = json.loads(machine_file(results, "cpu").read_text())
    assert record["versions"]["torch"] and record["hardware"]["usable_cpus"]
    for part in record["parts"]:
        [host] = part["conditions"]
        assert host["wall_s"] > 0 and host["others_cpu_s"] >= 0

    for words in ("matrix multiplication", "all-reduce, bus bandwidth"):
        assert words in printed
    assert list((results / "machine").iterdir()) == [machine_file(results, "cpu")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--seconds", "nan"), "--seconds: found nan, expected a time above 0"),
        (("--device", "cpu", "--devices", "1,2"), "--devices: found 1, expected numbers from 2 to "),
        (("--device", "cpu", "--devices", "two"), "--devices: found 'two', expected numbers of devices"),
        (("none.yaml",), "none.yaml: cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    refused = multicard("doctor", "--measure", *options, folder=tmp_path)
    [line] = refused.stderr.splitlines()
    assert refused.returncode == 1 and line.startswith(says)
    assert list(tmp_path.iterdir()) == []


def limits(**changes: Any) -> MachineLimits:
    return MachineLimits.model_validate_json(json.dumps(record() | changes))


def test_limits_are_worded_with_their_unit_and_spread() -> None:
    found = {(line.what, line.conditions): line for line in lines(limits())}
    # 1e12 operations in 2 ms, 2e9 in 1 or 2 ms, 1e9 in 40 ms.
    matmul = found["matrix multiplication", "bf16, 1 thread, 8192 × 8192"]
    assert (matmul.rate, matmul.spread) == ("500 TFLOP/s", ""), "equal times do not tell how they scatter"
    spread = found["matrix multiplication", "fp64, 1 thread, 4096 × 4096"]
    # √2 ms, times and over 2 to the power of half of t with one degree of freedom.
    factor = 2 ** (math.tan(math.pi * 0.475) / 2)
    ends = [with_unit(2e9 / (math.sqrt(2) * 1e-3 * by), OPERATIONS_PER_S) for by in (factor, 1 / factor)]
    assert (spread.rate, spread.spread) == ("1.41 TFLOP/s", " to ".join(ends))
    once = found["matrix multiplication", "fp64, 2 threads, 4096 × 4096"]
    assert (once.rate, once.spread) == ("25.0 GFLOP/s", "")
    # Of two devices the bus bandwidth is bytes over time.
    largest = SIZES[-1] / (ALPHA_S + SIZES[-1] / BETA)
    assert found["all-reduce, bus bandwidth", "2 devices, messages of 67.1 MB"].rate == with_unit(largest, BYTES_PER_S)


def test_what_else_ran_and_what_failed_is_said() -> None:
    assert limits().notes == [
        "Not measured: device: matmul fp16: out of memory",
        "Disturbed: all-reduce between 2 devices: other processes: 1.5 CPUs",
    ]
    emulated = record()
    emulated["hardware"]["gpus"][0]["name"] = "Emulated GPU (synthetic)"
    assert MachineLimits.model_validate_json(json.dumps(emulated)).notes[0].startswith("Synthetic: ")


def with_row(row: dict[str, Any]) -> str:
    return json.dumps(record() | {"parts": [{"part": "x", "rows": [row]}]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "does not parse as JSON"),
        (json.dumps(record() | {"device": "tpu"}), "device: found 'tpu', expected one of cpu, cuda"),
        (with_row({"measure": "matmul", "times_s": []}), "times_s: "),
        (with_row({"measure": "matmul", "times_s": [1]}), "found no work"),
        (with_row({"measure": "?", "times_s": [1]}), "measure: "),
    ],
)
def test_a_damaged_record_is_named_in_one_line(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "node07-cuda.json"
    path.write_text(content)
    line = refusal(lambda: read_machine(path))
    assert line.startswith(f"{path}: ") and says in line
