"""The observer counts and times the steps of scripts as they are written, and ends them in order."""

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from observed_scripts import STEPS, Server, after_head

pytestmark = pytest.mark.slow

LOOP = """
while True:
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
"""
PLANNED = ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
PHASES = ("data", "forward", "backward", "optimizer")


def seconds(step: dict[str, str], *phases: str) -> list[float]:
    return [float(step[f"{phase}_s"]) for phase in phases]


def test_a_plain_loop_is_counted_profiled_and_ended_after_its_last_window(server: Server, tmp_path: Path) -> None:
    script = """
    try:
        for epoch in range(1000):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(x, y).backward()
                optimizer.step()
    finally:
        print("cleaned up after epoch", epoch)
    """
    found = server.run(tmp_path, after_head(script), profiler="kineto")
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed")
    [steps] = found.steps
    assert [step["window"] for step in steps] == PLANNED
    assert [int(step["step"]) for step in steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {step["samples"] for step in steps} == {"8"}
    # The first update ends no step, so the first pass has three: then one of four has.
    assert [step["epoch"] for step in steps] == ["1", "1", "1", "2", "2", "2", "2", "3"]
    assert "cleaned up after epoch 2\n" in found.output
    assert "profiling 2 steps, after 2 more\n" in found.output  # that settle the profiler
    assert found.rank["steps_per_pass"] == 4
    observed = found.rank["observed"]
    assert observed["loaders"][0].pop("cpu_s") >= 0
    for name in ("host_work", "stack_samples", "lines", "setup", "first_batches"):  # of tests of their own
        del observed[name]
    assert observed == {
        "optimizers": ["SGD"],
        "steps_by": "optimizer",
        "loaders": [
            {
                "kind": "DataLoader",
                "sampler": "RandomSampler",
                "distinct": True,
                "batch_size": 8,
                "num_workers": 0,
                "prefetch_factor": None,
                "persistent_workers": None,
                "pin_memory": False,
                "batches_in_pass": 4,
            },
        ],
        "exchanged": False,
    }
    for step in steps:
        phases = seconds(step, *PHASES)
        assert min(phases) > 0
        assert sum(phases) <= float(step["duration_s"])
        assert step["transfer_s"] == step["loss"] == step["tokens"] == ""
    for one, other in itertools.pairwise(steps):
        if one["epoch"] == other["epoch"] and one["window"] == other["window"]:
            assert float(other["start_s"]) == pytest.approx(float(one["start_s"]) + float(one["duration_s"]))
    [process] = found.processes
    assert (process["steps"], process["rank"]) == (True, 0)

    assert found.rank["trace_problem"] is None
    with gzip.open(tmp_path / "scratch" / "rank0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    expected = dict.fromkeys(("step", *PHASES, "warmup"), 2) | {"rank:0": 1}
    assert {name: names[name] for name in expected} == expected


def test_a_closure_is_run_within_one_step(server: Server, tmp_path: Path) -> None:
    """As Lightning calls it; of optimizers that call it several times too."""
    script = """
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for epoch in range(1000):
        for x, y in loader:
            def closure():
                optimizer.zero_grad()
                time.sleep(0.02)
                loss = loss_of(x, y)
                loss.backward()
                time.sleep(0.01)
                return loss
            optimizer.step(closure)
    """
    found = server.run(tmp_path, after_head(script))
    assert [step["samples"] for step in found.steps[0]] == STEPS * ["8"]
    for step in found.steps[0]:
        forward, backward, optimizer = seconds(step, *PHASES[1:])
        assert backward > 0 and forward >= 0.02
        assert optimizer >= 0.01  # what a closure does after its backward pass is of the update
        assert forward + backward + optimizer <= float(step["duration_s"])


def test_optimizers_fused_into_the_backward_pass_make_one_step(server: Server, tmp_path: Path) -> None:
    script = """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for epoch in range(1000):
        for x, y in loader:
            loss_of(x, y, model).backward()
    """
    found = server.run(tmp_path, after_head(script))
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed")
    assert [step["samples"] for step in found.steps[0]] == STEPS * ["8"]
    assert all(float(step["backward_s"]) > 0 and step["optimizer_s"] == "" for step in found.steps[0])


def test_tests_between_passes_are_in_no_step(server: Server, tmp_path: Path) -> None:
    script = """
    tests = DataLoader(TensorDataset(torch.randn(6, 4)), batch_size=3)
    for epoch in range(1000):
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
        for has_gradients in (False, True):
            with torch.set_grad_enabled(has_gradients):
                for x, in tests:
                    model(x)
                    time.sleep(0.2)
    """
    found = server.run(tmp_path, after_head(script))
    assert [step["samples"] for step in found.steps[0]] == STEPS * ["8"]
    first = next(number for number, step in enumerate(found.steps[0]) if step["epoch"] != "1")
    assert first == 3
    before, after = found.steps[0][first - 1 : first + 1]
    assert float(after["start_s"]) - float(before["start_s"]) - float(before["duration_s"]) >= 0.8
    assert [loader["batch_size"] for loader in found.rank["observed"]["loaders"]] == [8]


def test_without_a_loader_there_are_steps_and_no_samples(server: Server, tmp_path: Path) -> None:
    script = """
    for number in range(1000):
        loss_of(torch.randn(8, 4), torch.zeros(8, dtype=int)).backward()
        optimizer.step()
    """
    found = server.run(tmp_path, after_head(script))
    assert len(found.steps[0]) == STEPS
    for step in found.steps[0]:
        assert step["samples"] == step["data_s"] == step["forward_s"] == ""
        assert min(seconds(step, "backward", "optimizer")) > 0
    assert found.rank["steps_per_pass"] is None


def test_the_wait_for_a_slow_loader_is_its_own(server: Server, tmp_path: Path) -> None:
    script = """
    class Slow(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.01)
            return super().__getitem__(index)
    loader = DataLoader(Slow(*data.tensors), batch_size=8)
    """
    found = server.run(tmp_path, after_head(script) + LOOP + "        time.sleep(0.05)")
    for step in found.steps[0]:
        assert float(step["data_s"]) >= 8 * 0.01
        if step["step"] not in ("4", "8"):  # which begin a pass, and so after what ended the last step
            assert float(step["duration_s"]) - sum(seconds(step, *PHASES)) >= 0.05


def test_the_profiled_window_waits_for_a_loader_that_reads_ahead(server: Server, tmp_path: Path) -> None:
    script = """
    loader = DataLoader(TensorDataset(torch.randn(400, 4), torch.randint(2, (400,))), batch_size=4, num_workers=2)
    """
    found = server.run(tmp_path, after_head(script) + LOOP)
    # Two workers read two batches each ahead: twice as many steps settle, and four times as many make the window. Of
    # the eight steps before it the first update and the four steps until then have passed.
    placed = {"warmup_steps": 3, "settling_steps": 8, "profiled_steps": 16, "crosses_pass": False}
    assert found.rank["profiled_window"] == placed
    windows = [step["window"] for step in found.steps[0]]
    assert windows == ["warmup"] + 3 * ["measured"] + 11 * ["warmup"] + 16 * ["profiled"]
    assert len(found.ranks) == len(found.processes) == 1  # the workers leave nothing


@pytest.mark.parametrize(
    ("profiler", "problem"),
    [("kineto", "RuntimeError: PyTorch's profiler is in use already"), ("nsys", "RuntimeError: NVTX not installed")],
)
def test_a_script_goes_on_where_its_steps_cannot_be_profiled(
    server: Server, tmp_path: Path, profiler: str, problem: str
) -> None:
    """One that profiles itself, with a torch that has no NVTX; its own trace is as it would be."""
    script = """
    def fail(*_):
        raise RuntimeError("NVTX not installed")
    torch.cuda.nvtx.range_start = torch.cuda.nvtx.mark = fail
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    own.start()
    try:
        for epoch in range(1000):
            for x, y in loader:
                with torch.profiler.record_function("of the script"):
                    loss_of(x, y).backward()
                optimizer.step()
    finally:
        own.stop()
        print("updates:", sum(event.name == "of the script" for event in own.events()))
        print("ours:", sum(event.name in ("step", "forward", "backward", "rank:0") for event in own.events()))
    """
    found = server.run(tmp_path, after_head(script), profiler=profiler)
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    assert found.rank["trace_problem"].startswith(problem)
    assert f"multicard:   no trace of rank 0: {problem}" in found.output
    assert [step["window"] for step in found.steps[0]] == PLANNED
    assert {f"updates: {STEPS + 1}", "ours: 0"} <= set(found.output.splitlines())
    assert not list((tmp_path / "scratch").glob("*.gz"))


RAISING = """
for number, (x, y) in enumerate(loader):
    if number == {steps}:
        raise {error}
    loss_of(x, y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("steps", "error", "outcome", "message"),
    [
        (3, "ValueError('no such thing')", "failed", "ValueError: no such thing"),
        (0, "torch.OutOfMemoryError('CUDA out of memory.')", "out_of_memory", "CUDA out of memory."),
    ],
)
def test_a_script_that_raises_leaves_its_record(
    server: Server, tmp_path: Path, steps: int, error: str, outcome: str, message: str
) -> None:
    script = 'import sys; sys.excepthook = lambda *_: print("handled by the script")'
    found = server.run(tmp_path, after_head(script) + RAISING.format(steps=steps, error=error))
    assert (found.exit_code, found.rank["outcome"]) == (1, outcome)
    assert message in found.rank["reason"]["message"]
    assert "handled by the script" in found.output
    assert [len(each) for each in found.steps] == ([steps - 1] if steps else [])


def test_an_error_is_recorded_though_a_gpu_never_gets_there(server: Server, tmp_path: Path) -> None:
    script = """
    from multicard.observe.record.clock import HostClock
    from multicard.observe import process
    HostClock.settle = lambda clock: time.sleep(1e6)  # in place of a queue in which a collective hangs
    process.LIMIT_S = 0.1
    """
    raising = RAISING.format(steps=3, error="RuntimeError('another rank is gone')")
    found = server.run(tmp_path, after_head(script) + raising)
    assert (found.exit_code, found.rank["outcome"]) == (1, "failed")
    assert "another rank is gone" in found.rank["reason"]["message"]


def test_a_script_that_ends_too_early_says_how_many_steps_it_made(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(LOOP.replace("while True", "if True")))
    assert (found.exit_code, found.rank["outcome"]) == (0, "failed")
    assert found.rank["reason"] == {"code": "too_few_steps", "rank": 0, "steps": 4, "needed_steps": 5}
    assert len(found.steps[0]) == 3


CATCHING = """
while True:
    for x, y in loader:
        try:
            loss_of(x, y).backward()
            optimizer.step()
        except {caught} as error:
            print("went on after", repr(error), flush=True)
"""


def test_a_script_that_takes_no_notice_of_its_end_is_ended(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(CATCHING.format(caught="BaseException")))
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed")
    assert found.output.count("went on after SystemExit(0)") == 1
    assert len(found.steps[0]) == STEPS


@pytest.mark.parametrize(("written", "outcomes"), [(True, ["failed"]), (False, [])])
def test_an_error_of_the_observer_at_the_last_step_is_not_the_scripts(
    server: Server, tmp_path: Path, written: bool, outcomes: list[str]
) -> None:
    script = f"""
    from multicard.observe import leaving
    write = leaving.write_json
    def fail(path, record):
        if not {written} or record["outcome"] == "completed":
            raise OSError(28, "No space left on device")
        write(path, record)
    leaving.write_json = fail
    """
    found = server.run(tmp_path, after_head(script) + CATCHING.format(caught="Exception"))
    assert found.exit_code == 1
    assert "went on" not in found.output
    assert "multicard: cannot go on observing: OSError: [Errno 28] No space left on device" in found.output
    assert [rank["outcome"] for rank in found.ranks] == outcomes


def test_a_process_that_trains_nothing_is_no_rank(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head("print(sum(float(loss_of(x, y)) for x, y in loader))"))
    assert (found.exit_code, found.ranks) == (0, [])
    assert not any(process["steps"] for process in found.processes)


SHORT = """
loader = DataLoader(data, batch_size=8, num_workers=2)
for epoch in range({passes}):
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
"""


def test_a_script_that_ends_after_its_measured_steps_has_completed_without_a_trace(
    server: Server, tmp_path: Path
) -> None:
    """Two passes of four steps: 1 to warm up and 3 measured, of which the first update ends none."""
    found = server.run(tmp_path, after_head(SHORT.format(passes=2)), profiler="kineto")
    assert (found.exit_code, found.rank["outcome"], found.rank["reason"]) == (0, "completed", None), found.output
    assert [step["samples"] for step in found.of("measured")] == 3 * ["8"]
    assert found.rank["trace_problem"] == (
        "the script ended after 8 steps, and a trace needs 12 since its loader reads 4 batches ahead; train longer, "
        "with fewer workers or a smaller prefetch_factor"
    )
    assert found.rank["ended_early"] is True


def test_a_pass_that_is_shorter_than_what_workers_read_ahead_needs_no_more_than_another_pass(
    server: Server, tmp_path: Path
) -> None:
    """Four batches a pass, all of which two workers read ahead; the window is the pass after the measured one."""
    found = server.run(tmp_path, after_head(SHORT.format(passes=3)), profiler="kineto")
    assert found.rank["trace_problem"] is None, found.output
    windows = [step["window"] for step in found.steps[0]]
    assert windows == ["warmup"] + 3 * ["measured"] + 3 * ["warmup"] + 4 * ["profiled"]


def test_without_a_profiler_the_last_measured_step_is_the_last(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(LOOP), profiled_steps=0)
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    assert [step["window"] for step in found.steps[0]] == ["warmup"] + 3 * ["measured"]
    assert (found.rank["profiled_window"], found.rank["observed"]["exchanged"]) == (None, False)


def test_steps_are_there_whatever_ends_a_process_after_its_measured_ones(server: Server, tmp_path: Path) -> None:
    script = """
    import os
    for number in range(6):
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
            if number == 1 and y is not None:
                os._exit(3)
    """
    found = server.run(tmp_path, after_head(script))
    assert (found.exit_code, found.ranks) == (3, [])
    assert [step["window"] for step in found.steps[0]] == ["warmup"] + 3 * ["measured"]


def test_steps_so_far_are_there_where_a_time_limit_ends_a_process(server: Server, tmp_path: Path) -> None:
    script = """
    import os, signal
    began = time.monotonic()
    while True:
        for x, y in loader:
            time.sleep(0.1)
            loss_of(x, y).backward()
            optimizer.step()
            if time.monotonic() - began > 7:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    found = server.run(tmp_path, after_head(script), measured_steps=1000, time_limit_s=6.0)
    assert (found.exit_code, found.ranks) == (-9, [])
    measured = found.of("measured")
    # They are written after three seconds or so, less what it took to begin.
    assert 1 <= len(measured) <= 40
    assert all(float(step["duration_s"]) >= 0.1 and float(step["data_s"]) > 0 for step in measured)
    assert [int(step["step"]) for step in measured] == list(range(2, len(measured) + 2))
