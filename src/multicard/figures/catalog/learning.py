"""Figures of what the training learns: losses, and the rewards of DPO."""

from multicard.experiment.figures import Figure

LINES = (
    "One line per run, mean over ranks; the repeats of a configuration share a colour and a style. Of a long run each "
    "point is the mean of neighbouring steps."
)

FIGURES = (
    Figure(
        name="loss",
        order=24,
        question="How does the loss fall?",
        caption=f"Training loss of every optimizer step, warm-up and profiled steps included. {LINES} For vision runs "
        "also the test loss after each epoch. For LLM runs each technique has a panel, or else each data set, since "
        "their losses cannot be compared: DPO's is another function, and means are over other tokens.",
        limits="A lower training loss is not a better model. Steps of different numbers of devices hold different "
        "numbers of samples.",
        drawing="multicard.figures.learning:loss",
        needs_tables=True,
    ),
    Figure(
        name="dpo_rewards",
        order=53,
        question="Does DPO learn to prefer the chosen answers?",
        caption="Implicit rewards of DPO, β times the log of the policy's probability of an answer over the reference "
        "model's, in the batches of each optimizer step: mean of the chosen and of the rejected answers, their "
        f"difference (margin), and the share of pairs whose chosen answer has the higher reward (accuracy). {LINES}",
        limits="They are of training batches, at most a few dozen pairs per step, so they scatter. They say nothing of "
        "answers that the model would write. Runs of other techniques are not shown.",
        workload="llm",
        drawing="multicard.figures.learning:dpo_rewards",
        needs_tables=True,
    ),
)
