"""Entries are listed by name in a given order; no name is given twice."""

from types import SimpleNamespace

import pytest

from multicard.core.entries import by_name


def test_entries_keep_the_order_in_which_they_are_listed() -> None:
    first, second = SimpleNamespace(name="z"), SimpleNamespace(name="a")
    assert list(by_name(first, second).items()) == [("z", first), ("a", second)]


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two entries are named same"):
        by_name(SimpleNamespace(name="same"), SimpleNamespace(name="same"))
