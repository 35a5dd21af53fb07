"""The scatter of samples that were measured together, and the standard errors of estimates from such samples.

`Scatter` is that of one scenario. `ScatterByScenario` has one for each scenario.

The docstring of `multicard.stats.pool` explains the model, its symbols V, B and w, and the degrees of freedom.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from multicard.stats.blocks import BlockEffects, fit_block_effects
from multicard.stats.samples import UsableSample, scenarios_of
from multicard.stats.variances import Variances, moderated

ROUNDING = 1e-9  # numbers whose relative difference is at most this count as equal


class SquaredError(NamedTuple):
    """The squared standard error of an estimate."""

    variance: float
    freedom: float  # degrees of freedom with which the variance is known

    @property
    def standard_error(self) -> float:
        """Square root of the variance."""
        return math.sqrt(self.variance)


class VariancePart(NamedTuple):
    """One of the independent parts whose sum is a squared standard error."""

    variance: float
    weight: float  # what Satterthwaite's formula takes as the variance of this part
    freedom: float  # degrees of freedom with which the variance is known


class ErrorParts(NamedTuple):
    """The independent parts of the squared standard error of an estimate."""

    parts: list[VariancePart]
    most_freedom: float  # the sum has at most so many degrees of freedom

    def error(self, is_exact: bool) -> SquaredError | None:
        """Return the squared standard error; None if the parts do not show it. `is_exact`: see `Scatter`."""
        if sum(part.weight for part in self.parts) > 0:
            return SquaredError(
                variance=float(sum(part.variance for part in self.parts)),
                freedom=float(min(self.most_freedom, satterthwaite(self.parts))),
            )
        # All variances are 0. Exact values show by this that there is no scatter; other values show nothing.
        return SquaredError(0.0, self.most_freedom) if is_exact and self.most_freedom > 0 else None


class Scatter:
    """The scatter of samples, estimated from all of them together at its first use.

    `is_exact`: True if equal repeats show that there is no scatter. Otherwise equal repeats are ignored, because they
    may come from a coarse clock.
    """

    def __init__(self, samples: Mapping[Hashable, UsableSample], is_exact: bool) -> None:
        self._samples = samples
        self._is_exact = is_exact
        # The position of each sample in the arrays of `Variances`.
        self._position = {key: position for position, key in enumerate(samples)}

    def noise_variance(self, key: Hashable) -> float | None:
        """Return the variance of one value of a sample within its block; None if no sample shows the scatter."""
        noise = self._within_blocks
        return float(noise.variances[self._position[key]]) if noise.total_freedom > 0 else None

    def error_of_mean(self, key: Hashable) -> SquaredError | None:
        """Return the squared standard error of the mean of a sample; None if no sample shows the scatter.

        The variance is the scatter over repeats, which contains noise and block effects, divided by the number of
        values n. The degrees of freedom are the larger of n − 1 and those of the sum of noise and block effects, but
        not more than those of the scatter over repeats.
        """
        scatter = self._over_repeats
        if scatter.total_freedom <= 0:
            return None
        sample, position = self._samples[key], self._position[key]
        error_by_parts = self.error({key: sample.count}, block_weight_of(sample))
        freedom_by_parts = error_by_parts.freedom if error_by_parts else 0.0
        freedom = max(sample.count - 1.0, freedom_by_parts)
        return SquaredError(
            variance=scatter.variances[position] / sample.count,
            freedom=min(float(scatter.freedom[position]), freedom),
        )

    def error(self, counts: Mapping[Hashable, int], block_weight: float) -> SquaredError | None:
        """Return the squared standard error of a mean, or of a difference of means; None if no sample shows scatter.

        `counts`: for each configuration of the estimate, by its key, how many of its values the estimate uses.
        `block_weight`: w of the model; 0 if block effects cancel.
        """
        return self.error_parts(counts, block_weight).error(self._is_exact)

    def error_parts(self, counts: Mapping[Hashable, int], block_weight: float) -> "ErrorParts":
        """Return the parts of the squared standard error that `error` returns; no parts if no sample shows scatter."""
        effects = self._separable_effects if block_weight > 0 else None
        noise_holds_effects = block_weight > 0 and effects is None
        noise = self._over_repeats if noise_holds_effects else self._within_blocks
        most_freedom = noise.total_freedom
        parts: list[VariancePart] = []
        if noise.total_freedom > 0:
            parts = [self._noise_part(noise, key, count) for key, count in counts.items()]
        if effects is not None:
            parts.append(_block_part(effects, noise, block_weight))
            most_freedom += effects.freedom
        return ErrorParts(parts, most_freedom)

    def _noise_part(self, noise: Variances, key: Hashable, count: int) -> VariancePart:
        """Return the part of a squared standard error that the noise of `count` values of a configuration makes."""
        position = self._position[key]
        variance = noise.variances[position] / count
        return VariancePart(variance, variance, noise.freedom[position])

    @cached_property
    def _deviations(self) -> list[np.ndarray]:
        """For each sample, its scaled values minus their mean."""
        return [sample.scaled - sample.scaled.mean() for sample in self._samples.values()]

    @cached_property
    def _block_effects(self) -> BlockEffects | None:
        """The estimated effects of the blocks; None if any sample has no blocks."""
        blocks = [sample.blocks for sample in self._samples.values() if sample.blocks is not None]
        if not blocks or len(blocks) < len(self._samples):
            return None
        return fit_block_effects(blocks, self._deviations)

    @property
    def _separable_effects(self) -> BlockEffects | None:
        """The estimated effects of the blocks; None if they cannot be separated from noise."""
        effects = self._block_effects
        return effects if effects is not None and effects.are_separable else None

    @cached_property
    def _within_blocks(self) -> Variances:
        """The variances V of the noise. If any sample has no blocks, they are those of the scatter over repeats."""
        effects = self._block_effects
        if effects is None:
            return self._over_repeats
        return self._moderated(effects.residuals, effects.residual_freedom)

    @cached_property
    def _over_repeats(self) -> Variances:
        """The variances of the scatter over repeats, which contains noise and block effects."""
        freedom = np.array([len(deviations) - 1.0 for deviations in self._deviations])
        return self._moderated(self._deviations, freedom)

    def _moderated(self, residuals: Sequence[np.ndarray], freedom: np.ndarray) -> Variances:
        """Return the variance of each sample's residuals, drawn towards those of the others (see `variances`)."""
        sums_of_squares = np.array([float(residual @ residual) for residual in residuals])
        counted_freedom = np.where(freedom > 1e-6, freedom, 0.0)
        if not self._is_exact:
            are_equal = sums_of_squares <= ROUNDING**2
            counted_freedom = np.where(are_equal, 0.0, counted_freedom)
        return moderated(sums_of_squares, counted_freedom)


