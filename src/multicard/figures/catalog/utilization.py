"""Figures of how far runs are from the limits of their machine."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS

FIGURES = (
    Figure(
        name="utilization",
        order=37,
        question="How far is training from what the device can compute, and where does the rest go?",
        caption="Left: model FLOP utilization, the operations of the model in a measured step over those that the "
        "device could have computed in that time, by the peak that the axis names; behind it, where activations are "
        "recomputed, the same with these operations (HFU). Where no peak is known, the rate itself. "
        f"{BARS} Right: what the step consists of, in the words of the bottlenecks, medians over repeats: on GPUs by "
        "the trace of the profiled steps, where data loading is the idle time that the wait for data explains; else by "
        "the phases of the measured steps, where compute includes communication.",
        limits="A GPU that computes all the time may be far from its peak: small or memory-bound kernels count as "
        "computing. What the measured peak is, [Limits of the machine](machine.md) says; a vendor's is higher.",
        drawing="multicard.figures.utilization:utilization",
        needs_tables=True,
        profiled=True,
    ),
)
