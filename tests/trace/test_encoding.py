"""Rows as codes, against a plain count of distinct rows."""

import random

import numpy as np

from multicard.trace.encoding import EMPTY, encode
from random_inputs import seeds

KINDS = (
    lambda chance: chance.choice([5, 5, 5, 6]),
    lambda chance: chance.choice([0, 1 << 40, -(1 << 62), (1 << 62) + 7]),
    lambda chance: chance.choice([None, 3, 1 << 20]),
    lambda chance: chance.randrange(1 << 62),
    lambda chance: 9,
    lambda chance: None,
)


@seeds(30, 300)
def test_rows_with_one_code_are_the_same_and_others_are_not(seed: int) -> None:
    chance = random.Random(seed)
    columns = [
        [kind(chance) for _ in range(50)] for kind in (chance.choice(KINDS) for _ in range(chance.randrange(1, 14)))
    ]
    rows = list(zip(*columns, strict=True))
    codes, distinct = encode([np.array([EMPTY if value is None else value for value in column]) for column in columns])
    assert [distinct[code] for code in codes] == rows
    assert len(set(distinct)) == len(distinct)


def test_no_rows_have_no_codes() -> None:
    codes, distinct = encode([np.empty(0, np.int64)] * 2)
    assert (len(codes), distinct) == (0, [])
