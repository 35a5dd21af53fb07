"""The tests marked `gpu` run on emulated GPUs, so that they are known to be right before they meet a real one."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from emulated_jobs import LIMIT_S, PATHS

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

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
