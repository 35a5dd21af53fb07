"""`multicard doctor --measure` on the CPUs of this machine, as a user types it; it need not be idle."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.analysis.machine.limits import read_machine
from multicard.cli import main
from multicard.core.layout import machine_file

MULTICARD = str(Path(sys.prefix) / "bin" / "multicard")


@pytest.mark.slow
def test_everything_is_measured_counted_printed_and_drawn(tmp_path: Path) -> None:
    command = [MULTICARD, "doctor", "--measure", "--device", "cpu", "--devices", "2", "--seconds", "0.02"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results, printed = tmp_path / "results", done.stdout
    limits = read_machine(machine_file(results, "cpu"))
    assert [part.part for part in limits.parts] == ["device", "all_reduce"]
    assert [part.problem for part in limits.parts] == [None] * 2
    device, reduced = ([row.model_dump() for row in part.rows] for part in limits.parts)
    products = [row for row in device if row["measure"] == "matmul"]
    assert {row["precision"] for row in products} == {"fp64", "fp32", "bf16", "fp16"}
    assert all(row["operations"] == 2 * row["edge"] ** 3 for row in products)
    arrays = {"memory_copy": 2, "memory_triad": 3}
    moved = [row for row in device if row["measure"] in arrays]
    assert {row["measure"] for row in moved} == set(arrays)
    assert all(row["bytes"] == arrays[row["measure"]] * row["array_bytes"] for row in moved)
    # As docs/choosing.md says; between two ranks the bytes that bus bandwidth counts are those of the message.
    assert [(row["message_bytes"], row["bytes"]) for row in reduced] == [(4**p, 4**p) for p in (5, 8, 10, 12, 13)]
    assert {(row["devices"], len(row["times_s"])) for row in reduced} == {(2, 7)}

    record = json.loads(machine_file(results, "cpu").read_text())
    assert record["versions"]["torch"] and record["hardware"]["usable_cpus"]
    for part in record["parts"]:
        [host] = part["conditions"]
        assert host["wall_s"] > 0 and host["before"]["load_average"] is not None

    for words in ("matrix multiplication", "memory, triad", "all-reduce, bus bandwidth"):
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
def test_what_makes_no_sense_is_refused_in_one_line(
    options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--measure", *options])
    [line] = str(stopped.value).splitlines()
    assert line.startswith(says)
    assert list(tmp_path.iterdir()) == []
