"""`multicard analyze` prints each warning about a capture once, whatever else it prints or writes."""

import json
from pathlib import Path

import pytest

from captures import KernelTimes, Process, make_trace
from changed_traces import change
from console import multicard

# Twenty kernels of 1 ms in two steps, each launched 10 µs before it begins.
STEP_TIMES = [(0.0, 20.0), (20.0, 40.0)]
KERNELS: list[KernelTimes] = [(2.0 * n, 2.0 * n + 0.01, 2.0 * n + 1.01, "gemm") for n in range(20)]


@pytest.mark.parametrize(
    "options",
    [
        (), ("--out", "tables"), ("--verbose",), ("--verbose", "--out", "tables"), ("--json",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_warning_is_printed_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = make_trace(tmp_path / "t.sqlite", Process(STEP_TIMES, KERNELS))
    change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId >= 18")
    options = tuple(str(tmp_path / option) if option == "tables" else option for option in options)
    done = multicard("analyze", path, *options)
    counts = [
        " ".join(text.split()).count("of 20 kernel launches have no kernel") for text in (done.stdout, done.stderr)
    ]
    # With --json, standard output holds only JSON.
    assert counts == ([0, 1] if "--json" in options else [1, 0]), done.stdout + done.stderr


def test_a_warning_is_printed_beside_json_that_has_no_table(tmp_path: Path) -> None:
    path = make_trace(tmp_path / "t.sqlite", Process(STEP_TIMES, KERNELS))
    change(
        path,
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 'Not all CUDA events might have been collected.')",
    )
    done = multicard("analyze", path, "--json", "--only", "cuda_graphs")
    assert json.loads(done.stdout)["tables"] == {}
    assert done.stderr == "t: Not all CUDA events might have been collected\n"
