"""What a tuned model and its optimizer hold, counted from the live objects of real steps."""

import json
from pathlib import Path

import pytest

from forked_ranks import start_ranks
from multicard.experiment.models import ARCHITECTURES, Architecture
from multicard.workloads.llm.memory_estimate import estimate_memory
from multicard.workloads.llm.parameters import LlmParameters
from tuning_jobs import TECHNIQUES, held_by_rank

pytestmark = pytest.mark.slow

TINY = ARCHITECTURES["tiny"]
PRECISIONS = {"lora": ("fp32", "bf16"), "qat of adapters": ("fp32",), "full": ("fp32", "bf16")}  # of others bf16
CASES = [(name, precision) for name in TECHNIQUES for precision in PRECISIONS.get(name, ("bf16",))]
PARTS = ("weights", "adapters", "gradients", "optimizer", "buffers")


def jobs(ranks: int) -> list[tuple[LlmParameters, Architecture]]:
    # Adapters of rank 9 do not divide evenly.
    shared = {"device": "cpu", "devices": ranks, "batch_size": 1, "sequence_length": 16, "lora_rank": 9}
    return [(LlmParameters(**shared, precision=precision, **TECHNIQUES[name]), TINY) for name, precision in CASES]


def leave_what_a_rank_holds(rank: int, ranks: int, folder: str) -> None:
    found = held_by_rank(rank, ranks, jobs(ranks), Path(folder, "meeting"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fullest_rank_holds_to_the_byte_what_was_estimated(ranks: int, tmp_path: Path) -> None:
    start_ranks(leave_what_a_rank_holds, (ranks, str(tmp_path)), ranks=ranks)
    of_ranks = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    # Two matrices of rank 9 at each adapted linear layer: in and out of attention's q, v and output, and of w1 to w3.
    ends = (512 + 512) + (512 + 256) + (512 + 512) + 3 * (512 + 1024)
    for case, (p, shape), *held in zip(CASES, jobs(ranks), *of_ranks, strict=True):
        found = {part: max(rank[part] for rank in held) for part in PARTS}
        estimated = estimate_memory(p, shape)
        assert found == {part: getattr(estimated, part) for part in PARTS}, case
        # Each counts the weights of the whole model.
        adapters = 2 * 9 * ends if p.trains_adapters else 0
        for rank in held:
            assert rank["parameters"] == shape.parameters + adapters, case
            assert rank["trainable_parameters"] == (adapters or shape.parameters), case
