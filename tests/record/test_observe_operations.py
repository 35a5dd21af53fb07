"""Operations of a script's step, counted where that is asked for, against closed forms; the script runs as without."""

from pathlib import Path
from typing import Any

import pytest

from multicard.experiment.workload import WORKLOADS
from observed_scripts import Server, after_head

pytestmark = pytest.mark.slow

LOOP = """
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
        print("weights", model.weight.tolist())
"""
# A linear layer of 4 by 2 and a batch of 8; its input needs no gradient.
STEP = 2 * (2 * 8 * 4 * 2)


def weights(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("weights")]


def test_a_warmup_step_is_counted_and_the_script_learns_the_same(server: Server, tmp_path: Path) -> None:
    found = {}
    for asked in (True, False):
        folder = tmp_path / str(asked)
        folder.mkdir()
        found[asked] = server.run(folder, after_head(LOOP), count_operations=asked)
    known = {"model": STEP, "hardware": STEP, "precision": "fp32", "problem": None}
    assert (found[True].rank["operations"], found[False].rank["operations"]) == (known, None)
    assert found[True].exit_code == found[False].exit_code == 0
    assert weights(found[True].output) == weights(found[False].output) != []


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f'import torch._dynamo.utils as u\nu.counters["frames"]["total"] = 1\n{LOOP}', "torch.compile is in use"),
        (
            """
from torch.utils.flop_counter import FlopCounterMode
while True:
    for x, y in loader:
        with FlopCounterMode(display=False) as mode:
            loss_of(x, y).backward()
            optimizer.step()
        print("weights", mode.get_total_flops())
""",
            "the script runs in a mode of PyTorch's dispatcher",
        ),
    ],
)
def test_a_script_that_counting_could_change_is_left_alone(
    server: Server, tmp_path: Path, script: str, problem: str
) -> None:
    found = server.run(tmp_path, after_head(script), count_operations=True)
    assert found.exit_code == 0, found.output
    unknown = dict.fromkeys(("model", "hardware", "precision"))
    assert found.rank["operations"] == unknown | {"problem": problem}
    assert len(weights(found.output)) >= 6


def test_operations_of_a_script_are_the_mean_of_its_ranks_if_all_counted() -> None:
    work = WORKLOADS["script"]

    def found(*ranks: Any) -> Any:
        return work.operations({"ranks": [{"operations": each} for each in ranks]}, None)

    one = {"model": 10, "hardware": 20, "precision": "tf32", "problem": None}
    assert vars(found(one, one | {"model": 30, "hardware": 40})) == {
        "model": 20, "hardware": 30, "precisions": ("tf32", "fp32"),
    }  # fmt: skip
    assert found(one, None) is found(one | {"model": None, "problem": "…"}) is found() is None
