"""`multicard predict`."""

import argparse
from typing import TYPE_CHECKING, Any

from multicard.cli._command import Command, add_results, numbers_of_devices
from multicard.core.errors import UserError
from multicard.core.text import counted

if TYPE_CHECKING:
    import pandas as pd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of devices and the results."""
    parser.add_argument("--devices", required=True, metavar="N,...", help="numbers of devices to predict, such as 8,16")
    parser.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="nodes that share the devices equally (default: %(default)s)"
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print predictions, how those of measured runs turn out, and what they rest on."""
    from multicard import read_results
    from multicard.cli._console import console, text_table
    from multicard.core.terminal import plain

    devices = numbers_of_devices("--devices", arguments.devices)
    if arguments.nodes < 1:
        raise UserError(f"--nodes: found {arguments.nodes}, expected a number of nodes, at least 1")
    found = read_results(arguments.results).predictions(devices, arguments.nodes)
    terminal = console()
    headings = (
        "Configuration",
        "Devices",
        "Step time",
        "Work per s",
        "Speed-up",
        "Efficiency",
        "Memory per device",
        "Bound",
    )
    known = found.predictions[found.predictions["reason"].isna()]
    rows = [_predicted(row) for row in known.to_dict("records")]
    terminal.print(text_table("Predicted", headings, rows) if rows else "Nothing can be predicted.")
    rows = [_checked(row) for row in found.checks[found.checks["reason"].isna()].to_dict("records")]
    if rows:
        headings = ("Configuration", "Devices", "Predicted from fewer", "Measured", "Error", "Inside the interval")
        terminal.print(text_table("Checks: measured runs, predicted from those on fewer devices", headings, rows))
    for line in (*found.verdicts, *_notes(found.predictions)):
        terminal.print(plain(line), soft_wrap=True)


def _predicted(row: dict[str, Any]) -> tuple[str, ...]:
    from multicard.core.units import BYTES, UNKNOWN, number, number_in, percent, with_unit

    rate = number_in(*(row[f"throughput_per_s{end}"] for end in ("", "_low", "_high")))
    return (
        row["configuration"],
        _count(row),
        _time(row, "step_time_s"),
        rate,
        *(UNKNOWN if row[name] != row[name] else form(row[name]) for name, form in (
            ("speedup", number), ("efficiency", percent), ("memory_bytes", lambda value: with_unit(value, BYTES)),
        )),
        row["bound"],
    )  # fmt: skip


def _checked(row: dict[str, Any]) -> tuple[str, ...]:
    from multicard.core.units import SECONDS, UNKNOWN, percent, with_unit

    inside = {True: "yes", False: "no"}.get(row["inside"], UNKNOWN)
    return (
        row["configuration"],
        _count(row),
        _time(row, "predicted_s"),
        with_unit(row["measured_s"], SECONDS),
        percent(row["prediction_error"], signed=True, decimals=1),
        inside,
    )


def _count(row: dict[str, Any]) -> str:
    return f"{row['devices']}" + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else "")


def _where(row: dict[str, Any]) -> str:
    return counted(row["devices"], "device") + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else "")


def _time(row: dict[str, Any], name: str) -> str:
    from multicard.core.units import SECONDS, number_in, unit_for

    scale, unit = unit_for([row[name]], SECONDS)
    return f"{number_in(*(scale * row[f'{name}{end}'] for end in ('', '_low', '_high')))} {unit}"


def _notes(table: "pd.DataFrame") -> list[str]:
    """What predictions rest on, and why some were not made: each line once."""
    lines = []
    for row in table.to_dict("records"):
        if isinstance(row["reason"], str):
            lines.append(f"Not predicted: {row['configuration']}, {_where(row)}: {row['reason']}")
        else:
            lines.append(f"{row['configuration']}, {_where(row)}: by {row['laws']}")
            lines += [f"Caveat: {row['configuration']}: {each}" for each in filter(None, row["caveats"].split("; "))]
    return list(dict.fromkeys(lines))


COMMAND = Command(
    "predict",
    98,
    "predict step time, throughput and memory on more devices, and check predictions of measured runs",
    add_arguments,
    run,
)
