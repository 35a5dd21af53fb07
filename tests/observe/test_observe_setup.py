"""How a script trains is in its record: what makes it parallel, what it exchanges, how it updates, what was left on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.observe.training_setup import PassCounts, describe_setup
from multicard.runs.record import TrainingSetup
from observed_scripts import Server, after_head, run

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

# A group of one rank, in which DistributedDataParallel does all but send.
ALONE = """
import contextlib
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
LOOP = """
def batches():
    while True:
        yield from loader
"""


def setup_of(server: Server, tmp_path: Path, script: str, **stated: Any) -> dict[str, Any]:
    found = server.run(tmp_path, after_head(script), **{"profiled_steps": 0} | stated)
    assert found.rank["outcome"] == "completed", found.output
    setup = found.rank["observed"]["setup"]
    TrainingSetup.from_values(setup)
    return setup


# Of four backward passes; `{within}` is the context of the first three, `{between}` follows each.
FOUR_PASSES = (
    ALONE
    + LOOP
    + """
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(batches(), start=1):
    with {within} if number % 4 else contextlib.nullcontext():
        loss_of(x, y, model).backward()
    {between}
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
)
NOTHING = "contextlib.nullcontext()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("within", "between", "exchanged", "needless"),
    [
        (NOTHING, "pass", 4, 3),
        ("model.no_sync()", "pass", 1, 0),
        # As in an optimizer that looks ahead: each pass has gradients of its own.
        (NOTHING, "optimizer.zero_grad()", 4, 0),
        (NOTHING, "optimizer.zero_grad(set_to_none=False)", 4, 0),
        # The gradients of each pass are changed, which needs those of all ranks.
        (NOTHING, "nn.utils.clip_grad_norm_(model.parameters(), 1e-3)", 4, 0),
    ],
    ids=["accumulated", "no_sync", "cleared", "zeroed", "clipped"],
)
def test_exchanges_are_needless_before_a_pass_that_adds_to_the_same_gradients(
    within: str, between: str, exchanged: int, needless: int, server: Server, tmp_path: Path
) -> None:
    setup = setup_of(server, tmp_path, FOUR_PASSES.format(within=within, between=between))
    assert setup["wrapper"] == "DistributedDataParallel"
    assert [setup[name] for name in ("backward_passes", "exchanged_passes", "needless_exchanges")] == [
        4, exchanged, needless,
    ]  # fmt: skip


# Two wrapped models take turns, as in adversarial training; which of them a pass is of is not known.
TWO_MODELS = (
    ALONE
    + LOOP
    + """
models = [DistributedDataParallel(module=nn.Linear(4, 2)) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for x, y in batches():
    for model, optimizer in zip(models, optimizers):
        loss_of(x, y, model).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)


@pytest.mark.slow
def test_of_two_wrapped_models_it_is_not_known_which_one_a_pass_exchanges(server: Server, tmp_path: Path) -> None:
    setup = setup_of(server, tmp_path, TWO_MODELS)
    assert setup["exchanged_passes"] is None and setup["needless_exchanges"] is None
    assert setup["backward_passes"] == 2
    assert setup["gradient_bytes"] == 2 * (4 * 2 + 2) * 4


# A bucket is closed by the tensor with which it exceeds 20000 bytes. Each of ten layers has 16640, so two make a
# bucket, and what comes before them makes the last one. Batch norm has 64 means, 64 variances, and a count of 8 bytes.
MANY_BUCKETS = (
    ALONE
    + LOOP
    + """
layers = [nn.Linear(64, 64) for _ in range(10)]
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), *layers, nn.Linear(64, 2)),
                                bucket_cap_mb=20000 / 2**20, {options})
optimizer = torch.optim.{optimizer}
with torch.autograd.set_detect_anomaly({anomaly}):
    for x, y in batches():
        loss_of(x, y, model).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)


@pytest.mark.slow
def test_buckets_buffers_and_the_optimizer_are_described(server: Server, tmp_path: Path) -> None:
    optimizer = "AdamW(model.parameters(), fused=True)"
    setup = setup_of(server, tmp_path, MANY_BUCKETS.format(options="", optimizer=optimizer, anomaly=False))
    assert setup["gradient_bytes"] == 4 * (4 * 64 + 64 + 2 * 64 + 10 * (64 * 64 + 64) + 64 * 2 + 2)
    assert setup["bucket_limit_bytes"] == 20000
    assert setup["buckets"] == 6
    assert setup["broadcast_bytes"] == 64 * 4 * 2 + 8
    assert setup["finds_unused"] is False and setup["has_unused"] is None
    assert setup["parameters"] == 2 + 2 + 20 + 2
    assert setup["loops_over_parameters"] is False and setup["can_fuse"] is True
    assert setup["has_convolutions"] is False and setup["is_compiled"] is False
    assert setup["debugging"] == []


@pytest.mark.slow
def test_a_search_for_unused_parameters_and_anomaly_detection_are_seen(server: Server, tmp_path: Path) -> None:
    script = MANY_BUCKETS.format(
        options="find_unused_parameters=True, broadcast_buffers=False",
        optimizer="RMSprop(model.parameters())",
        anomaly=True,
    )
    setup = setup_of(server, tmp_path, script)
    assert setup["finds_unused"] is True and setup["has_unused"] is False
    assert setup["broadcast_bytes"] == 0
    assert setup["loops_over_parameters"] is True and setup["can_fuse"] is False
    assert setup["debugging"] == ["anomaly detection"]


UNUSED = (
    ALONE
    + LOOP
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        return self.used(x)
model = DistributedDataParallel(Model(), find_unused_parameters=True, static_graph={static})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.use_deterministic_algorithms(True)
with torch.autograd.profiler.profile():
    for x, y in batches():
        loss_of(x, y, model).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
def test_unused_parameters_and_a_profiler_of_the_script_are_seen(static: bool, server: Server, tmp_path: Path) -> None:
    setup = setup_of(server, tmp_path, UNUSED.format(static=static))
    assert (setup["finds_unused"], setup["has_unused"]) == ((False, None) if static else (True, True))
    assert setup["debugging"] == ["deterministic algorithms", "autograd profiler"]


PLAIN = """
model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))
run = torch.compile(model, backend="eager") if {compiled} else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for x, y in loader:
        loss_of(x, y, run).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_plain_script_is_described(compiled: bool, server: Server, tmp_path: Path) -> None:
    setup = setup_of(server, tmp_path, PLAIN.format(compiled=compiled))
    assert setup == {
        "backends": [], "wrapper": None, "backward_passes": 1, "collectives": 0, "exchanged_passes": None,
        "needless_exchanges": None, "parameters": 4, "loops_over_parameters": True, "can_fuse": True,
        "has_convolutions": True, "is_compiled": compiled, "graph_breaks": 0 if compiled else None, "debugging": [],
    }  # fmt: skip


