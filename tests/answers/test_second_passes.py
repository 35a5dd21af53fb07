"""Forward passes that no backward pass follows, of synthetic runs whose samples are stated."""

from pathlib import Path

import pytest

from factories import Row, make_results, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.diagnosis import Diagnosis

STEP_S = 0.080
# 20 ms of a step are in no phase.
PHASES = {"data_s": 0.001, "forward_s": 0.019, "backward_s": 0.038, "optimizer_s": 0.002}
IN_FORWARD = {"phase": "forward", "site": "net.py:35", "function": "Network.forward", "caller": "train.py:37"}
OUTSIDE = IN_FORWARD | {"phase": None, "caller": "train.py:23"}


def causes(folder: Path, *lines: Row, device: str = "cpu", passes: float = 1.0, **phases: float) -> list[Diagnosis]:
    """Causes of a run of 50 steps, of which 100 samples were taken."""
    times = {"iteration_time_s": STEP_S, "mean_iteration_time_s": STEP_S} | PHASES | phases
    [run] = vision_runs(100.0, (1.0,), device=device, measured_steps=50, **times)
    steps = [
        {"at": 0, "rank": 0, "epoch": 1, "step": step, "window": "measured", "duration_s": STEP_S} | PHASES
        for step in range(1, 51)
    ]
    samples = [{"at": 0, "rank": 0, "stack_samples": 100} | line for line in lines]
    setup = [{"at": 0, "rank": 0, "backward_passes": passes}]
    tables = {"steps": steps, "code_lines": samples, "training_setup": setup}
    results = make_results(folder, [run], gpu=None, tables=tables)
    found = causes_of(results.configurations()[0], results)
    return [cause for cause in found if "no backward pass follows" in cause.evidence]


TRAINED = IN_FORWARD | {"samples_there": 25}


def test_a_forward_pass_after_the_update_is_told_with_the_line_that_calls_it(tmp_path: Path) -> None:
    [found] = causes(tmp_path, TRAINED, OUTSIDE | {"samples_there": 25})
    # All 25 samples outside of the phases: by Wilson's formula at least 25 / (25 + 1.96²) = 86.7 % of 25 %.
    assert found.evidence == (
        "about 25% of a step (20.0 ms; 95% CI 22% to 25%, n=25) is forward passes that no backward pass follows, "
        "called in train.py, line 23"
    )
    assert found.share == pytest.approx(0.25)
    assert found.remedy.startswith("the outputs of the forward pass that is trained, used again")


def test_what_else_is_outside_of_the_phases_takes_its_part_of_the_time(tmp_path: Path) -> None:
    logs = {"phase": None, "site": "train.py:50", "function": "log", "samples_there": 10}
    [found] = causes(tmp_path, TRAINED, OUTSIDE | {"samples_there": 15}, logs)
    assert found.share == pytest.approx(0.25 * 15 / 25)


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        # A metric that is a module, too, is in no forward pass that is trained.
        ([TRAINED, OUTSIDE | {"function": "Accuracy.forward", "samples_there": 25}], {}),
        # The generator's forward pass comes after the update of the discriminator.
        ([TRAINED, OUTSIDE | {"samples_there": 25}], {"passes": 2.0}),
        ([TRAINED, OUTSIDE | {"samples_there": 25}], {"device": "cuda"}),
        ([TRAINED, OUTSIDE | {"samples_there": 2}], {}),
        # Without a loader the forward pass that is trained is outside of the phases itself.
        ([TRAINED, OUTSIDE | {"samples_there": 25}], {"forward_s": 0.0}),
        ([TRAINED, OUTSIDE | {"phase": "forward", "samples_there": 25}], {}),
    ],
)
def test_passes_that_may_be_trained_are_not_told(lines: list[Row], changes: dict[str, float], tmp_path: Path) -> None:
    assert causes(tmp_path, *lines, **changes) == []
