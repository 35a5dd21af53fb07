"""Figures of the steps and epochs of single runs."""

from multicard.experiment.figures import Figure

FIGURES = (
    Figure(
        name="step_breakdown",
        order=21,
        question="Where does the time of a step go?",
        caption="Mean duration of an optimizer step, split into phases, and evaluation inside a pass, by each "
        "rank's own clock: mean over ranks and measured steps, mean over repeats. With several ranks the backward "
        "phase includes gradient synchronization; where a trace tells the exposed part of it, and the strategy only "
        "reduces gradients, that part is drawn apart.",
        limits="It does not show what a GPU does: on a GPU a phase lasts from when the device reaches its beginning "
        "until it reaches its end, on a CPU from call to call. Waiting for other ranks is not separated; see "
        "`device_time` and the table `stragglers`.",
        drawing="multicard.figures.steps:step_breakdown",
    ),
    Figure(
        name="step_times",
        order=22,
        question="How variable are step times?",
        caption="Durations of the measured steps (of each step, its slowest rank's), all repeats pooled. The box spans "
        "the middle half with a line at the median, whiskers the steps between the 1st and 99th percentiles; the "
        "printed figure has a dot for each step beyond them, and a diamond at the iteration time: elapsed time over "
        "steps, mean over repeats. Throughput follows from that, not from the median.",
        limits="It does not show which rank was slow, or why. Repeats are pooled, so differences between them widen "
        "the box.",
        drawing="multicard.figures.steps:step_times",
        needs_tables=True,
    ),
    Figure(
        name="accuracy",
        order=23,
        question="How long does it take to reach a given accuracy?",
        caption="Test accuracy after each epoch over the training time up to it, evaluation excluded; one line per "
        "run. The dotted line is the papers' target.",
        limits="It does not predict runs of other lengths or learning rates. Evaluation is excluded from the time, so "
        "a user waits longer than shown.",
        workload="vision",
        drawing="multicard.figures.steps:accuracy",
        needs_tables=True,
    ),
)
