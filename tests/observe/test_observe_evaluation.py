"""Evaluation inside a pass: no pass, no samples, and a part of the step that a stopwatch of the script agrees with."""

from pathlib import Path

import pytest

from observed_scripts import Server, after_head

pytestmark = pytest.mark.slow

WINDOWS = {"warmup_steps": 3, "measured_steps": 8, "profiled_steps": 4}
# A pass has 50 steps. After every second one the script evaluates, and prints its seconds with the step that follows.
LOOP = """
import itertools, time
data = TensorDataset(torch.randn(400, 4), torch.randint(2, (400,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
tests = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4)
def forward(batch):
    time.sleep(0.01)
    return model(batch[0])
{define}
updates = 0
def test():
    began = time.perf_counter()
    evaluate()
    print("evaluated", updates, time.perf_counter() - began, flush=True)
while True:
    for x, y in loader:
        loss_of(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        updates += 1
        if updates % 2 == 0:
            test()
            {after}
"""
EVALUATIONS = {
    "without gradients": """
@torch.no_grad()
def evaluate():
    for batch in tests:
        forward(batch)
""",
    "in inference mode, broken off": """
@torch.inference_mode()
def evaluate():
    for batch in itertools.islice(tests, 2):
        forward(batch)
""",
    "with gradients off for the forward pass only, broken off": """
def evaluate():
    for batch in itertools.islice(tests, 2):
        with torch.no_grad():
            forward(batch)
""",
    "two loaders, with gradients": """
def evaluate():
    for each in (tests, DataLoader(tests.dataset, batch_size=6)):
        for batch in each:
            forward(batch)
""",
    "on the training data": """
def evaluate():
    for batch in DataLoader(data, batch_size=100, shuffle=True):
        with torch.no_grad():
            forward(batch)
""",
    "by loaders that never restart, as Ultralytics' and timm's": """
class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)
class Endless(DataLoader):
    def __init__(self, *data, **options):
        super().__init__(*data, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)
loader, tests = Endless(data, batch_size=8, shuffle=True), Endless(tests.dataset, batch_size=4)
@torch.no_grad()
def evaluate():
    for batch in tests:
        forward(batch)
""",
}


def evaluation_times(output: str) -> dict[int, float]:
    """Seconds of the script's own stopwatch, by the step that the evaluation precedes."""
    words = [line.split() for line in output.splitlines() if line.startswith("evaluated")]
    return {int(updates): float(seconds) for _, updates, seconds in words}


@pytest.mark.parametrize("define", EVALUATIONS.values(), ids=EVALUATIONS)
def test_evaluation_inside_a_pass_is_a_part_of_its_own(define: str, server: Server, tmp_path: Path) -> None:
    # A checkpoint follows, but where a loader is not exhausted nothing tells the end of a test from what follows.
    after = "pass" if "islice" in define or "Endless" in define else "time.sleep(0.02)"
    found = server.run(tmp_path, after_head(LOOP.format(define=define, after=after)), **WINDOWS)
    assert found.exit_code == 0, found.output
    own = evaluation_times(found.output)
    steps = found.of("measured")
    # Step 1 ends with the second update; the evaluation after update n is at the beginning of step n.
    evaluated = {int(step["step"]): float(step["evaluation_s"] or 0) for step in steps}
    assert all(evaluated[int(step["step"])] <= float(step["duration_s"]) for step in steps)
    assert {number for number, seconds in evaluated.items() if seconds} == own.keys() & evaluated.keys()
    # A busy machine may stop the script between two marks, though hardly each time.
    differences = [abs(evaluated[number] - seconds) for number, seconds in own.items() if number in evaluated]
    assert len(differences) == 4 and min(differences) < 0.003, (evaluated, own)
    assert {step["samples"] for step in found.steps[0]} == {"8"}
    assert {step["epoch"] for step in found.steps[0]} == {"1"}
    assert found.rank["steps_per_pass"] == 50
    assert [each["batch_size"] for each in found.rank["observed"]["loaders"]] == [8]


def test_batches_that_are_drawn_without_gradients_and_trained_on_are_no_evaluation(
    server: Server, tmp_path: Path
) -> None:
    found = server.run(
        tmp_path,
        after_head("""
        while True:
            for x, y in loader.__class__.__iter__(loader):
                with torch.no_grad():
                    z, _ = next(iter(loader))
                loss_of(z, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        """),
    )
    assert found.exit_code == 0, found.output
    assert {step["evaluation_s"] for step in found.steps[0]} == {""}
