"""The limits of emulated GPUs: every measurement of a GPU is executed, and the record says that it means nothing."""

import json

import pytest

from emulated_gpu.fixtures import EmulatedGpus
from multicard.analysis.machine_limits import MachineLimits

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PATIENT_S = 1800  # for a busy machine
PROGRAM = """
import json
from multicard.limits import measure
measure.MESSAGE_BYTES["cuda"] = [4096, 65536, 1048576]
step = {"workload": "vision", "device": "cuda", "width_mult": 0.25, "image_size": 16, "batch_size": 8}
step["precision"] = "fp16"
print(json.dumps(measure.measure_machine("cuda", steps=[step], seconds=0.005)))
"""


def test_every_measurement_of_a_gpu_is_executed_and_said_to_be_synthetic(emulated: EmulatedGpus) -> None:
    printed = emulated.output(PROGRAM, limit_s=PATIENT_S, gpus=2, gpu_gib=1)
    record = json.loads(printed.splitlines()[-1])
    limits = MachineLimits.model_validate(record)
    assert [part.problem for part in limits.parts] == [None] * 3
    assert limits.synthetic and limits.notes[0].startswith("Synthetic: ")
    device, reduced, step = limits.parts
    rows = [row.model_dump() for row in device.rows]
    # As compute capability 8.0 has them.
    assert [row["precision"] for row in rows if row["measure"] == "matmul"] == ["fp64", "fp32", "tf32", "bf16", "fp16"]
    copies = {(row["measure"], row["host_memory"]) for row in rows if "host_memory" in row}
    assert copies == {(way, kind) for way in ("host_to_device", "device_to_host") for kind in ("pinned", "pageable")}
    assert {row["measure"] for row in rows} >= {"memory_copy", "memory_triad"}
    assert [(row.devices, row.message_bytes) for row in reduced.rows] == [(2, 4096), (2, 65536), (2, 1048576)]
    assert [row.samples for row in step.rows] == [8]
    [gpu] = device.ranks[0]["gpu_conditions"]
    assert gpu["before"]["sm_clock_mhz"] and gpu["watched_s"] > 0
    assert [each["node"] for each in record["numa"]["gpus"]] == [None, None]  # which the emulation does not have
