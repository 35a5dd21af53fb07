"""Effects of the blocks in which configurations were measured together, estimated by least squares.

A block is a repeat in which every configuration ran once, so that what disturbs the machine at that time is common to
all of them. What is left of a value without its configuration's mean and its block's effect is noise.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass(frozen=True)
class BlockEffects:
    """The variance of block effects, and the noise that is left. Made by `fit_block_effects`.

    `residuals` and `residual_freedom`, their degrees of freedom, have an entry per configuration.
    """

    residuals: list[np.ndarray]
    residual_freedom: np.ndarray
    variance: float  # of the estimated effects: their own variance, and the noise of the estimates
    freedom: float  # degrees of freedom of this variance; 0 where no two configurations have a block in common
    configurations: float  # configurations in a block, on average: noise / this is the noise in `variance`

    @property
    def are_separable(self) -> bool:
        """True if block effects can be told apart from noise: both have degrees of freedom."""
        return self.freedom > 0 and bool((self.residual_freedom > 1e-6).any())


def fit_block_effects(blocks: Sequence[Sequence[Hashable]], deviations: Sequence[np.ndarray]) -> BlockEffects:
    """Estimate the effects of blocks.

    `blocks` has, for each configuration, the block of each of its values; `deviations` has the values themselves, less
    the mean of the configuration.

    >>> effects = fit_block_effects([["a", "b"], ["a", "b"]], [np.array([-1.0, 1.0]), np.array([-3.0, 3.0])])
    >>> [residual.round(9).tolist() for residual in effects.residuals]  # the effects are −2 and 2
    [[1.0, -1.0], [-1.0, 1.0]]
    >>> round(effects.variance, 9), effects.freedom, round(effects.configurations, 9)
    (8.0, 1.0, 2.0)
    """
    names = dict.fromkeys(chain.from_iterable(blocks))
    column_of = {block: column for column, block in enumerate(names)}
    columns = [[column_of[block] for block in blocks_of_one] for blocks_of_one in blocks]
    # A row has a 1 in the column of its block. Means of configurations are taken out of both sides of the equation, so
    # only the effects are unknown.
    indicators = [np.eye(len(names))[columns_of_one] for columns_of_one in columns]
    design = np.vstack([rows - rows.mean(axis=0) for rows in indicators])
    values = np.concatenate(deviations)
    # Effects are determined but for a constant per group of connected blocks, hence the pseudo-inverse.
    inverse = np.linalg.pinv(design.T @ design, rcond=1e-9, hermitian=True)
    effects = inverse @ design.T @ values
    rank = round(float(np.trace(inverse @ design.T @ design)))
    residuals = values - design @ effects
    # The leverage of a value is the part of a degree of freedom that the fit takes from it; its configuration's mean
    # takes one of all its values.
    leverages = np.einsum("ij,jk,ik->i", design, inverse, design)
    ends = np.cumsum([len(columns_of_one) for columns_of_one in columns])[:-1]
    freedom = [max(0.0, len(of_one) - 1 - of_one.sum()) for of_one in np.split(leverages, ends)]
    return BlockEffects(
        residuals=np.split(residuals, ends),
        residual_freedom=np.array(freedom),
        variance=float(effects @ effects) / rank if rank else 0.0,
        freedom=float(rank),
        configurations=rank / float(np.trace(inverse)) if rank else math.inf,
    )
