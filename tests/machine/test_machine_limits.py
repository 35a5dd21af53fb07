"""What is said of a machine follows from its record: work over time, spread, fits, and what is doubtful."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from machine_record import ALPHA_S, BETA, SIZES, record

from multicard.analysis.machine.limits import Line, MachineLimits, lines, read_machine
from multicard.core.errors import UserError
from multicard.core.units import BYTES_PER_S, with_unit


def limits(**changes: Any) -> MachineLimits:
    return MachineLimits.model_validate(record() | changes)


def test_limits_are_worded_with_their_unit_and_spread() -> None:
    found = {(line.what, line.of): line for line in lines(limits())}
    # 1e12 operations in 2 ms, 2e9 bytes in 1 or 2 ms, 1e9 bytes in 40 ms.
    matmul = found["matrix multiplication", "bf16, 1 thread, 8192 × 8192"]
    assert (matmul.rate, matmul.spread) == ("500 TFLOP/s", "500 TFLOP/s to 500 TFLOP/s")
    copy = found["memory, copy", "1 thread, arrays of 1.00 GB"]
    # √2 ms, times and over 2 to the power of half of t with one degree of freedom.
    factor = 2 ** (math.tan(math.pi * 0.475) / 2)
    ends = [with_unit(2e9 / (math.sqrt(2) * 1e-3 * by), BYTES_PER_S) for by in (factor, 1 / factor)]
    assert (copy.rate, copy.spread) == ("1.41 TB/s", " to ".join(ends))
    assert found["host to device", "pinned"] == Line("host to device", "pinned", "25.0 GB/s", "")
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
    assert MachineLimits.model_validate(emulated).notes[0].startswith("Synthetic: ")


def with_row(row: dict[str, Any]) -> str:
    return json.dumps(record() | {"parts": [{"part": "x", "rows": [row]}]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "does not parse as JSON"),
        (json.dumps(record() | {"device": "tpu"}), "device: Input should be 'cpu' or 'cuda'"),
        (with_row({"measure": "matmul", "times_s": []}), "times_s: "),
        (with_row({"measure": "matmul", "times_s": [1]}), "found no work"),
        (with_row({"measure": "?", "times_s": [1]}), "measure: "),
    ],
)
def test_a_damaged_record_is_named_in_one_line(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "node07-cuda.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_machine(path)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ") and says in line
