"""Diagnosis of forward passes that no backward pass follows, such as a second one over the batch for its accuracy.

They are seen by samples of the stack (`phase_samples`), outside of the phases of a step: a forward pass that comes
before the backward pass, such as a teacher's, counts as a part of the one that is trained.

If 10 of 40 samples are in the model outside of the phases, and all that is there takes 25% of a step of 80 ms by the
clock, the model takes 20 ms of it where all samples there are in the model.
"""

from collections.abc import Iterator
from typing import NamedTuple

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import OUTSIDE, Diagnosis
from multicard.answers.diagnoses.host.host_work import place
from multicard.answers.diagnoses.user_code.phase_samples import FEWEST_SAMPLES, is_phase, samples_in_phase
from multicard.core.layout import FORWARD
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup
from multicard.stats.interval import Interval

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
    call = _longest_model_call(configuration, results)
    if call is None or call.samples < FEWEST_SAMPLES or (call.share.low or 0.0) < LEAST:
        return
    low, high = percent(call.share.low or 0.0), percent(call.share.high or 1.0)
    time = f"{with_unit(call.seconds, SECONDS)}; 95% CI {low} to {high}, n={call.samples}"
    evidence = (
        f"about {percent(call.share.value)} of a step ({time}) is forward passes that no backward pass follows"
        f"{place(call.site, ', called in ', '')}"
    )
    yield Diagnosis(evidence, _REMEDY, call.share.value, phase=OUTSIDE, most_share=call.share.high)


class _ModelCall(NamedTuple):
    """A line of the user's code that calls the model outside of the phases of a step."""

    # File and number of the line: "train.py:12".
    site: str
    samples: int
    # Share of the step that the model takes when it is called there, from 0 to 1, and the seconds of a step.
    share: Interval
    seconds: float


def _longest_model_call(configuration: Configuration, results: Results) -> _ModelCall | None:
    """Return the line with the most samples among those that call the model outside of the phases of a step.

    The model is what computes in the forward passes of training, too: a module that does not, such as a metric, is not
    meant. None on GPUs, whose time the host's is not, without steps, and without such a line.
    """
    samples = samples_in_phase(configuration, results, None)
    step_s = configuration.mean("iteration_time_s")
    if samples is None or step_s is None or not samples.is_timed:
        return None
    is_forward = is_phase(samples.rows, FORWARD)
    trained = samples.rows.loc[is_forward, ["file", "function"]].drop_duplicates()
    in_modules = samples.in_phase[samples.in_phase["caller"].notna()]
    in_model = in_modules.merge(trained, on=["file", "function"])
    samples_by_caller = in_model.groupby("caller")["samples_there"].sum().sort_values(ascending=False)
    if samples_by_caller.empty:
        return None
    most = int(samples_by_caller.iloc[0])
    share = samples.share_of(most)
    return _ModelCall(str(samples_by_caller.index[0]), most, share, share.value * step_s)
