"""What the host does in steps that no phase shows is counted where it happens."""

from pathlib import Path

import pytest

from multicard.core.host_work import COLLECTIVE, GARBAGE, STARTING
from multicard.observe.host_work import CallTimer, HostWork, StepWork
from observed_scripts import Server, after_head

# Four updates in a pass; the first makes no step, steps 2 to 4 are measured.
WORKING = """
import gc
import threading
import torch.distributed as dist
from torch.distributed import all_gather_object
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
gc.disable()
updates = 0
for epoch in range(1000):
    for x, y in loader:
        loss = loss_of(x, y)
        dist.all_reduce(torch.zeros(100))
        dist.all_reduce(torch.zeros(100))
        loss.backward()
        all_gather_object([None], "one")  # itself calls all_gather twice
        optimizer.step()
        updates += 1
        gc.collect()
        if updates % 2 == 0:
            torch.save(model.state_dict(), "model.pt")
        thread = threading.Thread(target=torch.save, args=(model.state_dict(), "background.pt"))
        thread.start()
        thread.join()
"""


@pytest.mark.slow
def test_garbage_saves_and_collectives_are_counted_in_their_phase(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(WORKING))
    assert found.rank["outcome"] == "completed", found.output
    work = {(each["function"], each["phase"]): each for each in found.rank["observed"]["host_work"]}
    assert set(work) == {
        ("all_reduce", "forward"), ("all_gather_object", None), ("gc.collect", None), ("torch.save", None),
    }  # fmt: skip
    reduced = work["all_reduce", "forward"]
    assert [reduced[name] for name in ("kind", "calls", "bytes", "steps", "first_steps")] == [
        COLLECTIVE, 6, 6 * 400, 3, [2, 3, 4],
    ]  # fmt: skip
    assert work["all_gather_object", None]["calls"] == work["gc.collect", None]["calls"] == 3
    # What follows an update is in the step that ends with the next one, but what ends a pass is in its last step: the
    # third one, which ends with the fourth update, after which the loader is exhausted.
    assert work["torch.save", None]["first_steps"] == work["gc.collect", None]["first_steps"] == [2, 3]
    script = (tmp_path / "script.py").read_text().splitlines()
    line = script.index("        dist.all_reduce(torch.zeros(100))") + 1
    assert reduced["site"] == f"script.py:{line}"
    measured_s = sum(float(step["duration_s"]) for step in found.of("measured"))
    assert all(0 < each["seconds"] < measured_s for each in work.values())


# Each batch has another length, which the compiled function has not seen.
COMPILING = """
loader = DataLoader(data, batch_size=8)
compiled = torch.compile(model, backend="eager", dynamic=False)
length = 0
for epoch in range(1000):
    for x, y in loader:
        length += 1
        loss = nn.functional.cross_entropy(compiled(x.repeat(length, 1)), y.repeat(length))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_compilations_are_counted_in_the_steps_that_compile(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(COMPILING))
    assert found.rank["outcome"] == "completed", found.output
    [work] = [each for each in found.rank["observed"]["host_work"] if each["kind"] == "compiling"]
    assert (work["function"], work["phase"], work["steps"], work["first_steps"]) == (
        "torch.compile", "forward", 3, [2, 3, 4],
    )  # fmt: skip
    assert work["calls"] >= 3
    assert work["site"].startswith("script.py:")


# PyTorch asks this hook why it compiles before its callbacks for the begin of a compilation.
ASKED_BEFORE = """
import time
import torch._dynamo
torch._dynamo.utils.register_hook_for_recompile_user_context(lambda: time.sleep(0.3) or "")
"""


@pytest.mark.slow
def test_what_pytorch_does_before_it_compiles_counts_as_compiling(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(ASKED_BEFORE + COMPILING))
    assert found.rank["outcome"] == "completed", found.output
    [work] = [each for each in found.rank["observed"]["host_work"] if each["kind"] == "compiling"]
    assert work["first_steps"] == [2, 3, 4]
    # In each of the three steps it is asked once, at least.
    measured_s = sum(float(step["duration_s"]) for step in found.of("measured"))
    assert 3 * 0.3 <= work["seconds"] < measured_s


@pytest.mark.slow
@pytest.mark.parametrize(("persistent", "steps"), [(False, [4]), (True, [])])
def test_workers_that_start_in_each_pass_are_counted_and_those_that_stay_are_not(
    persistent: bool, steps: list[int], server: Server, tmp_path: Path
) -> None:
    # A pass has four batches, so the fourth step, which ends with the fifth update, begins the second pass.
    script = f"""
loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers={persistent})
for epoch in range(1000):
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
"""
    found = server.run(tmp_path, after_head(script))
    assert found.rank["outcome"] == "completed", found.output
    work = [each for each in found.rank["observed"]["host_work"] if each["kind"] == STARTING]
    assert [step for each in work for step in each["first_steps"]] == steps


# In each batch 0.1 s are loading, and 0.2 s a collection of garbage, of which there may be several.
COLLECTING = """
import gc
gc.disable()
gc.callbacks.append(lambda phase, _: time.sleep(0.2) if phase == "start" else None)
def collate(samples):
    time.sleep(0.1)
    gc.enable()
    objects = [[] for _ in range(3000)]
    gc.disable()
    return torch.utils.data.default_collate(samples)
loader = DataLoader(data, batch_size=8, collate_fn=collate)
for epoch in range(1000):
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_garbage_that_python_collects_while_a_batch_is_loaded_is_no_wait_for_data(
    server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(COLLECTING))
    assert found.rank["outcome"] == "completed", found.output
    [work] = found.rank["observed"]["host_work"]
    assert (work["function"], work["phase"], work["steps"]) == ("automatic", "data", 3)
    for step in [*found.of("measured"), *found.of("profiled")]:
        assert float(step["data_s"]) >= 0.1
        assert float(step["duration_s"]) - float(step["data_s"]) >= 0.2


# What comes between two passes is in no step.
BETWEEN = """
import gc
gc.disable()
for epoch in range(1000):
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
    gc.collect()
"""


@pytest.mark.slow
def test_work_between_passes_is_in_no_step(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(BETWEEN), measured_steps=8)
    assert found.rank["outcome"] == "completed", found.output
    assert found.rank["observed"]["host_work"] == []


# Dynamo and pickle compare functions by identity.
COMPILED = """
import pickle
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
@torch.compile(fullgraph=True, backend="eager")
def reduced(x):
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return x + 1
assert reduced(torch.zeros(2)).tolist() == [1, 1]
for function in (dist.all_reduce, dist.broadcast, torch.save):
    assert pickle.loads(pickle.dumps(function)) is function
nested = []
nested.append(nested)
try:
    dist.all_gather_object([None], nested)
except RecursionError:
    raise AssertionError("the observer looked into it")
for epoch in range(1000):
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("imported", [[], ["torch.distributed._functional_collectives"]], ids=["later", "before"])
def test_collectives_compile_and_pickle_as_without_the_observer(
    imported: list[str], server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(COMPILED), imported)
    assert found.rank["outcome"] == "completed", found.output


def test_of_nested_calls_the_outermost_is_timed() -> None:
    timer = CallTimer()
    assert timer.end() is None  # it began before the process was observed
    timer.begin()
    timer.begin()
    assert timer.end() is None
    assert timer.end() > 0


def test_work_is_summed_up_by_function_and_phase() -> None:
    work = HostWork()
    for step in (7, 7, 8):
        work.add(step, "forward", StepWork(COLLECTIVE, "all_reduce", "forward", 0.5, 4, "train.py:3"))
    work.add(8, None, StepWork(GARBAGE, "gc.collect", None, 3.0, 0, None))
    longest, other = work.record()
    assert (longest["function"], longest["phase"], longest["seconds"]) == ("gc.collect", None, 3.0)
    assert [other[name] for name in ("calls", "seconds", "bytes", "steps", "first_steps", "site")] == [
        3, 1.5, 12, 2, [7, 8], "train.py:3",
    ]  # fmt: skip
