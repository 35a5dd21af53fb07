"""A record of a machine's limits, made by hand: round numbers, so that rates are seen at once."""

from typing import Any

IDLE = {"others_cpu_s": 0.0, "stolen_cpu_s": 0.0, "usable_cpus": 4, "wall_s": 100.0}
ALPHA_S, BETA = 12.5e-6, 20e9
SIZES = [4**power for power in range(5, 14)]


def all_reduce(devices: int, message_bytes: int) -> dict[str, Any]:
    """A row whose seven blocks lie around a latency and 2 (n − 1) / n · bytes over a bandwidth."""
    work = 2 * (devices - 1) / devices * message_bytes
    time = ALPHA_S + work / BETA
    times = [time * factor for factor in (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)]
    return {
        "measure": "all_reduce", "devices": devices, "message_bytes": message_bytes, "bytes": work, "times_s": times,
    }  # fmt: skip


def record(name: str = "node07") -> dict[str, Any]:
    gpu = {"name": "GPU", "memory_bytes": 80_000_000_000, "capability": "9.0"}
    device = [
        {"measure": "matmul", "precision": "bf16", "threads": 1,
         "edge": 8192, "operations": 1e12, "times_s": [2e-3] * 3},
        {"measure": "matmul", "precision": "fp64", "threads": 1,
         "edge": 4096, "operations": 2e9, "times_s": [1e-3, 2e-3]},
        {"measure": "matmul", "precision": "fp64", "threads": 2,
         "edge": 4096, "operations": 1e9, "times_s": [0.04]},
    ]  # fmt: skip
    return {
        "device": "cuda",
        "host": {"name": name, "system": "Linux"},
        "hardware": {
            "processor": "A processor", "logical_cpus": 8, "usable_cpus": 4, "memory_bytes": 8_000_000_000,
            "gpus": [gpu, gpu],
        },
        "versions": {"torch": "2.11.0"},
        "variables": {},
        "seconds": 1.0,
        "started": "2026-11-22T10:00:00+00:00",
        "ended": "2026-11-22T10:10:00+00:00",
        "parts": [
            {"part": "device", "rows": device, "problem": "matmul fp16: out of memory", "conditions": [IDLE],
             "ranks": [{"rank": 0, "gpu_conditions": [None]}]},
            {"part": "all_reduce", "devices": 2, "rows": [all_reduce(2, size) for size in SIZES], "problem": None,
             "conditions": [IDLE | {"others_cpu_s": 150.0}]},
        ],
    }  # fmt: skip
