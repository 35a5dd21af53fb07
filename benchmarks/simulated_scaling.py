"""Errors of predicted step times on simulated jobs, whose true times are known, by the law that they follow.

    python benchmarks/simulated_scaling.py --trials 200

Each simulated job has the true time of a step T(n) = max(loader, compute + max(0, communication − hidden)), with ring
all-reduces of latency (n − 1) α and bandwidth β, times a cost that devices have for other reasons, if any; its runs, of
which there are three on each number of devices, scatter around that. It imports nothing of what predicts but the class
that it fills.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from multicard.answers.scaling.prediction import predict
from multicard.answers.scaling.step_model import ScalingPoint

SAMPLES, REPEATS, NOISE = 64.0, 3, 0.02
MESSAGES = 4


@dataclass(frozen=True)
class Job:
    """A true law: seconds of compute per sample and step, all-reduces, what is hidden, what a node loads per second.

    Under `strong` scaling the devices share the samples of one.
    """

    compute_s: float = 0.1 / SAMPLES
    fixed_s: float = 0.0
    gradient_bytes: float = 14e6
    alpha_s: float = 10e-6
    bytes_per_s: float = 100e9
    hidden_s: float = 0.0
    node_samples_per_s: float = float("inf")
    strong: bool = False
    cost: Callable[[int], float] = lambda devices: 1.0

    def samples(self, devices: int) -> float:
        """Of a device in a step."""
        return SAMPLES / devices if self.strong else SAMPLES

    def all_reduce_s(self, devices: int, message_bytes: float) -> float:
        """Of one message."""
        return self.alpha_s * (devices - 1) + 2 * (devices - 1) / devices * message_bytes / self.bytes_per_s

    def busy_s(self, devices: int) -> float:
        """True time of a step without the loader."""
        alone = MESSAGES * self.all_reduce_s(devices, self.gradient_bytes / MESSAGES) if devices > 1 else 0.0
        return self.fixed_s + self.compute_s * self.samples(devices) + max(0.0, alone - self.hidden_s)

    def step_s(self, devices: int) -> float:
        """True time of a step."""
        return self.cost(devices) * max(self.busy_s(devices), devices * self.samples(devices) / self.node_samples_per_s)


# Largest of n standard normal numbers, in the mean: H. L. Harter, Biometrika 48, 1961.
LARGEST = {1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360, 16: 1.76599}

LAWS = {
    "ideal": Job(hidden_s=0.05),
    "communication-bound": Job(gradient_bytes=1.6e9, bytes_per_s=40e9),
    "overlap": Job(gradient_bytes=1.6e9, bytes_per_s=40e9, hidden_s=0.05),
    "latency-dominated": Job(alpha_s=2e-3, gradient_bytes=1e6),
    "loader-bound": Job(node_samples_per_s=900.0),
    "strong, ideal": Job(hidden_s=0.05, strong=True),
    "strong, part fixed": Job(fixed_s=0.01, gradient_bytes=2e8, bytes_per_s=40e9, strong=True),
}
# Costs of other kinds than communication. The knee is where a second node begins: the devices are then nodes.
OUTSIDE = {
    "2% per device": lambda n: 1 + 0.02 * (n - 1),
    "3% per doubling": lambda n: 1 + 0.03 * np.log2(n),
    "the slowest rank": lambda n: 1 + 0.05 * LARGEST[n],
    "knee of 15% at two": lambda n: 1.0 if n == 1 else 1.15,
}
LAWS_OUTSIDE = {
    f"{cost}{', overlap' if hides == 'overlap' else ''}": replace(LAWS[hides], cost=law)
    for cost, law in OUTSIDE.items()
    for hides in ("ideal", "overlap")
}


def measured(job: Job, devices: int, rng: np.random.Generator) -> ScalingPoint:
    """Runs of a job."""
    factors = np.exp(NOISE * rng.standard_normal(REPEATS))
    steps = job.step_s(devices) * factors
    waits = (job.step_s(devices) - job.cost(devices) * job.busy_s(devices)) * factors
    return ScalingPoint(devices, devices, job.samples(devices), tuple(steps), tuple(waits))


CASES = {
    "4 from 1–2": ((1, 2), 4), "8 from 1–2": ((1, 2), 8), "8 from 1–4": ((1, 2, 4), 8),
    "16 from 1–4": ((1, 2, 4), 16),
}  # fmt: skip


def trial(job: Job, smaller: Sequence[int], asked: int, seed: int) -> tuple[float, float, bool]:
    """Error, width of the interval (high over low) and whether it holds the truth."""
    rng = np.random.default_rng(seed)
    points = [measured(job, n, rng) for n in smaller]
    found = predict(points, asked, asked, job.samples(asked)).step_s
    truth = job.step_s(asked)
    return found.value / truth - 1, found.high / found.low, found.low <= truth <= found.high


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    print("| law |", " | ".join(CASES), "|")
    print("|---" * (1 + len(CASES)) + "|")
    for law, job in (LAWS | LAWS_OUTSIDE).items():
        cells = []
        for smaller, asked in CASES.values():
            found = [trial(job, smaller, asked, seed) for seed in range(trials)]
            errors, widths, holds = map(np.array, zip(*found, strict=True))
            cells.append(f"{100 * np.median(errors):+.1f}%, {100 * holds.mean():.0f}%, {np.median(widths):.2f}")
        print(f"| {law} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
