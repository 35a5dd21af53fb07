"""How much samples scatter that were measured together, and the standard errors of estimates that follow from it.

The model, its symbols V, B and w, and where degrees of freedom come from are those of `multicard.stats.pool`.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from multicard.stats.blocks import BlockEffects, fit_block_effects
from multicard.stats.samples import UsableSample
from multicard.stats.variances import Variances, moderated

ROUNDING = 1e-9  # relative difference up to which numbers are equal


class SquaredError(NamedTuple):
    """The squared standard error of an estimate."""

    variance: float
    freedom: float  # degrees of freedom with which the variance is known

    @property
    def standard_error(self) -> float:
        """Square root of the variance."""
        return math.sqrt(self.variance)


class VariancePart(NamedTuple):
    """One of the independent parts that a squared standard error is the sum of."""

    variance: float
    weight: float  # its size in Satterthwaite's formula
    freedom: float


class Scatter:
    """The scatter of samples by their keys, estimated from all of them when it is first needed.

    `is_exact`: equal repeats show that nothing scatters; else they show nothing.
    """

    def __init__(self, samples: Mapping[Hashable, UsableSample], is_exact: bool) -> None:
        self._samples = samples
        self._is_exact = is_exact
        # The place of a sample in the arrays of what is estimated for each of them.
        self._position = {key: position for position, key in enumerate(samples)}

    def error_of_mean(self, key: Hashable) -> SquaredError | None:
        """Return the squared standard error of the mean of a sample; None if nothing shows the scatter.

        Block effects and noise need not be told apart for it. Its degrees of freedom are at least those of its own
        values, whatever the blocks are; the other configurations may add some.
        """
        scatter = self._over_repeats
        if scatter.total_freedom <= 0:
            return None
        sample, position = self._samples[key], self._position[key]
        error_by_parts = self.error({key: sample.count}, block_weight(sample))
        freedom_by_parts = error_by_parts.freedom if error_by_parts else 0.0
        freedom = max(sample.count - 1.0, freedom_by_parts)
        return SquaredError(
            variance=scatter.variances[position] / sample.count,
            freedom=min(float(scatter.freedom[position]), freedom),
        )

    def error(self, counts: Mapping[Hashable, int], block_weight: float) -> SquaredError | None:
        """Return the squared standard error of a mean, or of a difference of means; None if nothing shows it.

        `counts`: how many values of each configuration the estimate has, by its key. `block_weight`: w of the model.
        """
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
        if sum(part.weight for part in parts) > 0:
            return SquaredError(
                variance=float(sum(part.variance for part in parts)),
                freedom=float(min(most_freedom, satterthwaite(parts))),
            )
        # Nothing scatters: where values are exact that is what they show, else they show nothing.
        return SquaredError(0.0, most_freedom) if self._is_exact and most_freedom > 0 else None

    def _noise_part(self, noise: Variances, key: Hashable, count: int) -> VariancePart:
        """Return what the noise of a configuration adds to the variance of a mean of `count` of its values."""
        position = self._position[key]
        variance = noise.variances[position] / count
        return VariancePart(variance, variance, noise.freedom[position])

    @cached_property
    def _deviations(self) -> list[np.ndarray]:
        """Values less their configuration's mean, of each sample."""
        return [sample.scaled - sample.scaled.mean() for sample in self._samples.values()]

    @cached_property
    def _block_effects(self) -> BlockEffects | None:
        """Effects of blocks; None where a sample has no blocks."""
        blocks = [sample.blocks for sample in self._samples.values() if sample.blocks is not None]
        if not blocks or len(blocks) < len(self._samples):
            return None
        return fit_block_effects(blocks, self._deviations)

    @property
    def _separable_effects(self) -> BlockEffects | None:
        """Effects of blocks; None where they cannot be told apart from noise."""
        effects = self._block_effects
        return effects if effects is not None and effects.are_separable else None

    @cached_property
    def _within_blocks(self) -> Variances:
        """Variances V of the noise; the scatter over repeats where there are no blocks."""
        effects = self._block_effects
        if effects is None:
            return self._over_repeats
        return self._moderated(effects.residuals, effects.residual_freedom)

    @cached_property
    def _over_repeats(self) -> Variances:
        """Variances of noise and block effects together."""
        freedom = np.array([len(deviations) - 1.0 for deviations in self._deviations])
        return self._moderated(self._deviations, freedom)

    def _moderated(self, residuals: Sequence[np.ndarray], freedom: np.ndarray) -> Variances:
        sums_of_squares = np.array([float(residual @ residual) for residual in residuals])
        counted_freedom = np.where(freedom > 1e-6, freedom, 0.0)
        if not self._is_exact:
            are_equal = sums_of_squares <= ROUNDING**2
            counted_freedom = np.where(are_equal, 0.0, counted_freedom)
        return moderated(sums_of_squares, counted_freedom)


def satterthwaite(parts: Sequence[VariancePart]) -> float:
    """Return the degrees of freedom of a sum of independent variances P with f degrees of freedom: (Σ P)² / Σ (P² / f).

    (Franklin Satterthwaite, Biometrics Bulletin 2(6), 1946. Of two sample means it is Welch's formula.)

    >>> satterthwaite([VariancePart(1.0, 1.0, 2.0), VariancePart(3.0, 3.0, 6.0)])  # 4² / (1/2 + 9/6)
    8.0
    """
    total = sum(part.weight for part in parts)
    return total**2 / sum(part.weight**2 / part.freedom for part in parts)


def block_weight(sample: UsableSample, base: UsableSample | None = None) -> float:
    """Return w of the model: the weight of B in the squared error of a mean, or of a difference of two means.

    Where a sample has no blocks it is 1, which only has to differ from 0: then effects of blocks are not estimated.

    >>> from multicard.stats.samples import usable
    >>> first, second = (usable({block: 1.0 for block in blocks}, logs=True) for blocks in ("abc", "cd"))
    >>> round(block_weight(first), 6), round(block_weight(first, second), 6)  # 3/9, and 2/9 + (1/3 − 1/2)² + 1/4
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
    """Return what the effects of blocks that are not common to both sides add to the variance of an estimate."""
    mean_noise = float(noise.variances.mean()) if noise.total_freedom > 0 else 0.0
    # Estimated effects scatter by B and by the noise of the values that they are estimated from. This is B alone.
    block_variance = max(0.0, effects.variance - mean_noise / effects.configurations)
    return VariancePart(
        variance=block_weight * block_variance,
        # The noise of the estimated effects stays in the weight: blocks that happen to differ little have no more
        # degrees of freedom than others.
        weight=block_weight * effects.variance,
        freedom=effects.freedom,
    )
