"""Figures of how far runs are from the limits of their machine."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS, POINTS

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
    Figure(
        name="roofline",
        order=38,
        question="Is training bound by what the device computes, or by what its memory moves?",
        caption="Operations per second of a device, those of recomputed activations included, over its operations per "
        "byte: a point per configuration. Below the level line is what the device computes at most (matrix products, "
        "by the peak that the line names), below the sloping one what its memory moves at most (Williams et al. 2009, "
        f"doi:10.1145/1498765.1498785). {POINTS}",
        limits="Bytes are those of the tensors that PyTorch's operators read and write, each once per operator, which "
        "kernels that are fused and caches undercut: a point may lie above the sloping line. They are counted in one "
        "step of the warm-up. On CPUs the sloping line is of one process alone, while processes share the memory. "
        "Where little is computed per byte, fewer bytes help (lower precision, fused kernels, torch.compile); far "
        "below both lines something else bounds the step (`utilization` says what). Compiled steps are not counted.",
        drawing="multicard.figures.roofline:roofline",
    ),
)
