"""What held a GPU's memory is summed up from a snapshot made by hand, whose bytes are counted by hand."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from job_files import make_job_file
from multicard.core.reasons import LargestUse, MemoryHeld, Reason, describe_reason
from multicard.observe.record import memory_held, memory_snapshot
from multicard.observe.record.memory_held import Forwards, Use, live, owned, sum_up, use_of
from multicard.observe.record.memory_snapshot import MemoryHistory, Snapshots
from multicard.observe.record.out_of_memory import GpuMemory
from multicard.runs.rank_report import reason_from

TORCH = Path(torch.__file__).parent


class Block(nn.Module):
    """A user's module with one of PyTorch's in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the inner one."""
        return self.inner(x)


class Stack(nn.Sequential):
    """One that inherits the forward of PyTorch's."""


def frame(file: Path | str, name: str, line: int) -> dict[str, Any]:
    return {"filename": str(file), "name": name, "line": line}


def at(function: Any) -> dict[str, Any]:
    """A frame in the first line after a function's head."""
    code = function.__code__
    return frame(code.co_filename, code.co_name, code.co_firstlineno + 1)


LINEAR, BLOCK, SEQUENTIAL = at(nn.Linear.forward), at(Block.forward), at(nn.Sequential.forward)
CALL = frame(TORCH / "nn/modules/module.py", "_call_impl", 1790)
SCRIPT = frame("train.py", "<module>", 27)
TO = frame(TORCH / "utils/somewhere.py", "to", 3)
BUCKETS = frame(TORCH / "nn/parallel/distributed.py", "_ddp_init_helper", 9)
WRAPPED = frame(TORCH / "nn/parallel/distributed.py", "forward", 99)
GATHERED = frame(TORCH / "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather", 9)
REDUCED = frame(TORCH / "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", 9)
ADAM = frame(TORCH / "optim/adam.py", "_init_group", 9)
FUNCTION = frame(TORCH / "autograd/function.py", "apply", 307)
RECOMPUTED = frame(TORCH / "utils/checkpoint.py", "recompute_fn", 9)


@pytest.mark.parametrize(
    ("stack", "use"),
    [
        ([LINEAR, CALL, BLOCK, CALL, SEQUENTIAL, CALL, SCRIPT], Use("activations", "Block")),
        ([LINEAR, CALL, SEQUENTIAL, CALL, SCRIPT], Use("activations", "Linear")),
        ([LINEAR, CALL, WRAPPED, CALL, SCRIPT], Use("activations", "Linear")),
        ([LINEAR, CALL, BLOCK, CALL, RECOMPUTED], Use("activations", "Block")),  # in the backward pass
        ([TO, SCRIPT], Use("other_tensors", "train.py:27")),
        ([TO, FUNCTION, SCRIPT], Use("other_tensors", "train.py:27")),
        ([BUCKETS, CALL, SCRIPT], Use("gradients")),
        ([REDUCED, FUNCTION], Use("gradients")),
        ([TO, FUNCTION], Use("gradients")),
        ([], Use("gradients")),
        ([GATHERED, CALL, BLOCK, CALL, SCRIPT], Use("parameters")),
        ([ADAM, SCRIPT], Use("optimizer_state")),
    ],
)
def test_the_stack_of_a_block_tells_what_it_is_for(stack: list[dict[str, Any]], use: Use) -> None:
    assert use_of(stack, Forwards([Stack(), nn.Sequential(), Block(), nn.Linear(2, 2)])) == use


def block(address: int, size: int, frames: Any = (), state: str = "active_allocated") -> dict[str, Any]:
    """As PyTorch documents it (`torch.cuda.memory._snapshot`)."""
    return {"address": address, "size": size, "requested_size": size - 1, "state": state, "frames": list(frames)}