class ScatterByScenario:
    """The scatter of samples, estimated for each scenario from all samples that it has.

    So the interval of a number does not depend on which other scenarios are in the pool: it is the same in the figure
    of its scenario and among all scenarios of an experiment. If several scenarios have a sample, the first of them
    counts; for two samples it is the first one that has both. `is_exact`: see `Scatter`. `others`: further samples,
    which only show the scatter of their scenarios.
    """

    def __init__(
        self,
        samples: Mapping[Hashable, UsableSample],
        is_exact: bool,
        others: Mapping[Hashable, UsableSample] = MappingProxyType({}),
    ) -> None:
        self._samples = samples
        self._is_exact = is_exact
        self._scenarios = {key: scenarios_of(sample) for key, sample in samples.items()}
        samples_of_scenario: dict[Hashable, dict[Hashable, UsableSample]] = defaultdict(dict)
        for key, sample in (*samples.items(), *others.items()):
            for scenario in scenarios_of(sample):
                samples_of_scenario[scenario][key] = sample
        self._scatters = {
            scenario: Scatter(scenario_samples, is_exact) for scenario, scenario_samples in samples_of_scenario.items()
        }

    @property
    def typical(self) -> float | None:
        """Standard deviation of one value within its block, over all samples; None if no sample shows the scatter."""
        variances = [self._first_scatter(key).noise_variance(key) for key in self._samples]
        known = [variance for variance in variances if variance is not None]
        return math.sqrt(fmean(known)) if known else None

    def _first_scatter(self, key: Hashable) -> Scatter:
        first, *_ = self._scenarios[key]
        return self._scatters[first]

    def error_of_mean(self, key: Hashable) -> SquaredError | None:
        """Return the squared standard error of the mean of a sample; None if its scenario shows no scatter."""
        return self._first_scatter(key).error_of_mean(key)

    def error_of_difference(self, counts: Mapping[Hashable, int], block_weight: float) -> SquaredError | None:
        """Return the squared standard error of the difference of two means; None if their scenarios show no scatter.

        `counts`: for each of the two samples, by its key, how many of its values the estimate uses. `block_weight`: w
        of the model, which is 0 if block effects cancel.
        """
        first, *others = (self._scenarios[key] for key in counts)
        common = [scenario for scenario in first if all(scenario in scenarios for scenarios in others)]
        if common:
            return self._scatters[common[0]].error(counts, block_weight)
        # The two scenarios know nothing of each other's scatter, so the parts of both means add up.
        sides = []
        for key, count in counts.items():
            weight_of_side = block_weight_of(self._samples[key]) if block_weight > 0 else 0.0
            sides.append(self._first_scatter(key).error_parts({key: count}, weight_of_side))
        if not all(side.parts for side in sides):
            return None
        parts = [part for side in sides for part in side.parts]
        return ErrorParts(parts, sum(side.most_freedom for side in sides)).error(self._is_exact)


