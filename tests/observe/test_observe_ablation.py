"""Scripts that go without loading or without communication: what they get, and what is refused."""

import json
from pathlib import Path

import pytest

from observed_scripts import after_head, run

pytestmark = pytest.mark.slow

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WINDOWS = {"warmup_steps": 4, "measured_steps": 6, "profiled_steps": 2}
# A data set that writes down what it is asked for; a loop that changes its batches, and writes down what it got.
COUNTING = """
asked, got = open("asked.txt", "w", buffering=1), open("got.txt", "w", buffering=1)
class Counting(TensorDataset):
    def __getitem__(self, index):
        asked.write(f"{index}\\n")
        return {"x": torch.full((4,), float(index)), "y": 0}
loader = DataLoader(Counting(torch.zeros(80)), batch_size=8, num_workers=WORKERS)
for epoch in range(9):
    for number, batch in enumerate(loader):
        x = batch.pop("x")
        got.write(f"{epoch} {number} {x[0, 0].item():.0f}\\n")
        x.mul_(0)
        loss_of(x, batch["y"]).backward()
        optimizer.step()
"""
EXCHANGING = """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
made = DistributedDataParallel(model)
for epoch in range(9):
    for number, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        made.require_backward_grad_sync = True
        loss_of(x, y, made).backward()
        EXCHANGE
        optimizer.step()
        total = torch.tensor([1.0 + rank])
        dist.all_reduce(total)
        parts = torch.zeros(4)
        own = parts[2 * rank : 2 * rank + 2].copy_(torch.tensor([1.0, 2.0]) + rank)  # as FSDP2 does
        work = dist.all_gather_into_tensor(parts, own, async_op=True)
        work.wait()
        with open(f"rank{rank}.txt", "a") as file:
            file.write(f"{model.weight.sum().item()} {total.item()} {parts.tolist()}\\n")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_without_loading_the_loop_gets_its_first_batches_again_and_nothing_is_loaded(
    workers: int, tmp_path: Path
) -> None:
    done = run(tmp_path, after_head(COUNTING.replace("WORKERS", str(workers))), ablate=["loader"], **WINDOWS)
    assert done.rank["outcome"] == "completed", done.output
    got = [line.split() for line in (tmp_path / "got.txt").read_text().splitlines()]
    # A pass is as long as before, and the first batches are those of the data set.
    assert [int(number) for _, number, _ in got] == [each % 10 for each in range(len(got))]
    firsts = [int(value) for *_, value in got]
    kept = firsts.index(0, 1) if 0 in firsts[1:] else len(firsts)
    assert firsts[:kept] == [8 * number for number in range(kept)]
    assert kept < len(firsts)
    # A batch that the loop has changed in place is changed once and not with every pass, and has all its keys.
    assert set(firsts[kept:]) <= {0, *firsts[:kept]}
    # At most one pass, while the loader was measured alone: the measured steps, of later passes too, load nothing.
    assert len((tmp_path / "asked.txt").read_text().splitlines()) <= 80
    assert [step["samples"] for step in done.of("measured")] == ["8"] * 6
    # A pass that ends first tells nothing of the loader alone.
    assert "loader_alone" not in done.rank["observed"] or done.rank["observed"]["loader_alone"]["batches"] > 0


def test_a_batch_that_the_loop_changes_is_changed_once(tmp_path: Path) -> None:
    # It adds one to the batch that it got: a batch that is kept would grow with every pass.
    script = COUNTING.replace("WORKERS", "0").replace("x.mul_(0)", "x.add_(1)")
    run(tmp_path, after_head(script), ablate=["loader"], **WINDOWS | {"measured_steps": 40})
    first = [int(line.split()[2]) for line in (tmp_path / "got.txt").read_text().splitlines()]
    assert len(first) > 40
    assert {value % 8 for value in first} == {0, 1}  # each begins with a multiple of 8


def test_what_watches_the_batches_is_not_compiled(tmp_path: Path) -> None:
    script = """
    import torch._dynamo
    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x, y):
        return loss_of(x.to(torch.float32), y)
    try:
        for epoch in range(9):
            for x, y in loader:
                compiled(x, y).backward()
                optimizer.step()
    finally:
        print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """
    done = run(tmp_path, after_head(script), ablate=["loader"], **WINDOWS)
    assert done.rank["outcome"] == "completed", done.output
    # One with the hook, which lasts until nothing is loaded any more, and one without.
    assert "graphs 2" in done.output or "graphs 1" in done.output


@pytest.mark.parametrize("parts", [[], ["communication"]])
def test_without_communication_ranks_learn_apart_and_exchange_nothing(parts: list[str], tmp_path: Path) -> None:
    script = after_head(EXCHANGING.replace("EXCHANGE", "pass"))
    done = run(tmp_path, script, TORCHRUN, devices=2, ablate=parts, **WINDOWS)
    assert [rank["outcome"] for rank in done.ranks] == ["completed"] * 2, done.output
    assert [rank["observed"]["exchanged"] for rank in done.ranks] == [not parts] * 2
    one, two = (
        [json.loads(f"[{line.replace(' ', ',', 2)}]") for line in file.read_text().splitlines()]
        for file in sorted(tmp_path.glob("rank?.txt"))
    )
    assert (one[-1][0] == two[-1][0]) is not bool(parts)
    expected = [[1.0, [1, 2, 1, 2]], [2.0, [2, 3, 2, 3]]] if parts else [[3.0, [1, 2, 2, 3]]] * 2
    assert [one[-1][1:], two[-1][1:]] == expected


@pytest.mark.parametrize(
    ("script", "command", "devices", "part"),
    [
        ("for _ in range(30):\n    loss_of(*data[:8]).backward()\n    optimizer.step()\n", (), 1, "loader"),
        (
            EXCHANGING.replace("EXCHANGE", "dist.send(y, 1) if rank == 0 else dist.recv(y, 0)"),
            TORCHRUN,
            2,
            "communication",
        ),
    ],
    ids=["no loader", "pipeline"],
)
def test_what_cannot_be_left_out_gives_no_numbers(
    script: str, command: tuple[str, ...], devices: int, part: str, tmp_path: Path
) -> None:
    done = run(tmp_path, after_head(script), command, devices=devices, ablate=[part], **WINDOWS)
    for rank in done.ranks:
        assert (rank["outcome"], rank["reason"]["code"], rank["reason"]["part"]) == ("failed", "not_ablated", part)
    assert len(done.ranks) == devices
