"""Figures of what a result costs besides time."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import MARKS, POINTS, RATIOS

FIGURES = (
    Figure(
        name="energy",
        order=61,
        question="How much energy does an image, or a token, cost?",
        caption="Energy of all GPUs in the measured steps, from NVML's counter: for vision runs per processed image, "
        f"for LLM runs per token without padding. {POINTS}",
        limits="It does not show the power draw of the whole machine: CPUs, memory, fans and idle GPUs are not "
        "metered. Runs on a CPU have no energy.",
        drawing="multicard.figures.costs:energy",
    ),
    Figure(
        name="profiler_overhead",
        order=62,
        question="How much does profiling slow a step down?",
        caption="How much longer a step takes in the profiled window than in the measured one. Points are geometric "
        f"means over repeats. Whiskers {RATIOS}. {MARKS} All other times come from steps during which no profiler "
        "records.",
        limits="Numbers from the trace (shares, CUDA calls, kernels, transfers, time of devices) are taken while "
        "profiling and include the overhead. A few profiled steps make this a rough estimate.",
        drawing="multicard.figures.costs:profiler_overhead",
        profiled=True,
    ),
)
