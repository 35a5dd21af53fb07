"""The observer times scripts on emulated GPUs by CUDA events, on the GPU that they compute on."""

from pathlib import Path

import pytest

from emulated_gpu.fixtures import EmulatedGpus
from multicard.record.observe import OBSERVE
from observed_scripts import left, site, write_job

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

# On the second GPU, which is never the current device.
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
gpu = torch.device("cuda", 1)
model = torch.nn.Linear(4, 2).to(gpu)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
large = torch.empty(64 << 20, dtype=torch.uint8, device=gpu)
del large
try:
    while True:
        for x, y in DataLoader(data, batch_size=8):
            torch.nn.functional.mse_loss(model(x.to(gpu)), y.to(gpu)).backward()
            optimizer.step()
            optimizer.zero_grad()
finally:
    print("peak", torch.cuda.max_memory_allocated(gpu))
"""


def test_a_script_is_timed_on_its_gpu(emulated: EmulatedGpus, tmp_path: Path) -> None:
    job, command = write_job(tmp_path, SCRIPT, device="cuda")
    folder = site(tmp_path / "observer")
    done = emulated.run(*command, gpus=2, PYTHONPATH=folder, **{OBSERVE: job})
    found = left(tmp_path, done.returncode, done.stdout + done.stderr)
    assert found.rank["outcome"] == "completed", found.output
    [gpu] = found.rank["gpus"]
    assert gpu["uuid"].endswith("0001")  # the emulation numbers them
    assert len(found.rank["energy"]) == len(found.rank["device_memory_used_bytes"]) == 1
    [steps] = found.steps
    assert len(steps) == 6
    for step in steps:
        phases = [float(step[f"{phase}_s"]) for phase in ("data", "forward", "backward", "optimizer")]
        assert min(phases) > 0
        assert sum(phases) <= float(step["duration_s"]) * (1 + 1e-3)  # CUDA gives single precision
        assert int(step["peak_memory_bytes"]) >= 64 << 20
        assert int(step["peak_reserved_bytes"]) >= 64 << 20
    # The counters are the script's own: nothing resets them.
    [line] = [line for line in found.output.splitlines() if line.startswith("peak")]
    assert int(line.split()[1]) >= 64 << 20
