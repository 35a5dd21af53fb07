"""Diagnosis of switches for debugging that were left on."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.runs.record import TrainingSetup

# A switch that slows each operator down comes before causes of a smaller share than this, though its own is not known.
# Users who turned anomaly detection off were 1.5 and 2.5 times as fast, which are shares of 33% and 60%.
_ASSUMED_SHARE = 0.2
_SLOW_EACH_OPERATOR = ("anomaly detection", "autograd profiler", "CUDA_LAUNCH_BLOCKING")
# For each switch what it does, and what to do without it.
_SWITCHES = {
    "anomaly detection": (
        "anomaly detection is on, which keeps the stack of each operator and looks for NaN in each gradient",
        "no `torch.autograd.set_detect_anomaly(True)` and no `detect_anomaly()`, unless you look for a NaN",
    ),
    "deterministic algorithms": (
        "deterministic algorithms are on, and some are slower than those that PyTorch chooses without",
        "no `torch.use_deterministic_algorithms(True)`, unless runs must be equal in all bits",
    ),
    "autograd profiler": (
        "the script runs a profiler, which records each operator",
        "no profiler, or one with a `schedule` of a few steps",
    ),
    "CUDA_LAUNCH_BLOCKING": (
        "`CUDA_LAUNCH_BLOCKING` is set, so the host waits for each kernel",
        "no `CUDA_LAUNCH_BLOCKING`, unless you look for the operator of an error",
    ),
    "TORCH_DISTRIBUTED_DEBUG": (
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL` is set, so ranks compare each collective before they make it",
        "no `TORCH_DISTRIBUTED_DEBUG`, or `INFO`, unless you look for ranks that disagree",
    ),
    "synchronization warnings": (
        "PyTorch warns of each synchronization (`torch.cuda.set_sync_debug_mode`)",
        '`torch.cuda.set_sync_debug_mode("default")`, once such warnings are not needed any more',
    ),
}


def diagnoses(setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield each switch that is on."""
    for name in setup.debugging:
        evidence, remedy = _SWITCHES[name]
        assumed = _ASSUMED_SHARE if name in _SLOW_EACH_OPERATOR else None
        yield Diagnosis(evidence, remedy, None, assumed_share=assumed)
