"""What is kept of a machine's limits: the record, and the figure of its all-reduces beside it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib as mpl

from multicard.analysis.machine.limits import MachineLimits, read_machine
from multicard.core.files import write_json
from multicard.figures.draw import FORMATS, save
from multicard.figures.machine import draw_all_reduces
from multicard.figures.style import NothingToShow


def keep(record: dict[str, Any], path: Path) -> MachineLimits:
    """Write a record and, where all-reduces are in it, their figure and its numbers; nothing of an older one stays."""
    write_json(path, record)
    limits = read_machine(path)
    mpl.use("Agg")
    for suffix in (*FORMATS, "csv"):
        path.with_name(f"{path.stem}.{suffix}").unlink(missing_ok=True)
    with suppress(NothingToShow):  # of one device
        save(*draw_all_reduces(limits), path.with_suffix(""))
    return limits
