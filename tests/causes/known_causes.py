"""Causes of bad scaling from public threads, rebuilt as scripts whose times are known.

The scripts, with the threads and how the times follow by hand, are in `scripts`. Neither they nor this list know what
multicard says about them.
"""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class KnownCause:
    """A cause of bad scaling, with what a right diagnosis of it says."""

    script: str
    """File name in `SCRIPTS`."""
    words: tuple[str, ...]
    """A right diagnosis has at least one of these, in any case of letters."""
    step_s: tuple[float, float]
    """Seconds that a step takes on one and on two processes, by hand; where `measured`, about."""
    fixed_step_s: tuple[float, float]
    """The same of the script without the cause."""
    share: float
    """Part, from 0 to 1, of a step on two processes that the cause takes."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    fixed: tuple[str, ...] = ("--fixed",)
    """Arguments that are added for the script without the cause."""
    measured: bool = False
    """Whether the cause takes time on CPUs, for which no sleep can stand, so that its time depends on the machine."""
    period: int = 1
    """Number of steps after which the work repeats; the times are means over so many."""


KNOWN_CAUSES = (
    KnownCause(
        "accumulation_without_no_sync.py", ("no_sync",), step_s=(0.240, 0.360), fixed_step_s=(0.240, 0.270),
        share=0.090 / 0.360,
    ),
    KnownCause(
        "needless_find_unused.py", ("find_unused_parameters",), step_s=(0.090, 0.102), fixed_step_s=(0.090, 0.1005),
        share=0.0015 / 0.102, measured=True,
    ),
    KnownCause("slow_rank.py", ("rank 1",), step_s=(0.060, 0.180), fixed_step_s=(0.060, 0.060), share=0.120 / 0.180),
    # Timed after the rank became slow; before, a step takes as long as with `--fixed`.
    KnownCause(
        "slow_rank.py", ("rank 1",), step_s=(0.060, 0.180), fixed_step_s=(0.060, 0.060), share=0.120 / 0.180,
        arguments=("--since", "30"),
    ),
    KnownCause(
        "uneven_lengths.py", ("length",), step_s=(0.060, 0.087), fixed_step_s=(0.060, 0.060), share=0.027 / 0.087,
        period=32,
    ),
    KnownCause(
        "logged_metrics.py", ("log_metrics", "logged_metrics.py"), step_s=(0.090, 0.090), fixed_step_s=(0.061, 0.061),
        share=0.030 / 0.090, period=30,
    ),
    KnownCause(
        "gathered_metrics.py", ("all_gather_object", "update_metrics", "gathered_metrics.py"),
        step_s=(0.090, 0.120), fixed_step_s=(0.061, 0.062), share=0.060 / 0.120, period=30,
    ),
    KnownCause("one_worker.py", ("worker",), step_s=(0.150, 0.150), fixed_step_s=(0.060, 0.060), share=0.090 / 0.150),
    KnownCause(
        "anomaly_detection.py", ("anomaly",), step_s=(0.084, 0.088), fixed_step_s=(0.064, 0.065), share=0.023 / 0.088,
        measured=True,
    ),
    KnownCause(
        "copied_average.py", ("deepcopy", "update_average", "copied_average.py"),
        step_s=(0.090, 0.090), fixed_step_s=(0.060, 0.060), share=0.030 / 0.090,
    ),
    KnownCause(
        "looping_optimizer.py", ("foreach", "fused"), step_s=(0.077, 0.081), fixed_step_s=(0.067, 0.071),
        share=0.010 / 0.081, measured=True,
    ),
    KnownCause(
        "evaluation_on_one_rank.py", ("evaluat", "validat"), step_s=(0.100, 0.100), fixed_step_s=(0.100, 0.080),
        share=0.040 / 0.100, period=10,
    ),
    KnownCause(
        "broadcast_buffers.py", ("broadcast_buffers",), step_s=(0.060, 0.110), fixed_step_s=(0.060, 0.060),
        share=0.050 / 0.110, measured=True,
    ),
    KnownCause(
        "slow_sampler.py", ("sampler",), step_s=(0.090, 0.090), fixed_step_s=(0.060, 0.060), share=0.030 / 0.090,
        period=10,
    ),
    KnownCause(
        "small_buckets.py", ("bucket_cap_mb", "bucket"), step_s=(0.060, 0.260), fixed_step_s=(0.060, 0.065),
        share=0.195 / 0.260,
    ),
    # A step takes no longer; a pass over the data has twice as many steps as it needs.
    KnownCause(
        "same_stream.py", ("each sample is drawn by 2",), step_s=(0.060, 0.060), fixed_step_s=(0.060, 0.060), share=0.5,
    ),
    KnownCause(
        "second_forward.py", ("forward passes that no backward pass follows",), step_s=(0.080, 0.080),
        fixed_step_s=(0.060, 0.060), share=0.020 / 0.080,
    ),
    KnownCause(
        "work_between_passes.py", ("between two passes",), step_s=(0.090, 0.090), fixed_step_s=(0.060, 0.060),
        share=0.030 / 0.090, period=10,
    ),
    KnownCause(
        "changing_integer.py", ("recompil",),
        step_s=(0.220, 0.220), fixed_step_s=(0.062, 0.063), share=0.157 / 0.220, measured=True,
    ),
)  # fmt: skip
