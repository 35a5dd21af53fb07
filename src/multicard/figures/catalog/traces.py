"""Figures of what the traces show."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import POINTS, SUMMED

FIGURES = (
    Figure(
        name="time_shares",
        order=31,
        question="What share of the time goes to copies, kernel launches, synchronization and NCCL?",
        caption="Four shares of summed time in the profiled steps, each relative to what its axis names: "
        "host-to-device copies to all memory operations on the GPUs, kernel launches and synchronizations to all CUDA "
        f"API calls of the host, NCCL kernels to all kernels. {POINTS}",
        limits="These are sums over streams, threads and GPUs in the profiled steps, not shares of wall time. "
        "Synchronization that waits for useful work is not a loss. Empty for CPU processes.",
        answers="A, figure 3",
        drawing="multicard.figures.traces:time_shares",
        needs_tables=True,
        profiled=True,
    ),
    Figure(
        name="cuda_api",
        order=32,
        question="In which CUDA API calls does the host spend its time?",
        caption="Time of the calls per profiled step and process: first the functions that the papers report, then "
        f"those with the most time. {SUMMED}",
        limits="It does not show what the GPU does meanwhile. A blocking call such as `cudaStreamSynchronize` takes as "
        "long as what it waits for.",
        answers="A, figure 5",
        drawing="multicard.figures.traces:cuda_api",
        needs_tables=True,
        profiled=True,
    ),
    Figure(
        name="kernel_classes",
        order=33,
        question="What do the GPUs spend their time computing?",
        caption="Time of kernels per profiled step and GPU, by class as far as kernel names tell. Communication "
        f"includes the time that NCCL kernels wait for other ranks. {SUMMED}",
        limits="It does not show how long a step is: kernels on several streams overlap. Kernels are classified by "
        "name alone; those that match no rule are `other`.",
        drawing="multicard.figures.traces:kernel_classes",
        needs_tables=True,
        profiled=True,
    ),
    Figure(
        name="memory_transfers",
        order=34,
        question="How long do memory transfers take, and how much do they move?",
        caption="Time and bytes of copies and fills per profiled step and GPU, by direction and, where the trace "
        f"says, by the kind of host memory; colours are the same in both panels. {SUMMED}",
        limits="It does not show whether a copy delayed anything: it may overlap with computation (see `device_time`).",
        drawing="multicard.figures.traces:memory_transfers",
        needs_tables=True,
        profiled=True,
    ),
    Figure(
        name="device_time",
        order=35,
        question="Is a GPU busy, waiting for other GPUs, or idle?",
        caption="Share of the profiled time, in which every moment of a GPU counts once. Communication is exposed "
        "where the GPU computes nothing meanwhile. Idle time is attributed to what ends it: a kernel that was "
        "launched late, because the host was launching other work (host-bound) or busy elsewhere, such as loading "
        "data; or a collective. Bars are means over GPUs and repeats; each tick "
        "marks the busy time of one GPU in one run.",
        limits="Busy does not mean well utilized: a GPU that runs one small kernel counts as busy. Waiting *inside* a "
        "collective counts as communication, not as idle (see the table `stragglers`).",
        drawing="multicard.figures.traces:device_time",
        needs_tables=True,
        profiled=True,
    ),
    Figure(
        name="collectives",
        order=36,
        question="How long do collectives take, and how fast do they move data?",
        caption="Left: time of NCCL's kernels per profiled step and GPU, by collective; it includes waiting for other "
        f"ranks. {SUMMED} Right: bus bandwidth, as nccl-tests defines it, over the size of a collective's "
        "messages, a point per configuration, collective and size, with marks of their own for each series and "
        "collective, labelled with its number of devices where that varies (points that cover each other share a "
        "label, and more than 24 labels are left out); over the time of the GPU that waited least, so a lower bound "
        "of what the links can carry. Medians over repeats.",
        limits="It does not show what the communication delays: it may overlap with computation (see `device_time`). "
        "Sizes are known where NCCL told them to the profiler: to Nsight Systems from versions on whose export has "
        "`--include-blobs`.",
        drawing="multicard.figures.traces:collectives",
        needs_tables=True,
        profiled=True,
    ),
)
