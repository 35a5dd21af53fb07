"""What a script says of itself comes before what is seen of it."""

import csv
from pathlib import Path

import pytest

from observed_scripts import STEPS, WINDOWS, Server, after_head

pytestmark = pytest.mark.slow

# A loader that is not PyTorch's, with 4 batches a pass; each phase sleeps for its own time.
MARKED = """
import multicard.marks as marks
class Batches:
    def __len__(self):
        return 4
    def __iter__(self):
        for _ in range(4):
            time.sleep(0.01)
            yield torch.randn(8, 4), torch.randint(2, (8,))
own = marks.wrap_loader(Batches())
for epoch in range(1000):
    for number, (x, y) in enumerate(own):
        with marks.phase("transfer"):
            time.sleep(0.02)
        with marks.phase("forward"):
            time.sleep(0.03)
            loss = loss_of(x, y)
        with marks.phase("backward"):
            loss.backward()
        with marks.phase("optimizer"):
            optimizer.step()
        marks.log(loss=float(epoch))
        marks.step(samples=5)
    time.sleep(0.05)  # between passes, in no step
"""


def test_marked_phases_come_before_inferred_ones(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(MARKED))
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    assert len(steps) >= STEPS and {step["samples"] for step in steps} == {"5"}
    for step in steps[1:]:
        times = [float(step[f"{phase}_s"]) for phase in ("data", "transfer", "forward", "backward", "optimizer")]
        least = [0.01, 0.02, 0.03, 0.0, 0.0]
        assert all(time_s >= of for time_s, of in zip(times, least, strict=True))
        assert sum(times) <= float(step["duration_s"])
    # The first mark ends no step, so the first pass has three; each pass is an epoch, which is what was logged.
    assert [int(step["epoch"]) for step in steps[:8]] == [1, 1, 1, 2, 2, 2, 2, 3]
    assert [float(step["loss"]) + 1 for step in steps[:8]] == [1, 1, 1, 2, 2, 2, 2, 3]
    [loader] = found.rank["observed"]["loaders"]
    assert (loader["kind"], found.rank["steps_per_pass"]) == ("Batches", 4)


NODES = """
import multicard.marks as marks
import torchdata.nodes as nodes
from torch.utils.data import SequentialSampler, default_collate
def sample(number):
    time.sleep(0.002)
    return torch.randn(4), number % 2
numbers = nodes.Mapper(nodes.SamplerWrapper(SequentialSampler(range(64))), sample)
loader = nodes.Loader(nodes.Mapper(nodes.Batcher(numbers, 8), default_collate))
for epoch in range(1000):
    for x, y in WRAPPED:
        loss_of(x, y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("wrapped", "samples"), [("loader", {""}), ("marks.wrap_loader(loader)", {"8"})])
def test_loaders_of_torchdata_are_seen_once_they_are_wrapped(
    wrapped: str, samples: set[str], server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(NODES.replace("WRAPPED", wrapped)))
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    assert {step["samples"] for step in steps} == samples
    if samples == {"8"}:  # of which each takes two milliseconds to load
        assert all(float(step["data_s"]) >= 8 * 0.002 for step in steps)


def test_values_belong_to_the_step_that_made_them(server: Server, tmp_path: Path) -> None:
    script = """
    import multicard.marks as marks
    made = 0
    for epoch in range(1000):
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
            made += 1
            marks.log(loss=torch.tensor(float(made)), weight=3.0)  # after the update, which ends the step
            marks.log(loss=0.0)
    """
    found = server.run(tmp_path, after_head(script))
    [steps] = found.steps
    # The first update ends no step, and the script ends with the last one. Of two values the mean is by their weights.
    assert [float(step["loss"]) for step in steps[:-1]] == [0.75 * (int(step["step"]) + 1) for step in steps[:-1]]


def test_a_stated_training_is_measured_from_its_first_step_and_profiled_in_a_pass_of_its_own(
    server: Server, tmp_path: Path
) -> None:
    script = """
    import itertools
    import multicard.marks as marks
    assert marks.training(steps=6)
    for epoch in itertools.count(1):
        for number, (x, y) in enumerate(loader):
            loss_of(x, y).backward()
            optimizer.step()
            marks.step()
            if number == 1 and epoch < 4:
                break
        marks.log(test_accuracy=epoch / 10)
    """
    found = server.run(tmp_path, after_head(script), measured_steps=None)
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    assert {step["samples"] for step in steps} == {"8"}  # what its loader gave since the mark before
    assert [step["window"] for step in steps[:6]] == ["warmup"] * WINDOWS["warmup_steps"] + ["measured"] * 5
    assert [int(step["epoch"]) for step in steps[:7]] == [1, 1, 2, 2, 3, 3, 4]
    assert {step["window"] for step in steps[6:]} == {"warmup", "profiled"}
    epochs = (tmp_path / "scratch" / "epochs.csv.rank0").read_text().splitlines()[1:]
    assert [(row.split(",")[0], row.split(",")[3]) for row in epochs[:3]] == [("1", "0.1"), ("2", "0.2"), ("3", "0.3")]


def test_a_phase_ends_where_its_block_raises(server: Server, tmp_path: Path) -> None:
    script = """
    import multicard.marks as marks
    while True:
        for x, y in loader:
            try:
                with marks.phase("forward"):
                    time.sleep(0.01)
                    raise StopIteration
            except StopIteration:
                time.sleep(0.1)
            with marks.phase("backward"):
                loss_of(x, y).backward()
            optimizer.step()
            marks.step()
    """
    found = server.run(tmp_path, after_head(script))
    assert found.rank["outcome"] == "completed", found.output
    assert all(0.01 <= float(step["forward_s"]) < 0.1 for step in found.steps[0])


def test_values_of_an_epoch_and_of_a_step_in_one_call_each_go_to_their_table(server: Server, tmp_path: Path) -> None:
    script = """
    import multicard.marks as marks
    while True:
        for x, y in loader:
            loss = loss_of(x, y)
            loss.backward()
            marks.log(loss=0.5, train_loss=torch.tensor([1.0, 3.0]), test_loss=lambda: torch.tensor(7.0), other="x")
            optimizer.step()
    """
    found = server.run(tmp_path, after_head(script))
    assert found.rank["outcome"] == "completed", found.output
    assert {step["loss"] for step in found.steps[0]} == {"0.5"}
    with (tmp_path / "scratch" / "epochs.csv.rank0").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"epoch": "1", "train_loss": "2.0", "test_loss": "7.0", "test_accuracy": "", "epoch_time_s": ""}


def test_a_training_that_is_all_warmup_is_refused_in_one_line(server: Server, tmp_path: Path) -> None:
    script = """
    import multicard.marks as marks
    marks.training(steps=1)
    """
    found = server.run(tmp_path, after_head(script), measured_steps=None)
    assert found.exit_code == 1
    assert found.rank["reason"]["message"] == "warmup_steps: 1, but the run has only 1 steps"
