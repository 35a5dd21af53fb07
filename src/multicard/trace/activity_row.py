"""The row of an activity table, as the modules that make tables return it."""

from dataclasses import dataclass

from multicard.core.values import Row


@dataclass(frozen=True)
class ActivityRow:
    """A row about a process: its columns by name in `cells`, without `report`, `rank` and `process`.

    `trace` is the position of the process's trace among the traces of the capture. A column that `cells` lacks is empty
    in the table, and an entry of `cells` that is no column of the table is left out.
    """

    trace: int
    process: int
    cells: Row
