"""Types of the values that rows of tables and JSON files hold, before they are written and after they were read."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

# A cell of a table. None is an empty cell: the value is unknown or was not recorded.
Cell: TypeAlias = str | int | float | bool | None
# A row of a table: its cells by the names of the columns.
Row: TypeAlias = dict[str, Cell]

# A value of a JSON file, and an object of one.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]


def number_of(cell: Cell) -> float:
    """Return the number that a cell holds.

    Raises `TypeError` if the cell is empty or holds a text.
    """
    if isinstance(cell, int | float):
        return cell
    raise TypeError(f"found {cell!r}, expected a number")
