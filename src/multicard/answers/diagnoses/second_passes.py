"""Diagnosis of forward passes that no backward pass follows, such as a second one over the batch for its accuracy.

They are seen by samples of the stack (`code_lines`), outside of the phases of a step: a forward pass that comes before
the backward pass, such as a teacher's, counts as a part of the one that is trained.

If 10 of 40 samples are in the model outside of the phases, and all that is there takes 25% of a step of 80 ms by the
clock, the model takes 20 ms of it where all samples there are in the model.
"""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.code_lines import FEWEST_SAMPLES, model_calls_outside
from multicard.answers.diagnoses.diagnosis import OUTSIDE, Diagnosis
from multicard.answers.diagnoses.host_work import place
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup

# With several backward passes in a step, one may follow that the step's phases do not show as such: after the lead
# optimizer has updated, the next step begins, in which another model is trained.
MOST_BACKWARD_PASSES = 1.01

_REMEDY = (
    "the outputs of the forward pass that is trained, used again, or fewer of the forward passes besides (as in one of "
    "many steps)"
)


def diagnoses(configuration: Configuration, results: Results, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield the line that calls the model in a step without a backward pass afterwards, if it surely takes long."""
    passes = setup.backward_passes
    if not configuration.mean("forward_s") or passes is None or passes > MOST_BACKWARD_PASSES:
        return
    calls = model_calls_outside(configuration, results)
    if not calls:
        return
    site, samples, share, seconds = calls[0]
    if samples < FEWEST_SAMPLES or (share.low or 0.0) < LEAST:
        return
    low, high = percent(share.low or 0.0), percent(share.high or 1.0)
    evidence = (
        f"about {percent(share.value)} of a step ({with_unit(seconds, SECONDS)}; 95% CI {low} to {high}, n={samples}) "
        f"is forward passes that no backward pass follows{place(site, ', called in ', '')}"
    )
    yield Diagnosis(evidence, _REMEDY, share.value, phase=OUTSIDE)