GRAPH_BREAK = PLAIN.replace("nn.Linear(8, 2))", "nn.Linear(8, 2), Breaking())").replace(
    "model =", """
class Breaking(nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x
model =""", 1)  # fmt: skip


@pytest.mark.slow
def test_graph_breaks_are_counted(server: Server, tmp_path: Path) -> None:
    assert setup_of(server, tmp_path, GRAPH_BREAK.format(compiled=True))["graph_breaks"] >= 1


# Each step exchanges one bucket, one mask of unused parameters, and the statistics of batch norm, which are of two
# types: four collectives, and one of the script's own. Those of the evaluation between measured steps are none.
TWO_RANKS = (
    LOOP
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
model = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    loss = loss_of(x, y, model)
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
"""
)
SHARDED = (
    LOOP
    + """
import torch.distributed as dist
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    loss_of(x, y, model).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


@pytest.mark.slow
def test_collectives_of_two_ranks_are_counted(tmp_path: Path) -> None:
    found = run(tmp_path, after_head(TWO_RANKS), TORCHRUN, profiled_steps=0)
    assert [rank["outcome"] for rank in found.ranks] == ["completed"] * 2, found.output
    for rank in found.ranks:
        setup = rank["observed"]["setup"]
        assert setup["collectives"] == 5
        assert setup["backends"] == ["gloo"]


@pytest.mark.slow
def test_sharded_models_are_seen(tmp_path: Path) -> None:
    found = run(tmp_path, after_head(SHARDED), TORCHRUN, profiled_steps=0)
    assert [rank["outcome"] for rank in found.ranks] == ["completed"] * 2, found.output
    for rank in found.ranks:
        assert rank["observed"]["setup"]["wrapper"] == "FSDP"
        assert "buckets" not in rank["observed"]["setup"]


def test_without_an_optimizer_what_it_does_is_not_known() -> None:
    setup = describe_setup(None, torch.device("cpu"), PassCounts(passes=30), 10, None, updates_in_graph=False)
    record = TrainingSetup.from_values(setup)
    assert record.backward_passes == 3
    assert (record.collectives, record.parameters, record.loops_over_parameters) == (None, None, None)
