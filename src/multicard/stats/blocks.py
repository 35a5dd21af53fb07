"""Effects of the blocks in which configurations were measured together, estimated by least squares.

A block is a repeat in which every configuration ran once, so that a disturbance of the machine at that time affects all
of them. Let d_ij be the value of configuration i in block j minus the mean of configuration i. The model is

    d_ij  =  b_j − (mean of b over the blocks of configuration i)  +  noise

with an effect b_j per block. The *residual* is d_ij minus the estimated effects; it is an estimate of the noise.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass(frozen=True)
class BlockEffects:
    """The variance of the block effects, and the residuals of the values. Made by `fit_block_effects`.

    `residuals` has an array for each configuration. `residual_freedom` has the degrees of freedom of each such array.
    """

    residuals: list[np.ndarray]
    residual_freedom: np.ndarray
    # Sum of squares of the estimated effects, divided by `freedom`; 0 if that is 0. It is the variance of the true
    # effects plus a part that comes from noise, because the effects were estimated from noisy values.
    variance: float
    # Degrees of freedom of `variance`: the number of effects that the values determine.
    freedom: float
    # Average number of configurations in a block; infinite if `freedom` is 0. The variance of a value's noise, divided
    # by this number, is the part of `variance` that comes from noise.
    configurations: float

    @property
    def are_separable(self) -> bool:
        """True if block effects can be separated from noise: both have degrees of freedom."""
        return self.freedom > 0 and bool((self.residual_freedom > 1e-6).any())


def fit_block_effects(blocks: Sequence[Sequence[Hashable]], deviations: Sequence[np.ndarray]) -> BlockEffects:
    """Estimate the effects of blocks.

    `blocks` has, for each configuration, the block of each of its values. `deviations` has, in the same order, each
    value minus the mean of its configuration.

    In the example, two configurations ran in the blocks a and b. The first deviates by −1 and 1, the second by −3 and
    3. The mean deviation of a block is its effect: −2 and 2. The two effects have one degree of freedom, so their
    variance is (4 + 4) / 1.

    >>> effects = fit_block_effects([["a", "b"], ["a", "b"]], [np.array([-1.0, 1.0]), np.array([-3.0, 3.0])])
    >>> [residual.round(9).tolist() for residual in effects.residuals]
    [[1.0, -1.0], [-1.0, 1.0]]
    >>> round(effects.variance, 9), effects.freedom, round(effects.configurations, 9)
    (8.0, 1.0, 2.0)
    """
    design = _design(blocks)
    values = np.concatenate(deviations)
    normal_matrix = design.T @ design
    # Blocks are connected if they have a configuration in common. A constant that is added to all effects of connected
    # blocks changes no d_ij, so the matrix is singular and has a pseudo-inverse only.
    inverse = np.linalg.pinv(normal_matrix, rcond=1e-9, hermitian=True)
    effects = inverse @ design.T @ values
    residuals = values - design @ effects
    # The number of effects that the values determine.
    rank = round(float(np.trace(inverse @ design.T @ design)))
    # The leverage of a value is the part of its one degree of freedom that the fit uses.
    leverages = np.einsum("ij,jk,ik->i", design, inverse, design)
    ends = np.cumsum([len(values_of_one) for values_of_one in deviations])[:-1]
    # The mean of a configuration uses one degree of freedom of its values.
    freedom = [max(0.0, len(of_one) - 1 - of_one.sum()) for of_one in np.split(leverages, ends)]
    return BlockEffects(
        residuals=np.split(residuals, ends),
        residual_freedom=np.array(freedom),
        variance=float(effects @ effects) / rank if rank else 0.0,
        freedom=float(rank),
        # If an effect is the mean of k values, its noise has 1 / k times the variance of a value's noise. The diagonal
        # of the inverse holds these 1 / k.
        configurations=rank / float(np.trace(inverse)) if rank else math.inf,
    )


def _design(blocks: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Return the matrix of the model: a row per value and a column per block, so that d = matrix × effects + noise.

    A row is 1 in the column of its block and 0 in the others, minus the mean of these rows over its configuration. The
    mean is subtracted because the mean of the configuration was subtracted from the values, too.

    >>> _design([["a", "b"], ["b"]]).tolist()
    [[0.5, -0.5], [-0.5, 0.5], [0.0, 0.0]]
    """
    names = list(dict.fromkeys(chain.from_iterable(blocks)))
    column_of_block = {block: column for column, block in enumerate(names)}
    unit_rows = np.eye(len(names))
    rows_of_configurations = []
    for blocks_of_configuration in blocks:
        columns = [column_of_block[block] for block in blocks_of_configuration]
        indicators = unit_rows[columns]
        rows_of_configurations.append(indicators - indicators.mean(axis=0))
    return np.vstack(rows_of_configurations)