def segment(gpu: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    size = sum(each["size"] for each in blocks)
    return {"device": gpu, "address": blocks[0]["address"], "total_size": size, "blocks": list(blocks)}


IN_BLOCK = [LINEAR, CALL, BLOCK, CALL, SCRIPT]
IN_LINEAR = [LINEAR, CALL, SCRIPT]
SNAPSHOT = {
    "segments": [
        segment(
            1,
            block(1000, 10, [SCRIPT]),  # a parameter
            block(1010, 20, IN_BLOCK),
            block(1030, 5, state="inactive"),
            block(1035, 7),  # a gradient
            block(1042, 200, IN_LINEAR, "active_awaiting_free"),
        ),
        segment(1, block(5000, 400, IN_BLOCK), block(5400, 40, [TO, SCRIPT]), block(5440, 60, state="inactive")),
        segment(0, block(9000, 5000, IN_BLOCK)),  # another GPU
        segment(1, block(7000, 30, [ADAM, SCRIPT]), block(7030, 3, [ADAM, SCRIPT])),
    ]
}
OWNERS = {1000: "parameters", 7000: "optimizer_state"}
TOTAL, FREE = 1000, 125
HELD = MemoryHeld(
    gpu=1,
    total_bytes=1000,
    bytes={
        "parameters": 10, "activations": 20 + 200 + 400, "gradients": 7, "other_tensors": 40, "optimizer_state": 33,
        "fragments": 5 + 60, "outside_pytorch": 1000 - 125 - (242 + 500 + 33), "free": 125,
    },
    most={
        "activations": LargestUse(420, where="Block", modules=3),
        "other_tensors": LargestUse(40, where="train.py:27"),
    },
)  # fmt: skip


def test_bytes_of_the_gpu_add_up_by_category() -> None:
    found = sum_up(SNAPSHOT, 1, FREE, TOTAL, OWNERS, Forwards([Block(), Block(), nn.Linear(2, 2), Block()]))
    assert found == HELD
    assert sum(found.bytes.values()) == TOTAL


def other_block() -> nn.Module:
    """A module of another class with the name of `Block`, as two files of a script may have."""
    other = type("Block", (nn.Module,), {"forward": lambda _self, x: x})
    assert (other.__qualname__, other is Block) == (Block.__qualname__, False)
    return other()


def test_modules_of_classes_of_the_same_name_are_added_as_their_bytes_are() -> None:
    modules = [Block(), Block(), Block(), other_block(), other_block()]
    found = sum_up(SNAPSHOT, 1, FREE, TOTAL, OWNERS, Forwards(modules))
    assert found.most["activations"] == LargestUse(420, where="Block", modules=3 + 2)


def test_without_any_stack_nothing_is_taken_for_a_gradient() -> None:
    found = sum_up({"segments": [segment(0, block(0, 10), block(10, 5))]}, 0, 0, 15, {0: "parameters"}, Forwards([]))
    assert {name: size for name, size in found.bytes.items() if size} == {"parameters": 10, "other_tensors": 5}


class Pair(torch.Tensor):
    """A tensor made of others, as quantized ones are."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["one", "other"], None


def test_live_objects_own_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # no GPU is needed to have an address
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    wrapped = nn.Module()
    parts = torch.ones(2), torch.ones(2)
    pair = torch.ones(2).as_subclass(Pair)
    pair.one, pair.other = parts
    wrapped.register_buffer("pair", pair)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    found = owned([*model.modules(), frozen, wrapped], [optimizer])

    def addresses(tensors: Any) -> set[int]:
        return {each.untyped_storage().data_ptr() for each in tensors}

    states = [value for state in optimizer.state.values() for value in state.values()]
    assert addresses([*model.parameters(), *model.buffers(), *frozen.parameters(), *parts]) == {
        address for address, category in found.items() if category == "parameters"
    }
    assert addresses(each.grad for each in model.parameters()) == {
        address for address, category in found.items() if category == "gradients"
    }
    assert addresses(states) == {address for address, category in found.items() if category == "optimizer_state"}
    assert any(each is frozen for each in live(nn.Module)) and any(each is optimizer for each in live(type(optimizer)))


def test_the_reason_is_one_line_with_the_most_first() -> None:
    held = replace(HELD, wanted_bytes=250, snapshot="memory_snapshot.pickle")
    reason = Reason("out_of_memory", rank=1, message="CUDA out of memory", held=held)
    text = describe_reason(reason_from(reason.record()))
    assert text == (
        "rank 1: no memory for 250 B more; GPU 1 has 1.00 kB: activations 620 B (420 B of it in forward of Block, "
        "3 modules), CUDA and other processes 100 B, reserved but unallocated 65 B, other tensors 40 B (40 B of "
        "it at train.py:27), optimizer state 33 B, parameters 10 B, gradients 7 B, free 125 B; "
        "see memory_snapshot.pickle"
    )


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Snapshots whose allocator gives `SNAPSHOT`."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _gpu: (FREE, TOTAL))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"by PyTorch"))
    monkeypatch.setattr(memory_snapshot, "live", lambda kind: [Block(), nn.Linear(2, 2)] if kind is nn.Module else [])
    monkeypatch.setattr(memory_held, "addresses_of", lambda _values: OWNERS)
    return Snapshots(tmp_path)


def test_an_error_of_a_library_on_a_full_gpu_is_explained_and_one_of_the_host_is_not(
    history: Snapshots, tmp_path: Path
) -> None:
    scarce = GpuMemory(1, free=10, total=1000)
    assert history.held(MemoryError(), None) is history.held(MemoryError(), GpuMemory(1, 900, 1000)) is None
    assert not [*tmp_path.iterdir()]
    found = history.held(RuntimeError("unhandled cuda error"), scarce)
    assert found.bytes["activations"] == 620 and found.wanted_bytes is None
    assert [path.name for path in tmp_path.iterdir()] == ["memory_snapshot.pickle.rank0"]
    text = describe_reason(Reason("out_of_memory", message="NCCL", held=found))
    assert text.startswith("NCCL; GPU 1 has 1.00 kB: ")


def test_a_snapshot_that_cannot_be_written_leaves_the_numbers_and_a_line(
    history: Snapshots, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", fails)
    history.ran_out(1, 250, 0, FREE)
    found = history.held(torch.cuda.OutOfMemoryError("CUDA out of memory"), None)
    assert found.wanted_bytes == 250 and found.snapshot is None
    assert "no memory snapshot: " in capsys.readouterr().err


def test_nothing_is_recorded_unless_the_job_asks_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    queued: list[Any] = []
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: started.append(options))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda _function: None, raising=False)
    for asked in (False, True):
        history = MemoryHistory()
        history.begin(lambda asked=asked: make_job_file(tmp_path, memory_snapshot=asked))
        assert not started  # CUDA has not
        queued.pop()()
        assert len(started) == asked
    assert started[0]["stacks"] == "python" and started[0]["max_entries"] < sys.maxsize
