"""Figures of the memory that training takes."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS

KINDS = (
    "allocated (by PyTorch, for tensors), reserved (by PyTorch's allocator, which keeps what tensors release), and "
    "used by everything on the GPU (by NVML, before any test: CUDA's context and NCCL's buffers too)"
)

FIGURES = (
    Figure(
        name="memory",
        order=71,
        question="How much memory does training need?",
        caption=f"Highest peak in the measured steps: of any GPU, {KINDS}; with CPU processes the resident memory of "
        f"any of them, most of which is libraries. {BARS} Where a run did not complete, its outcome takes the place of "
        "the bar.",
        limits="It does not show what the memory holds; of LLM runs `techniques` does. Resident memory never falls, so "
        "on a CPU it includes what preparing the run took.",
        drawing="multicard.figures.memory:memory",
    ),
    Figure(
        name="memory_over_time",
        order=72,
        question="When is memory needed?",
        caption="Peak memory of each training step over the time of the run, on the rank with the highest: allocated "
        "and, on GPUs, reserved by PyTorch's allocator; on a CPU resident. "
        "The first repeat of each configuration; of many, a row of panels per number of devices. Lines get thinner in "
        "the order of the legend, so that of lines on each other all are seen.",
        limits="A step has one number, its peak: it does not show what happens inside a step.",
        drawing="multicard.figures.memory:memory_over_time",
        needs_tables=True,
    ),
)
