"""Figures of what a result costs besides time."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import MARKS, NONE, POINTS, RATIOS

FIGURES = (
    Figure(
        name="tradeoff",
        order=60,
        question="How many devices: what does a shorter training cost in device-hours?",
        caption="Time of the whole training (as many samples, or tokens, for all: the most epochs of the runs) at the "
        "measured throughput, against the hours of all its devices together. A line joins the "
        "best on each number of devices, of all that learn in the same way: with the same global batch "
        "size, precision, learning rate and technique. What differs in these has another colour, and is not the same "
        "training. "
        "Each job, kind of machine and set of versions has a panel. "
        "Points are geometric means over repeats. "
        f"Bars are 95% confidence intervals; {NONE}. At a hollow mark the best that learns in the same way on as "
        "many devices is faster, at the 5% level, corrected for its having been chosen.",
        limits="The time is extrapolated from the measured steps: start, tests and saving are not in it. Whether the "
        "training reaches its accuracy is not shown (see `accuracy`). Where the length of a pass is not known, the "
        "training has a million samples.",
        drawing="multicard.figures.costs:tradeoff",
        needs_tables=True,
    ),
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
        f"means over repeats, small dots single repeats. Whiskers {RATIOS}. {MARKS} All other times come from steps "
        "during which no profiler records.",
        limits="Numbers from the trace (shares, CUDA calls, kernels, transfers, time of devices) are taken while "
        "profiling and include the overhead. A few profiled steps make this a rough estimate.",
        drawing="multicard.figures.costs:profiler_overhead",
        profiled=True,
    ),
)