def satterthwaite(parts: Sequence[VariancePart]) -> float:
    """Return the degrees of freedom of the sum of some independent variances: (Σ P)² / Σ (P² / f).

    P is the weight of a part and f its degrees of freedom. (Franklin Satterthwaite, Biometrics Bulletin 2(6), 1946. For
    the difference of two means it is Welch's formula.)

    >>> satterthwaite([VariancePart(1.0, 1.0, 2.0), VariancePart(3.0, 3.0, 6.0)])  # 4² / (1/2 + 9/6)
    8.0
    """
    total = sum(part.weight for part in parts)
    return total**2 / sum(part.weight**2 / part.freedom for part in parts)


def block_weight_of(sample: UsableSample, base: UsableSample | None = None) -> float:
    """Return w of the model: the factor of B in the squared standard error of an estimate.

    The estimate is the mean of `sample` or, with `base`, the difference of the two means. If one of them has no blocks,
    w is 1. Its value does not matter then, except that it is not 0, because block effects are not estimated.

    In the example, `first` ran in the blocks a, b and c, and `second` in c and d. Each block of `first` has the weight
    1/3, each block of `second` −1/2, so c has 1/3 − 1/2:

    >>> from multicard.stats.samples import usable
    >>> first, second = (usable({block: 1.0 for block in blocks}, logs=True) for blocks in ("abc", "cd"))
    >>> round(block_weight_of(first), 6), round(block_weight_of(first, second), 6)  # 3/9, and 2/9 + (1/3 − 1/2)² + 1/4
    (0.333333, 0.5)
    """
    weight_of_block: dict[Hashable, float] = defaultdict(float)
    for side, sign in ((sample, 1), (base, -1)):
        if side is None:
            continue
        if side.blocks is None:
            return 1.0
        for block in side.blocks:
            weight_of_block[block] += sign / len(side.blocks)
    return sum(weight**2 for weight in weight_of_block.values())


def _block_part(effects: BlockEffects, noise: Variances, block_weight: float) -> VariancePart:
    """Return the part of a squared standard error that comes from block effects that do not cancel: w B."""
    mean_noise = float(noise.variances.mean()) if noise.total_freedom > 0 else 0.0
    # The variance of the estimated effects is B plus a part from the noise of the values. This is B alone.
    block_variance = max(0.0, effects.variance - mean_noise / effects.configurations)
    return VariancePart(
        variance=block_weight * block_variance,
        # The weight still contains the part from noise. Otherwise blocks that happen to differ little would have hardly
        # any weight, and the estimate would get too many degrees of freedom.
        weight=block_weight * effects.variance,
        freedom=effects.freedom,
    )
