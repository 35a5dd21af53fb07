"""Read CSV files as tables of pandas; report a problem with a file in one line."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from multicard.core.errors import UserError, in_one_line

if TYPE_CHECKING:
    # pandas is imported inside functions, since it takes long to import, and planning and launching do not need it.
    import pandas as pd


def read_csv(path: Path, needed: Sequence[str] = (), form: str = "CSV", **options: Any) -> "pd.DataFrame":
    """Read a CSV file that has a header, with options of `pandas.read_csv`.

    Parameters
    ----------
    needed
        Columns that the file must have.
    form
        Words for the expected form, in the message about a file that does not parse, such as "CSV of whole numbers".

    Raises
    ------
    UserError
        If the file is missing, empty, cannot be read, does not parse, or lacks a column in `needed`.
    """
    import pandas as pd

    try:
        table = parse_csv(path, **options)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {in_one_line(error)}") from None
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: empty, expected a header") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: does not parse as {form}: {in_one_line(error)}") from None
    for column in needed:
        if column not in table:
            raise UserError(f"{path}: found no column {column}")
    return table


def parse_csv(source: Path | TextIO, **options: Any) -> "pd.DataFrame":
    """Parse CSV that has a header, with options of `pandas.read_csv`.

    Raises `OSError` if the file cannot be read, `ValueError` or `OverflowError` if it does not parse.
    """
    import pandas as pd

    table = pd.read_csv(source, **options)
    # If all lines have more values than the header, pandas uses their first values as an index. Then each other value
    # would be in a wrong column.
    if not isinstance(table.index, pd.RangeIndex):
        raise ValueError(f"found more columns than the {table.shape[1]} of the first line")
    return table
