"""Figures of how far runs are from the limits of their machine."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS

FIGURES = (
    Figure(
        name="utilization",
        order=37,
        question="How far is training from what the device can compute, and where does the rest go?",
        caption="Where operations were counted, there is a panel of model FLOP utilization: the operations of the "
        "model in a measured step over those that the device could have computed in that time, by the peak that the "
        "axis names; behind it, where activations are recomputed, the same with these operations (HFU). Where no peak "
        f"is known, it shows the rate itself; of scripts operations are counted on request only. {BARS} The panel of "
        "where the step goes shows means over repeats, which add up: the wait for data, evaluation and stalls by the "
        "phases of the measured steps; the rest on GPUs as the trace divides the profiled steps, else by the phases, "
        "which tell compute from communication on one device only.",
        limits="A GPU that computes all the time may be far from its peak: small or memory-bound kernels count as "
        "computing. What the measured peak is, [Limits of the machine](machine.md) says; a vendor's is higher.",
        drawing="multicard.figures.utilization:utilization",
        needs_tables=True,
        profiled=True,
    ),
)
