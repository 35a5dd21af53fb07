"""How far runs are from limits: against operations, times and rates that are worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from vision_records import ELAPSED, record, with_activity

from factories import make_run
from machine.machine_record import IDLE
from multicard.answers.outputs import write_scenario
from multicard.core.files import write_json
from multicard.programs import PROGRAMS
from multicard.results.limits import MachineLimits
from multicard.results.measure import measure_run
from multicard.results.results import Results
from multicard.results.utilization import PEAKS, Operations, Utilization, utilization, within_peaks
from multicard.runs.record import Hardware, Host

H100, OTHER = "NVIDIA H100 80GB HBM3", "synthetic GPU"
CPUS = {"processor": "A processor", "logical_cpus": 8}


def gpus(*names: str) -> dict[str, Any]:
    return {"gpus": [{"name": name} for name in names]}


def limits(hardware: dict[str, Any], host: str = "node07", **changes: Any) -> MachineLimits:
    """A record of matrix products: 2 TFLOP/s in TF32, 1 in fp32, 4 in bf16, and with 8 threads 9 in fp32."""
    rates = {("tf32", 1): 2e12, ("fp32", 1): 1e12, ("bf16", 1): 4e12, ("fp32", 8): 9e12}
    rows = [
        {"measure": "matmul", "precision": precision, "threads": threads, "operations": rate, "times_s": [1.0]}
        for (precision, threads), rate in rates.items()
        if precision != "tf32" or "gpus" in hardware
    ]
    device = "cuda" if "gpus" in hardware else "cpu"
    record = {"device": device, "seconds": 1.0, "started": "2026-11-22", "host": {"name": host}, "hardware": hardware}
    values = record | {"parts": [{"part": "device", "rows": rows}]} | changes
    return MachineLimits.model_validate_json(json.dumps(values))


def of(
    hardware: dict[str, Any], *machines: MachineLimits, workload: str = "vision", seconds: float = 2.0, **stated: Any
) -> Utilization:
    """Utilization of a run whose step of two seconds takes 1e12 operations, 1.5e12 with those computed again."""
    p = PROGRAMS[workload].parameters.model_validate(stated)
    record = make_run(p, hardware=Hardware.from_values(hardware), host=Host(name="node07"))
    is_tf32 = p.precision == "fp32" and getattr(p, "tf32", "off") != "off"
    operations = Operations(1e12, 1.5e12, ("tf32", "fp32") if is_tf32 else (p.precision,))
    return utilization(record, operations, seconds, machines)


def test_mfu_is_the_share_of_the_measured_rate_of_products_in_the_same_precision() -> None:
    for precision, peak in (("fp32", 2e12), ("bf16", 4e12)):
        found = of(gpus(OTHER, OTHER), limits(gpus(OTHER)), precision=precision)
        assert found.achieved_flop_per_s == 0.5e12
        assert (found.peak_flop_per_s, found.mfu_of) == (peak, "measured")
        assert (found.mfu, found.hfu) == (0.5e12 / peak, 0.75e12 / peak)
    without = of(gpus(OTHER), limits(gpus(OTHER)), tf32="off")
    assert without.peak_flop_per_s == 1e12
    text = of(gpus(OTHER), limits(gpus(OTHER)), workload="llm", precision="fp32")
    assert text.peak_flop_per_s == 1e12  # PyTorch's matrix products are not in TF32


def test_a_process_on_a_cpu_is_compared_with_products_of_as_many_threads() -> None:
    peaks = [of(CPUS, limits(CPUS), device="cpu", threads=each).peak_flop_per_s for each in (1, 8, 2)]
    assert peaks == [1e12, 9e12, None]
    # A peak that something disturbed is said to be so.
    part = limits(CPUS).model_dump()["parts"][0] | {"conditions": [IDLE | {"others_cpu_s": 150.0}]}
    found = of(CPUS, limits(CPUS, parts=[part]), device="cpu", threads=8)
    assert (found.peak_flop_per_s, found.mfu_of) == (9e12, "measured, disturbed")


def test_a_gpu_that_is_not_measured_is_looked_up_by_its_whole_name() -> None:
    found = of(gpus(H100), limits(gpus(OTHER)), precision="bf16")
    assert (found.peak_flop_per_s, found.mfu_of) == (989.4e12, "vendor")
    assert of(gpus(H100)).peak_flop_per_s == 494.7e12  # fp32 in TF32
    assert of(gpus(H100), limits(gpus(H100))).mfu_of == "measured"
    assert of(gpus("Tesla V100-SXM2-16GB")).peak_flop_per_s == 15.7e12  # which has no TF32


def test_the_peak_is_that_of_the_arithmetic_that_was_allowed() -> None:
    newer = {"gpus": [{"name": OTHER, "capability": "8.0"}]}
    older = {"gpus": [{"name": OTHER, "capability": "7.5"}]}
    without = [{"measure": "matmul", "precision": "fp32", "threads": 1, "operations": 4e12, "times_s": [1.0]}]
    fp32_only = {"parts": [{"part": "device", "rows": without}]}
    assert of(newer, limits(newer, **fp32_only)).mfu is None  # computed in TF32, which was not measured
    assert of(older, limits(older, **fp32_only)).peak_flop_per_s == 4e12  # which has none


def test_no_repeat_has_a_peak_that_one_exceeded() -> None:
    rows = [
        {"device": "cpu", "batch_size": size, "repeat": repeat, "hfu": hfu, "mfu": 0.5, "peak_flop_per_s": 1e12}
        | {"mfu_of": "measured", "achieved_flop_per_s": 0.5e12}
        for size, hfus in ((16, (0.9, 1.1)), (32, (0.9, 1.0)), (64, (None, None)))
        for repeat, hfu in enumerate(hfus, 1)
    ]
    found = within_peaks(pd.DataFrame(rows))
    assert found[["mfu", "hfu", "peak_flop_per_s", "mfu_of"]].iloc[:2].isna().all(axis=None)
    assert found.iloc[2:].equals(pd.DataFrame(rows).iloc[2:])
    assert found["achieved_flop_per_s"].notna().all()


def test_no_peak_is_guessed() -> None:
    for hardware in (gpus(f"{H100} MIG 3g.40gb"), gpus(OTHER), gpus(H100, OTHER), {}):
        found = of(hardware)
        assert found.achieved_flop_per_s == 0.5e12
        assert (found.mfu, found.hfu, found.mfu_of, found.peak_flop_per_s) == (None,) * 4
    assert of(gpus("Tesla V100-SXM2-16GB"), precision="bf16").mfu is None
    for rates in PEAKS.values():  # those of vendors are of dense products
        half = rates["fp16"]
        assert rates.get("bf16", half) == half
        assert rates.get("tf32", half / 2) == pytest.approx(half / 2)


def test_the_record_of_the_same_host_counts_then_the_newest_of_the_same_kind() -> None:
    own, other = limits(CPUS, started="2026-01-01"), limits(CPUS, host="node08", parts=[])
    assert of(CPUS, other, own, device="cpu").mfu_of == "measured"
    older = limits(CPUS, host="node09", started="2026-01-01")
    assert of(CPUS, older, other, device="cpu").mfu is None
    assert of(CPUS | {"processor": "Another"}, own, device="cpu").mfu is None
    assert of(CPUS, limits(gpus(OTHER)), device="cpu").mfu is None


def run(folder: Path, *counted: float | None) -> Path:
    """A run of two processes on such a processor, whose steps took so many operations, with the files of a trace."""
    ranks = [
        {"rank": rank, "operations": {"model": count, "hardware": count, "precision": "fp32"}}
        for rank, count in enumerate(counted)
    ]
    record(folder, "ddp-ds", hardware=CPUS, ranks=ranks)
    with_activity(folder)
    return folder


def test_a_scenario_tells_mfu_and_bound_of_its_runs(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", 29e9, 31e9)
    path = tmp_path / "machine.json"
    write_json(path, limits(CPUS).model_dump())
    write_scenario([folder], {}, tmp_path / "scenario", [path])
    [row] = Results.read_scenario(tmp_path / "scenario").frame().to_dict("records")
    assert row["model_flop_per_step"] == row["hardware_flop_per_step"] == 30e9
    assert row["mfu"] == row["hfu"] == pytest.approx(30e9 / (ELAPSED / 3) / 1e12)
    assert row["bound"] == "compute or communication"  # in which gradients are exchanged, too
    assert measure_run(folder)["mfu"] is None
    found = measure_run(run(tmp_path / "two", 29e9, None), [limits(CPUS)])
    assert all(found[name] is None for name in Utilization.__annotations__)


def test_the_peak_of_bus_bandwidth_is_that_of_the_fastest_all_reduce_between_as_many_devices(tmp_path: Path) -> None:
    # 1 and 2 GB/s between two devices, and 16 GB/s between four.
    rows = [
        {"measure": "all_reduce", "devices": devices, "message_bytes": size, "bytes": size, "times_s": [seconds]}
        for devices, size, seconds in ((2, 10**6, 1e-3), (2, 16 * 10**6, 8e-3), (4, 16 * 10**6, 1e-3))
    ]
    folder = run(tmp_path, 29e9, 31e9)
    links = limits(CPUS, parts=[{"part": "all_reduce", "rows": rows}])
    assert measure_run(folder, [links])["peak_bus_bandwidth_bytes_per_s"] == pytest.approx(2e9)
    assert measure_run(folder, [limits(CPUS)])["peak_bus_bandwidth_bytes_per_s"] is None
