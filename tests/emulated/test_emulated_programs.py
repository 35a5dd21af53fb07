"""Parts of this project on emulated GPUs: doctor, and the limits of a machine."""

import json

import pytest

from emulated_gpu.fixtures import EmulatedGpus
from multicard.analysis.machine.limits import MachineLimits

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

PATIENT_S = 1800  # for a busy machine
DOCTOR = f"""
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from multicard.experiment.machine import Machine
from multicard.machine import doctor, gpus, probe
probe.LIMIT_S, gpus.LIMIT_S, gpus.MESSAGE_BYTES = {PATIENT_S}, {PATIENT_S}, 1 << 20
gpus.exchange = partial(gpus.exchange, start_s={PATIENT_S})
"""
LIMITS = """
import json
from multicard.machine import measure
measure.MESSAGE_BYTES["cuda"] = [4096, 65536, 1048576]
print(json.dumps(measure.measure_machine("cuda", seconds=0.005)))
"""


def looked(emulated: EmulatedGpus, found: str, **settings: object) -> dict[str, dict[str, str]]:
    """What doctor finds, by check."""
    program = f"{DOCTOR}found = {found}\nprint(json.dumps([asdict(check) for check in found]))"
    printed = emulated.output(program, limit_s=4 * PATIENT_S, **settings)
    return {check["check"]: check for check in json.loads(printed.splitlines()[-1])}


def test_healthy_gpus_have_no_fault_and_exchange_data_by_nccl(emulated: EmulatedGpus) -> None:
    found = looked(emulated, "doctor.examine(None, None)", gpus=2)
    assert {name: found[name]["verdict"] for name in ("GPUs", "all-reduce")} == {"GPUs": "ok", "all-reduce": "ok"}
    assert found["GPUs"]["found"].startswith("2 x Emulated GPU (synthetic), the smallest with ")
    assert " bus bandwidth: 1.05 MB between 2 ranks in " in found["all-reduce"]["found"]


def test_every_measurement_of_a_gpu_is_executed_and_said_to_be_synthetic(emulated: EmulatedGpus) -> None:
    printed = emulated.output(LIMITS, limit_s=PATIENT_S, gpus=2, gpu_gib=1)
    record = json.loads(printed.splitlines()[-1])
    limits = MachineLimits.model_validate(record)
    assert [part.problem for part in limits.parts] == [None] * 2
    assert limits.synthetic and limits.notes[0].startswith("Synthetic: ")
    device, reduced = limits.parts
    # As compute capability 8.0 has them.
    products = ["fp64", "fp32", "tf32", "bf16", "fp16"]
    assert [(row.measure, row.precision) for row in device.rows] == [("matmul", precision) for precision in products]
    assert [(row.devices, row.message_bytes) for row in reduced.rows] == [(2, 4096), (2, 65536), (2, 1048576)]
    [gpu] = device.ranks[0]["gpu_conditions"]
    assert gpu["before"]["sm_clock_mhz"]
