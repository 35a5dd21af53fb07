"""Backward passes of all kinds: those that update by hand end steps, and gradients alone are no forward pass."""

from pathlib import Path
from statistics import median

import pytest

from observed_scripts import WINDOWS, Server, after_head

pytestmark = pytest.mark.slow

BY_HAND = """
for number in range({passes}):
    for x, y in loader:
        model.zero_grad()
        loss_of(x, y).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        {after}
"""


def test_without_an_optimizer_backward_passes_end_the_steps_and_that_is_told(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(BY_HAND.format(passes=1000, after="")))
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    assert found.rank["observed"]["steps_by"] == "backward passes"
    assert found.rank["observed"]["optimizers"] == []
    assert len(found.of("measured")) == WINDOWS["measured_steps"]
    assert {step["samples"] for step in found.steps[0]} == {"8"}
    assert all(float(step["backward_s"]) > 0 and float(step["forward_s"]) > 0 for step in found.steps[0])


def test_fewer_backward_passes_than_an_accumulation_may_have_are_no_steps(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(BY_HAND.format(passes=20, after="")))
    assert (found.exit_code, found.ranks) == (0, [])
    [process] = found.processes
    assert (process["steps"], process["backward"]) == (False, True)


def test_an_optimizer_that_updates_later_after_all_ends_the_steps(server: Server, tmp_path: Path) -> None:
    """Gradients of 104 batches, 26 passes of four, make one update; the observer may be two backward passes ahead."""
    script = """
    number = 0
    while True:
        for x, y in loader:
            loss_of(x, y).backward()
            number += 1
            if number % 104 == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
    windows = {"warmup_steps": 5, "measured_steps": 2, "profiled_steps": 0}
    found = server.run(tmp_path, after_head(script), **windows)
    assert (found.exit_code, found.rank["observed"]["steps_by"]) == (0, "optimizer"), found.output
    assert {step["samples"] for step in found.of("measured")} == {str(104 * 8)}


# Two tasks a step: gradients of an inner step (5 ms), and the backward pass of all (20 ms); each forward pass 10 ms.
INNER = """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x, backward_s):
        context.backward_s = backward_s
        time.sleep(0.01)
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(context.backward_s)
        return gradient, None
def slow_loss(x, y, backward_s):
    return loss_of(Slow.apply(x.requires_grad_(), backward_s), y)
while True:
    for x, y in loader:
        total = 0
        for task in range(2):
            torch.autograd.grad(slow_loss(x, y, 0.005), x)
            total = total + slow_loss(x, y, 0.01)
        total.backward()
        optimizer.step()
"""


def test_gradients_alone_are_of_the_backward_pass(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(INNER))
    assert found.exit_code == 0, found.output
    # Of 70 ms asleep 30 are backward; with the gradients alone elsewhere, 20. A busy machine makes all of them longer.
    times = [(float(step["forward_s"]), float(step["backward_s"])) for step in found.steps[0]]
    assert all(forward >= 0.040 and backward >= 0.030 for forward, backward in times)
    assert 0.36 < median(backward / (forward + backward) for forward, backward in times) < 0.50


def test_gradients_of_a_model_that_is_evaluated_are_of_the_evaluation(server: Server, tmp_path: Path) -> None:
    """As forces are: the model asks for gradients of energies by positions, while nothing is trained."""
    script = """
    def forces(x):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            return torch.autograd.grad(model(x).sum(), x)
    tests = DataLoader(data, batch_size=16)
    while True:
        for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
            loss_of(x, y).backward()
            optimizer.step()
            if number == 1:
                with torch.no_grad():
                    for x, _ in tests:
                        time.sleep(0.01)
                        forces(x)
                for x, _ in tests:
                    time.sleep(0.01)
                    forces(x)
    """
    found = server.run(tmp_path, after_head(script), warmup_steps=3, measured_steps=12, profiled_steps=0)
    assert found.exit_code == 0, found.output
    assert {step["samples"] for step in found.steps[0]} == {"4"}
    # The test follows the second of eight updates in a pass, and the first update ends no step.
    evaluated = {int(step["step"]) % 8: float(step["evaluation_s"]) for step in found.steps[0] if step["evaluation_s"]}
    assert list(evaluated) == [2] and evaluated[2] >= 0.04


@pytest.mark.parametrize(
    ("loss", "optimizer", "outcome"),
    [
        ("loss_of(x, y) * float('nan')", "", "diverged"),
        ("loss_of(x, y) * float('nan')", "scaler = torch.amp.GradScaler('cpu', enabled=False)", "diverged"),
        ("loss_of(x, y)", "", "completed"),
        # What a gradient scaler skips does no harm.
        ("loss_of(x, y) * float('inf')", "scaler = torch.amp.GradScaler('cpu')", "completed"),
    ],
)
def test_a_loss_that_is_no_number_is_seen_where_a_script_does_not_log_it(
    loss: str, optimizer: str, outcome: str, server: Server, tmp_path: Path
) -> None:
    script = f"""
    scaler = None
    {optimizer}
    while True:
        for x, y in loader:
            loss = {loss}
            (scaler.scale(loss) if scaler else loss).backward()
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler: scaler.update()
            optimizer.zero_grad()
    """
    found = server.run(tmp_path, after_head(script))
    assert found.rank["outcome"] == outcome, found.output
    if outcome == "diverged":
        assert found.rank["reason"] == {"code": "diverged", "rank": 0, "loss": "nan", "step": 4}
