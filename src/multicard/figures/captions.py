"""What each figure asks, how it is read, and which figure of a paper it answers, where that is known.

Papers: A is arXiv 2503.15252, B is arXiv 2505.22905. Only A's figures 1 to 5 are known by their captions.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caption:
    """Words about one figure: its question, what is drawn, and what of a paper it answers."""

    question: str
    caption: str
    answers: str | None = None


# What `statistics` gives as bounds: few repeats have their range, which is no interval of 95 %.
_RANGE = "their range, from six repeats on their 95 % bootstrap interval; one repeat has none"
_RATIOS = "the range of the ratios of single repeats, from four repeats on the 95 % bootstrap interval"
_INTERVAL = f"Points are medians over repeats, whiskers {_RANGE}."
_BARS = "Bars are medians over repeats."
_SUMMED = "Durations that overlap add up, so this is no wall time."
_GAIN = (
    "Gain in speed: time per step without over time per step with, minus 1, all other parameters being equal. Whiskers "
    f"are {_RATIOS}; a hollow mark says that they hold 0, so that no difference is shown. A half-filled mark is of one "
    "repeat, which has no whiskers and cannot tell."
)

CAPTIONS: dict[str, Caption] = {
    "iteration_time": Caption(
        "How long does a step take, and how much is learned per second, on more devices?",
        "Iteration time: median of an optimizer step. Throughput: of images, distinct training samples per second, "
        "where the ranks of plain ddp all see the same samples, so these count once; of texts, tokens per second "
        "without padding. " + _INTERVAL,
        "A, figures 1 and 4",
    ),
    "speedup": Caption(
        "What does another device gain?",
        "Speed-up: the throughput (of images in distinct samples, of texts in tokens) over that of one device "
        "(strategy single where the scenario has it). Efficiency: the speed-up per device. The dotted line is ideal "
        f"scaling. Points are medians over repeats, whiskers {_RATIOS}; one repeat has none.",
        "A, figures 1 and 4",
    ),
    "image_size_scaling": Caption(
        "Do more devices pay when images are larger?",
        "Time: of one pass over the training data, time per step × steps of a pass. Efficiency: the speed-up over one "
        "device per device; the dotted line is ideal scaling. Points are medians over repeats, whiskers of times "
        f"{_RANGE}; those of efficiency are {_RATIOS}.",
        "A, figure 2",
    ),
    "step_breakdown": Caption(
        "Where does the time of a step go?",
        "Mean time of an optimizer step, split into its phases as each rank's own clock measured them, mean over ranks "
        "and measured steps, median over repeats. On several ranks backward holds the gradient exchange.",
    ),
    "time_shares": Caption(
        "What part of the time do copies, launches, waiting and NCCL take?",
        "Four shares of summed time in the profiled steps, each of what its axis names: copies from the host of the "
        "time of all memory operations on the cards, kernel launches and synchronizations of the time of all CUDA API "
        "calls of the host, NCCL of the time of all kernels. " + _INTERVAL,
        "A, figure 3",
    ),
    "cuda_api": Caption(
        "Which calls of the CUDA API does the host spend its time in?",
        "Time of the calls per profiled step and process, the functions that the papers report on first, then those "
        f"with most time. {_SUMMED} {_BARS}",
        "A, figure 5",
    ),
    "kernel_classes": Caption(
        "What do the cards compute?",
        "Time of kernels per profiled step and card by class, as far as their names tell; communication holds the time "
        f"that NCCL's kernels wait for other ranks. {_SUMMED} {_BARS}",
    ),
    "memory_transfers": Caption(
        "What do transfers take and move?",
        "Time and bytes of copies and fills on a card per profiled step, by direction and, where the trace tells, by "
        f"the kind of host memory, which has the same colour in both. {_SUMMED} {_BARS}",
    ),
    "device_time": Caption(
        "Is a card busy, does it wait for others, or is it idle?",
        "Share of the profiled time: every moment of a card counts once. Communication alone is exposed: the card "
        "computes nothing meanwhile. Idle time is judged by what ends it: a kernel that the host launched late, or a "
        "collective. Bars are means over cards, medians over repeats; each mark is the busy time of one card of one "
        "run.",
    ),
    "precision": Caption(
        "What do number formats gain in speed and cost in accuracy?",
        "Iteration time: median of an optimizer step per number format; fp16 and bf16 are mixed precision. Beside it "
        f"the test accuracy after the last epoch. Bars are medians over repeats, whiskers {_RANGE}.",
    ),
    "gain_precision": Caption(
        "What does a lower precision gain, on which sizes and how many devices?",
        f"{_GAIN} Where it was tested: accuracy after the last epoch, medians over repeats, a mark per number "
        "of devices.",
    ),
    "gain_pin_memory": Caption("What does pinned memory gain, and does that shrink with more devices?", _GAIN),
    "gain_loader": Caption("What does NVIDIA DALI gain over PyTorch's DataLoader?", _GAIN),
    "gain_layout": Caption("What does the memory layout NHWC gain over NCHW?", _GAIN),
    "gain_binding": Caption("What does binding each rank to the CPUs next to its card gain?", _GAIN),
    "gain_preset": Caption("What do PyTorch's own switches gain over the papers' settings?", _GAIN),
    "techniques": Caption(
        "What does each technique of tuning cost in time and memory?",
        "Median time of an optimizer step, and tokens per second without padding; DPO computes the tokens of both "
        "answers, the other techniques those of one. Peak memory: the highest of a rank, on a GPU what PyTorch "
        "allocated, on a CPU all that the process holds, most of which are libraries. Weights, and what training adds: "
        "what the fullest rank holds of the model, counted from its tensors, which no library blurs. Bars are medians "
        f"over repeats, whiskers {_RANGE}. Where a run did not complete, its outcome stands in the place of the bar.",
    ),
    "text_datasets": Caption(
        "What does the data set change, and is it the length of its samples?",
        "Iteration time: median of an optimizer step. Length: mean tokens of a sample, uncut, with the share of "
        "computed positions that is padding and the share of samples that is cut to the sequence length. By tokens: "
        "time against the tokens of a step, per rank; proportional times lie on a line through the corner. A point "
        "counts tokens without padding, the line from it leads to where it would be with padding. Bars and points are "
        f"medians over repeats, whiskers {_RANGE}.",
    ),
    "step_times": Caption(
        "How much do step times scatter?",
        "Times of the measured steps, of each step its slowest rank's, all repeats together: the box holds the middle "
        "half with the median, whiskers reach to the 1st and 99th percentile; the printed figure has a dot for each "
        "step beyond.",
    ),
    "accuracy": Caption(
        "How long does it take to reach an accuracy?",
        "Test accuracy after each epoch against the training time up to it, tests not counted; a line per run. The "
        "dotted line is the goal that the papers set.",
    ),
    "energy": Caption(
        "How much energy does a sample, or a token, cost?",
        "Energy of all cards in the measured steps by NVML's counter, per sample that they processed, of texts per "
        "token without padding. " + _INTERVAL,
    ),
    "profiler_overhead": Caption(
        "What does recording a trace cost?",
        "How much longer a step is in the profiled window than in the measured one. Marks are medians over repeats, "
        f"whiskers {_RANGE}. A hollow mark says that they hold 0, so that no difference is shown; a half-filled one is "
        "of one repeat, which cannot tell. All other times come from steps that no profiler records.",
    ),
}
