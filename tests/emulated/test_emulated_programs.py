"""Programs of this project on emulated GPUs: doctor, limits, the largest batch, and the tests that are marked `gpu`."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest
from emulated_jobs import LIMIT_S, PATHS, run_program

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus
from multicard.results.limits import MachineLimits

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

PATIENT_S = 1800  # for a busy machine
DOCTOR = f"""
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from multicard.programs.machine import Machine
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
    limits = MachineLimits.model_validate_json(printed.splitlines()[-1])
    assert [part.problem for part in limits.parts] == [None] * 2
    assert limits.synthetic and limits.notes[0].startswith("Synthetic: ")
    device, reduced = limits.parts
    # As compute capability 8.0 has them.
    products = ["fp64", "fp32", "tf32", "bf16", "fp16"]
    assert [(row.measure, row.precision) for row in device.rows] == [("matmul", precision) for precision in products]
    assert [(row.devices, row.message_bytes) for row in reduced.rows] == [(2, 4096), (2, 65536), (2, 1048576)]
    [gpu] = device.ranks[0].gpu_conditions
    assert gpu.before.sm_clock_mhz


SCRIPT = """\
import argparse, time
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size, mib = parser.parse_args().batch_size, 2**20
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.01)
held = torch.empty(28 * mib, dtype=torch.uint8, device="cuda")
for (x,) in DataLoader(TensorDataset(torch.randn(8192, 8)), size, drop_last=True):
    time.sleep(0.2)  # whatever the batch, so that the largest is the fastest
    activations = torch.empty(2 * mib * len(x), dtype=torch.uint8, device="cuda")
    optimizer.zero_grad()
    (x.cuda() * weight).square().mean().backward()
    optimizer.step()
    del activations
"""
# 512 MiB less 300 of the context; 28 are held and 2 are a segment for small tensors: 182 are left for 2 of each sample.
BY_HAND = (512 - 300 - 28 - 2) // 2


def test_the_largest_batch_is_the_one_that_is_counted_by_hand(emulated: EmulatedGpus, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    emulated.computes_all = False  # a profiler's
    gpu = {"gpus": 1, "gpu_gib": 0.5}
    main = f"import os; os.chdir({str(tmp_path)!r}); from multicard.cli import main; main()"
    own = ["--vary", "batch-size=64", "--steps", "6", "--warmup", "2", "--profiled-steps", "2", "--write-only"]
    command = ["--", "train.py", "--batch-size", "{batch_size}"]
    written = run_program(emulated, "-c", main, "scale", "--devices", "1", "--device", "cuda", *own, *command, **gpu)
    assert written.returncode == 0, written.stderr
    auto = ["--vary", "batch-size=auto", "--budget", "2h"]
    done = run_program(emulated, "-c", main, "tune", "multicard.yaml", *auto, **gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    assert BY_HAND == 91
    [found] = [line for line in done.stdout.splitlines() if line.startswith("largest batch that fits: ")]
    # In steps of 8, an eighth of 64.
    assert found.startswith("largest batch that fits: 88 (") and found.endswith("; 96 ran out of memory")
    assert "batch that pays: 88, the fastest" in done.stdout
    table = pd.read_csv(tmp_path / "results/search/scale-batch_size.csv").set_index("args.batch_size")
    assert set(table.loc[[96, 128], "outcome"]) == {"out_of_memory"}
    # Reserved are whole segments: of 2 MiB for small tensors, 28 and 2 for each sample.
    completed = table[table["outcome"] == "completed"]
    assert (completed["peak_memory_bytes"] == (30 + 2 * completed.index) * 2**20).all()


# Tests that ask for what an emulated GPU is not, and why it cannot be.
NEEDS_A_REAL_GPU = {
    "test_every_real_gpu_has_an_address_of_a_real_device": "no such device is in /sys",
    "test_a_real_gpu_under_load_takes_more_than_it_does_idle": "product of 4096 x 4096 matrices on a CPU",
    "test_on_a_gpu_it_is_said_whether_kernels_are_recorded": "Nsight Systems watches NVIDIA's own libraries only",
}


def test_tests_for_gpus_pass_on_emulated_ones(emulated: EmulatedGpus, tmp_path: Path) -> None:
    files = [path for path in sorted(ROOT.glob("tests/*/test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8")]
    files = [path for path in files if path.parent != Path(__file__).parent]
    others = " or ".join(NEEDS_A_REAL_GPU)
    results = tmp_path / "results.xml"
    done = emulated.run(
        "-m", "pytest", *files, "-m", "gpu", "-k", f"not ({others})", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        f"--rootdir={ROOT}", f"--junitxml={results}", f"--basetemp={tmp_path / 'tests'}",
        limit_s=LIMIT_S, PYTHONPATH=PATHS,
    )  # fmt: skip
    cases = ElementTree.parse(results).getroot().iter("testcase")
    outcomes = {case.get("name"): [child.tag for child in case] for case in cases}
    assert len(outcomes) > 10, done.stdout[-3000:]
    bad = {name: tags for name, tags in outcomes.items() if {"failure", "error", "skipped"} & set(tags)}
    assert not bad, done.stdout[-5000:]
