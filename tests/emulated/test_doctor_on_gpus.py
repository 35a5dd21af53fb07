"""Doctor on emulated GPUs: what NVML, nvidia-smi, CUDA_VISIBLE_DEVICES and PyTorch say, and an all-reduce by NCCL."""

import json
from pathlib import Path

import pytest
import yaml

from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PATIENT_S = 1200  # for a busy machine
PROGRAM = f"""
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from multicard.doctor import all_reduce, checks, compiler, examine, gpu
checks.TORCH_LIMIT_S, all_reduce.MESSAGE_BYTES = {PATIENT_S}, 1 << 20
all_reduce.exchange = partial(all_reduce.exchange, start_s={PATIENT_S})
all_reduce.checks = partial(all_reduce.checks, limit_s={PATIENT_S})
compiler.checks = partial(compiler.checks, limit_s={PATIENT_S})
"""
PRINTED = "print(json.dumps([asdict(check) for check in found]))"


def looked(emulated: EmulatedGpus, found: str, **settings: object) -> dict[str, dict[str, str]]:
    printed = emulated.output(f"{PROGRAM}found = {found}\n{PRINTED}", limit_s=4 * PATIENT_S, **settings)
    return {check["check"]: check for check in json.loads(printed.splitlines()[-1])}


def test_healthy_gpus_have_no_fault_and_exchange_data_by_nccl(emulated: EmulatedGpus, tmp_path: Path) -> None:
    compiled = {"question": "?", "fixed": {"device": "cuda", "compile": True}, "figures": ["step_breakdown"]}
    config = tmp_path / "compiled.yaml"
    config.write_text(yaml.safe_dump({"results": str(tmp_path / "results"), "scenarios": {"compiled": compiled}}))
    found = looked(emulated, f"examine.examine(Path({str(config)!r}), None)", gpus=2, compile="eager")
    healthy = ("GPU", "driver", "GPUs in torch", "GPU clocks", "GPU memory errors", "all-reduce")
    assert {name: found[name]["verdict"] for name in healthy} == dict.fromkeys(healthy, "ok")
    assert found["GPU"]["found"] == "2 x Emulated GPU (synthetic) (16 GiB)"
    assert found["GPUs in torch"]["found"].startswith("2, the smallest with ")
    assert " bus bandwidth: 1.05 MB between 2 ranks in " in found["all-reduce"]["found"]
    assert found["Triton kernel"]["found"] == "compiled, but not by Triton"  # it has no Triton


@pytest.mark.parametrize(
    ("settings", "check", "verdict", "says"),
    [
        ({"gpus": 2, "mig": 1}, "MIG", "warning", "partitioned: GPU 0, 1"),
        ({"gpus": 2, "smi_gpus": 3}, "nvidia-smi", "error", "lists 3 GPUs, NVML 2"),
        ({"gpus": 2, "smi": "fails", "nvml": "no-init"}, "driver", "error", "Driver/library version mismatch"),
        ({"gpus": 2, "CUDA_VISIBLE_DEVICES": "0,7"}, "GPUs in torch", "error", "1, but 2 named"),
        ({"gpus": 2, "CUDA_VISIBLE_DEVICES": "1"}, "GPUs in torch", "warning", ", of 2: 1"),
    ],
)
def test_what_does_not_fit_together_is_told(
    emulated: EmulatedGpus, settings: dict[str, object], check: str, verdict: str, says: str
) -> None:
    found = looked(emulated, "gpu.checks(checks.torch_facts())", **settings)[check]
    assert found["verdict"] == verdict
    assert says in found["found"]
