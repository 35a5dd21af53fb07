"""Figures over the number of devices."""

from multicard.experiment.figures import Figure
from multicard.figures.catalog._words import BARS, DOTS, NONE, POINTS, RATIOS, REPEATS

FIGURES = (
    Figure(
        name="iteration_time",
        order=11,
        question="How long does a step take, and how much work is done per second, as devices are added?",
        caption="Iteration time: elapsed time per optimizer step. Throughput: for vision runs and scripts, distinct "
        "training samples per second (under plain ddp all ranks process the same samples, which count once); for LLM "
        "runs, tokens per second without padding; for scripts whose samples are not known, steps per second. "
        f"{POINTS}",
        limits="It does not show which part of a step is slow (see `step_breakdown`), nor accuracy: a faster step may "
        "learn less. The two panels disagree under plain `ddp`, whose ranks repeat each other's samples.",
        answers="A, figures 1 and 4",
        axis="devices",
        drawing="multicard.figures.scaling:iteration_time",
    ),
    Figure(
        name="speedup",
        order=12,
        question="What does each additional device gain?",
        caption="Speed-up: throughput (distinct samples for vision runs and scripts, tokens for LLM runs) relative to "
        "one device (strategy single where the scenario has it). The efficiency written at the most devices is the "
        "speed-up divided by their number. The thin line is ideal scaling, and the axis of devices says whether "
        "scaling is weak or strong. Marks are geometric means of the ratios of repeats. Whiskers "
        f"{RATIOS}; {NONE}. {DOTS}",
        limits="Without a completed run on one device the panel is empty. Under weak scaling the global batch grows "
        "with the number of devices, so the same number of passes over the data means fewer updates; `accuracy` shows "
        "the effect.",
        answers="A, figures 1 and 4",
        axis="devices",
        drawing="multicard.figures.scaling:speedup",
    ),
    Figure(
        name="image_size_scaling",
        order=13,
        question="Does adding devices pay off more for larger images?",
        caption="Time: duration of one pass over the training data (time per step × steps per pass). Efficiency: "
        "speed-up over one device, divided by the number of devices; the thin line is ideal scaling. Points are "
        "means over repeats, of efficiency geometric means of ratios. Whiskers of times "
        f"{REPEATS}; those of efficiency {RATIOS}; {NONE}. {DOTS}",
        limits="A pass need not have been run in full: with `steps_per_epoch` the time is extrapolated from the "
        "measured steps. Evaluation between epochs is not included.",
        answers="A, figure 2",
        axis="image_size",
        workload="vision",
        drawing="multicard.figures.scaling:image_size_scaling",
    ),
    Figure(
        name="prediction",
        order=15,
        question="What would more devices gain, and do such predictions hold?",
        caption="Time per step: measured (filled: geometric means over repeats), and predicted from the runs on fewer "
        "devices (hollow), for each number of devices that was measured and for twice the largest. Error: predicted "
        "over measured time, less 1; the thin line is none. Bars at hollow marks are 95% intervals. Arrows state the "
        "ends of intervals that the axis cuts off.",
        limits="It uses the runs of the scenario alone: two numbers of devices predict a third, and one predicts "
        "nothing.",
        axis="devices",
        drawing="multicard.figures.prediction:prediction",
        needs_tables=True,
    ),
    Figure(
        name="training_time",
        order=14,
        question="How long does an epoch take, and the whole training?",
        caption="Time per epoch: wall time of a full pass over the training data by the clock of rank 0, without the "
        "test after it; mean over the epochs of a run, those with warm-up steps excluded where it has others. Total "
        "time: all epochs of the run, and the rest of the job's wall time, in which it starts, tests and is profiled. "
        "Where the configuration cut the epochs short, both are extrapolated from the measured steps (iteration time × "
        f"steps of a pass × epochs) and hatched. {BARS}",
        limits="It does not show what the training achieves in that time (see `accuracy`). An extrapolated time "
        "assumes that the steps which were not run take as long as those that were, and leaves out what happens once "
        "per epoch, such as the start of the loader.",
        workload="vision",
        drawing="multicard.figures.duration:training_time",
        needs_tables=True,
    ),
)
