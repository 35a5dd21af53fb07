"""Diagnosis of an optimizer that updates many tensors one by one."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.training_setup import is_small
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.runs.record import TrainingSetup

# Fewer tensors are few.
_MANY = 100


def diagnoses(configuration: Configuration, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that the optimizer updates tensors one by one although it could update many at once.

    On CPUs `foreach=True` gains little, or loses, so there is no diagnosis for an optimizer without `fused=True`.
    """
    step_s, optimizer_s = configuration.mean("mean_iteration_time_s"), configuration.mean("optimizer_s")
    if not setup.loops_over_parameters or not setup.parameters or setup.parameters <= _MANY:
        return
    on_cpu = configuration["device"] == "cpu"
    if not step_s or not optimizer_s or (on_cpu and not setup.can_fuse):
        return
    share = optimizer_s / step_s
    if is_small(share):
        return
    evidence = (
        f"the optimizer updates {setup.parameters} tensors one by one, for {with_unit(optimizer_s, SECONDS)} of a step "
        f"({percent(share)})"
    )
    yield Diagnosis(evidence, f"an optimizer with `{'fused' if setup.can_fuse else 'foreach'}=True`", share)
