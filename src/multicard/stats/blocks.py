"""Effects of the blocks in which configurations were measured together, estimated by least squares.

A block is a repeat in which every configuration ran once, so that what disturbs the machine at that time is common to
all of them. The value of configuration i in block j, less the mean of its configuration, is modelled as

    d_ij  =  b_j − (mean of b over the blocks of configuration i)  +  noise

with an effect b_j per block. What is left of d_ij without the estimated effects (the *residual*) is noise.
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
    # Mean square of the estimated effects: their own variance, and the noise of the estimates.
    variance: float
    # Degrees of freedom of this variance; 0 where no two configurations have a block in common.
    freedom: float
    # Configurations in a block, on average: the noise of a value over this is the noise in `variance`.
    configurations: float

    @property
    def are_separable(self) -> bool:
        """True if block effects can be told apart from noise: both have degrees of freedom."""
        return self.freedom > 0 and bool((self.residual_freedom > 1e-6).any())


def fit_block_effects(blocks: Sequence[Sequence[Hashable]], deviations: Sequence[np.ndarray]) -> BlockEffects:
    """Estimate the effects of blocks.

    `blocks` has, for each configuration, the block of each of its values; `deviations` has the values themselves, less
    the mean of the configuration.

    Two configurations that deviate by ∓1 and ∓3 in two blocks have the mean deviations −2 and 2, which are the effects.
    These have one degree of freedom, so their variance is (4 + 4) / 1.

    >>> effects = fit_block_effects([["a", "b"], ["a", "b"]], [np.array([-1.0, 1.0]), np.array([-3.0, 3.0])])
    >>> [residual.round(9).tolist() for residual in effects.residuals]
    [[1.0, -1.0], [-1.0, 1.0]]
    >>> round(effects.variance, 9), effects.freedom, round(effects.configurations, 9)
    (8.0, 1.0, 2.0)
    """
    design = _design(blocks)
    values = np.concatenate(deviations)
    normal_matrix = design.T @ design
    # Effects are determined but for a constant per group of connected blocks, hence the pseudo-inverse.
    inverse = np.linalg.pinv(normal_matrix, rcond=1e-9, hermitian=True)
    effects = inverse @ design.T @ values
    residuals = values - design @ effects
    # The number of effects that are determined.
    rank = round(float(np.trace(inverse @ design.T @ design)))
    # The leverage of a value is the part of a degree of freedom that the fit takes from it.
    leverages = np.einsum("ij,jk,ik->i", design, inverse, design)
    ends = np.cumsum([len(values_of_one) for values_of_one in deviations])[:-1]
    # The mean of a configuration takes one degree of freedom of all its values.
    freedom = [max(0.0, len(of_one) - 1 - of_one.sum()) for of_one in np.split(leverages, ends)]
    return BlockEffects(
        residuals=np.split(residuals, ends),
        residual_freedom=np.array(freedom),
        variance=float(effects @ effects) / rank if rank else 0.0,
        freedom=float(rank),
        # An effect that is the mean of k values has the variance of the noise over k, which is on the diagonal.
        configurations=rank / float(np.trace(inverse)) if rank else math.inf,
    )


def _design(blocks: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Return the matrix of the model: a row per value and a column per block, so that d = matrix × effects + noise.

    A row has a 1 in the column of its block, less the mean of such rows of its configuration, since the mean is taken
    out of the values, too.

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
