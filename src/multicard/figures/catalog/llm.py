"""Figures of language-model tuning."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS, NONE, REPEATS

FIGURES = (
    Figure(
        name="techniques",
        order=51,
        question="What does each fine-tuning technique cost in time and memory?",
        caption="Iteration time: elapsed time per optimizer step. Throughput: tokens per second without padding; "
        "DPO processes the tokens of both answers, the other techniques those of one. Peak memory: the highest of any "
        "rank; on a GPU what PyTorch allocated, on a CPU the resident memory of the process, most of which is "
        "libraries. Model-state memory: weights, adapters, gradients and optimizer state of the rank with the most, "
        f"counted from its tensors. {BARS} Where a run did not complete, its outcome takes the place of the bar.",
        limits="It does not show which technique tunes better: nothing here measures quality.",
        axis="technique",
        workload="llm",
        drawing="multicard.figures.llm:techniques",
    ),
    Figure(
        name="text_datasets",
        order=52,
        question="How does the data set change iteration time, and does sample length explain it?",
        caption="Iteration time: elapsed time per optimizer step. Sample length: mean tokens of a sample before "
        "truncation, with the share of computed tokens that is padding and the share of samples that is truncated. By "
        "tokens: iteration time over the tokens of a step and rank; times proportional to tokens lie on a line through "
        "the origin. A point counts tokens without padding, the line from it ends where it would be with padding. Bars "
        f"and points are means over repeats, small dots single repeats. Whiskers {REPEATS}; {NONE}.",
        limits="It does not show which data set is better for tuning, nor, by itself, that length is the cause: pack "
        "the samples (`packed: true`) and see what remains.",
        axis="dataset",
        workload="llm",
        drawing="multicard.figures.llm:text_datasets",
    ),
)
