"""Figures of what one setting gains over another."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS, MARKS, RATIOS

GAIN = (
    "Speed gain: time per step without the setting divided by time per step with it, minus 1, all other parameters "
    f"being equal. Points are geometric means of the ratios of repeats, small dots these. Whiskers {RATIOS}. {MARKS}"
)


def _gain(
    parameter: str, order: int, question: str, limits: str, workload: str | None = None, more: str = ""
) -> Figure:
    """Figure of the gain that each value of `parameter` brings."""
    return Figure(
        name=f"gain_{parameter}",
        order=order,
        question=question,
        caption=f"{GAIN}{more}",
        limits=limits,
        axis=parameter,
        workload=workload,
        drawing=f"multicard.figures.gains:gain_{parameter}",
    )


FIGURES = (
    Figure(
        name="precision",
        order=41,
        question="How do precisions compare in speed and accuracy?",
        caption="Iteration time: elapsed time per optimizer step for each precision; fp16 and bf16 are mixed "
        f"precision. Test accuracy: after the last epoch. {BARS}",
        limits="It does not show the accuracy of fully trained models, only that of runs as short as the scenario "
        "makes them.",
        axis="precision",
        workload="vision",
        drawing="multicard.figures.gains:precision",
    ),
    _gain(
        "precision",
        42,
        "What does a lower precision gain, for which image sizes and how many devices?",
        "It does not show what the precision gains for inference or for another model. Accuracy is that of runs "
        "of this length only.",
        more=" For vision runs: test accuracy after the last epoch, means over repeats, one mark per number of "
        "devices.",
    ),
    _gain(
        "pin_memory",
        43,
        "What does pinned memory gain, and does the gain shrink with more devices?",
        "Small images hardly show it, since there is little to copy. On a CPU nothing is pinned and the gain is zero.",
        "vision",
    ),
    _gain(
        "loader",
        44,
        "What does NVIDIA DALI gain over PyTorch's DataLoader?",
        "It does not show that the loader was the bottleneck: where the GPU is always busy, a faster loader cannot "
        "help. Images in arrays (`stored_size: null`) do not show what DALI can do: nothing is decoded, and DALI calls "
        "Python for every batch. On a CPU, DALI decodes on the same cores that train.",
        "vision",
    ),
    _gain("layout", 45, "What does the memory layout NHWC gain over NCHW?", "It does not show which kernels changed: "
          "see `kernel_classes`.", "vision"),
    _gain(
        "binding",
        46,
        "What does binding each rank to the CPUs next to its GPU gain?",
        "It is not informative on a machine with a single NUMA node, where there is nothing to bind to.",
    ),
    _gain(
        "preset",
        47,
        "What do PyTorch's own performance settings gain over the papers' settings?",
        "It does not show which of the settings makes the difference: vary them one by one.",
        "vision",
    ),
    _gain(
        "profiler",
        48,
        "Is a run slower because it has a profiler, before this records anything?",
        "It does not show how much longer steps take while the profiler records: see `profiler_overhead`.",
        more=" The setting is the profiler that was used; the steps are those of the measured window, in which it does "
        "not record, so a gain below zero is its cost.",
    ),
)  # fmt: skip
