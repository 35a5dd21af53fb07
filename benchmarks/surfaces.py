"""Spaces whose truth is known, on which `benchmarks/samplers.py` compares searches.

Three surfaces, others for each seed:

- `memory`: a step as on a GPU that gets more efficient with the batch, until memory runs out. Recomputation and
  precision move the limit, so the best configuration lies next to it.
- `loader`: training that is bound by its loader. More workers help up to the number of cores, and then no more.
- `buckets`: the size of gradient buckets, the strategy and the number of devices, with another optimum of the bucket
  for each strategy and number of devices. It has an interaction of three parameters, which no sum of pairs describes.

Two more are the spaces of `benchmarks/search.py`.

Some parameters have no effect beside the values of others: without workers there is nothing to prefetch, and a single
device has no gradients to send. Combinations that differ in nothing else are one configuration.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.search.space import Levels, Space
from search import SPACES, World


@dataclass(frozen=True)
class Surface:
    """A space, and the throughput of each of its configurations that fits into memory."""

    space: Space[Levels]
    throughput: Mapping[Levels, float]

    def gap(self, configuration: Levels | None) -> float:
        """Return by which share the true throughput of a configuration is below that of the best.

        It is 1 for None, which is the answer of a search that found nothing.
        """
        if configuration is None:
            return 1.0
        return 1 - self.throughput[configuration] / max(self.throughput.values())


def make_surface(name: str, seed: int) -> Surface:
    """Return a surface of `SURFACES`; the same for the same seed."""
    rng = np.random.default_rng([seed, list(SURFACES).index(name)])
    return SURFACES[name](rng, seed)


# The surfaces --------------------------------------------------------------------------------------------------------


def _memory(rng: np.random.Generator, _seed: int) -> Surface:
    parameters: dict[str, list[Any]] = {
        "batch_size": [8, 12, 16, 24, 32, 48, 64, 96, 128, 192],
        "recomputation": ["none", "selective", "full"],
        "precision": ["fp32", "tf32", "bf16"],
        "compile": [False, True],
    }
    # Times are in multiples of the compute time of a sample in single precision.
    step_time = rng.uniform(4, 32)
    compute_factor = {"fp32": 1.0, "tf32": rng.uniform(0.5, 0.8), "bf16": rng.uniform(0.3, 0.6)}
    recompute_factor = {"none": 1.0, "selective": rng.uniform(1.03, 1.12), "full": rng.uniform(1.2, 1.35)}
    compile_factor = rng.uniform(0.75, 1.05)
    # Memory is in multiples of the activations of a sample in single precision.
    weights = rng.uniform(4, 24)
    activation_factor = {"fp32": 1.0, "tf32": 1.0, "bf16": rng.uniform(0.5, 0.6)}
    kept_share = {"none": 1.0, "selective": rng.uniform(0.4, 0.65), "full": rng.uniform(0.2, 0.35)}
    compile_memory = rng.uniform(0.75, 1.1)

    throughput: dict[Levels, float] = {}
    memory: dict[Levels, float] = {}
    for levels, (batch_size, recomputation, precision, compiles) in _combinations(parameters):
        compute = batch_size * compute_factor[precision] * recompute_factor[recomputation]
        activations = batch_size * activation_factor[precision] * kept_share[recomputation]
        if compiles:
            compute *= compile_factor
            activations *= compile_memory
        throughput[levels] = batch_size / (step_time + compute)
        memory[levels] = weights + activations
    return _limited(parameters, throughput, memory, too_large=rng.uniform(0.4, 0.6))


def _loader(rng: np.random.Generator, _seed: int) -> Surface:
    parameters: dict[str, list[Any]] = {
        "num_workers": [0, 1, 2, 3, 4, 6, 8, 12, 16],
        "prefetch_factor": [1, 2, 4, 8],
        "pin_memory": [False, True],
        "batch_size": [32, 64, 128, 256],
    }
    # Times are in multiples of the compute time of a sample.
    step_time = rng.uniform(2, 20)
    load_time = rng.uniform(2, 12)
    copy_time = {False: rng.uniform(0.05, 0.2), True: rng.uniform(0.01, 0.05)}
    cores = rng.choice([4, 6, 8, 12])
    parallel = rng.uniform(0.75, 1)
    crowding = rng.uniform(0.005, 0.03)
    jitter = rng.uniform(0.1, 0.5)

    throughput: dict[Levels, float] = {}
    memory: dict[Levels, float] = {}
    for levels, (workers, prefetch, pins, batch_size) in _combinations(parameters):
        training = step_time + batch_size * (1 + copy_time[pins])
        loading = batch_size * load_time
        if workers == 0:
            step = training + loading
        else:
            speed = min(workers, cores) ** parallel * (1 - crowding * max(0, workers - cores))
            # Batches that take longer than others are felt less, the more batches are prefetched.
            speed *= 1 - jitter / (workers * prefetch)
            step = _soft_maximum(training, loading / speed)
        throughput[levels] = batch_size / step
        memory[levels] = workers * prefetch * batch_size
    return _limited(
        parameters, throughput, memory, rng.uniform(0.05, 0.25), no_effect={"num_workers": ["prefetch_factor"]}
    )


def _buckets(rng: np.random.Generator, _seed: int) -> Surface:
    parameters: dict[str, list[Any]] = {
        "devices": [1, 2, 4, 8],
        "strategy": ["ddp", "zero1", "zero2", "fsdp"],
        "bucket_size": [1, 2, 5, 10, 25, 50, 100, 200],
        "overlap": [False, True],
    }
    # Share of the model's state that each device holds, whatever the number of devices. The rest is divided.
    whole_share = {"ddp": 1.0, "zero1": 0.4, "zero2": 0.25, "fsdp": 0.0}
    limit = rng.uniform(0.35, 1.3)
    scaling = {strategy: rng.uniform(0.3, 0.95) for strategy in whole_share}
    curvature = {strategy: rng.uniform(0.01, 0.06) for strategy in whole_share}
    pairs = list(itertools.product(whole_share, parameters["devices"]))
    effect = {pair: rng.normal(0, 0.1) for pair in pairs}
    overlap_effect = {pair: rng.normal(0.05, 0.1) for pair in pairs}
    best_bucket = {pair: rng.uniform(0, np.log2(200)) for pair in pairs}

    throughput: dict[Levels, float] = {}
    memory: dict[Levels, float] = {}
    for levels, (devices, strategy, bucket_size, overlaps) in _combinations(parameters):
        pair = strategy, devices
        log = effect[pair]
        if devices > 1:
            log += scaling[strategy] * np.log(devices)
            log -= curvature[strategy] * (np.log2(bucket_size) - best_bucket[pair]) ** 2
            log += overlap_effect[pair] if overlaps else 0
        throughput[levels] = float(np.exp(log))
        whole = whole_share[strategy]
        state = whole + (1 - whole) / devices
        buckets = 0.1 * bucket_size / 200 if devices > 1 else 0
        memory[levels] = state + buckets
    share = float(np.mean([value > limit for value in memory.values()]))
    return _limited(parameters, throughput, memory, share, no_effect={"devices": ["bucket_size", "overlap"]})


def _of_search(name: str) -> Callable[[np.random.Generator, int], Surface]:
    """Return a function that makes the space `name` of `benchmarks/search.py`, with the truth that it has there."""

    def make(_rng: np.random.Generator, seed: int) -> Surface:
        world = World(name, seed)
        throughput = {
            levels: float(value)
            for levels, value, fails in zip(world.levels, world.truth, world.too_large, strict=True)
            if not fails
        }
        return Surface(Space(SPACES[name], {levels: levels for levels in world.levels}), throughput)

    return make


SURFACES: dict[str, Callable[[np.random.Generator, int], Surface]] = {
    "memory": _memory,
    "loader": _loader,
    "buckets": _buckets,
    "search.py loader": _of_search("loader"),
    "search.py effects": _of_search("effects"),
}


# Their parts ---------------------------------------------------------------------------------------------------------


def _combinations(parameters: Mapping[str, Sequence[Any]]) -> list[tuple[Levels, tuple[Any, ...]]]:
    """Return each combination of values, as indices and as the values themselves."""
    indices = itertools.product(*(range(len(values)) for values in parameters.values()))
    return list(zip(indices, itertools.product(*parameters.values()), strict=True))


def _limited(
    parameters: Mapping[str, Sequence[Any]],
    throughput: Mapping[Levels, float],
    memory: Mapping[Levels, float],
    too_large: float,
    no_effect: Mapping[str, Sequence[str]] | None = None,
) -> Surface:
    """Return a surface on which the share `too_large` of the combinations, those of most memory, do not fit.

    `no_effect`: a parameter, and those that have no effect if it has its first value.
    """
    limit = np.quantile(list(memory.values()), 1 - too_large)
    names = list(parameters)
    configurations: dict[Levels, Levels] = {}
    for levels in throughput:
        same = list(levels)
        for name, without_effect in (no_effect or {}).items():
            if levels[names.index(name)] == 0:
                for other in without_effect:
                    same[names.index(other)] = 0
        configurations[levels] = tuple(same)
    fitting = {
        levels: value
        for levels, value in throughput.items()
        if memory[levels] <= limit and configurations[levels] == levels
    }
    return Surface(Space(parameters, configurations), fitting)


def _soft_maximum(first: float, second: float) -> float:
    """Return a bit more than the larger of two times that overlap, and the more so the closer they are."""
    return float((first**6 + second**6) ** (1 / 6))
