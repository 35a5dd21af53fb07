"""What more devices would gain: `multicard recommend --devices 8,16`."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from multicard.cli._command import numbers_of_devices, read_source
from multicard.core.errors import UserError
from multicard.core.text import counted, listed, plural

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
SERIES = ["configuration", "machine", "versions"]  # columns that tell series apart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of devices."""
    add = parser.add_argument_group("more devices than were measured").add_argument
    add("--devices", metavar="N,...", help="predict these numbers of devices, such as 8,16, and check predictions")
    add("--nodes", type=int, default=1, metavar="N", help="nodes that share the devices equally (default: %(default)s)")


def print_predictions(arguments: argparse.Namespace) -> None:
    """Print predictions, how those of measured runs turn out, and what they rest on."""
    from multicard.cli._console import console, text_table
    from multicard.core.terminal import plain

    devices = numbers_of_devices("--devices", arguments.devices)
    if arguments.nodes < 1:
        raise UserError(f"--nodes: found {arguments.nodes}, expected a number of nodes, at least 1")
    if unequal := [str(count) for count in devices if count % arguments.nodes]:
        raise UserError(
            f"--devices: found {listed(unequal)}, expected multiples of {arguments.nodes}, so that as many nodes share "
            "the devices equally"
        )
    found = read_source(arguments).predictions(devices, arguments.nodes)
    terminal = console()
    names = _names(found.predictions, found.names)
    refused: dict[str, list[str]] = {}
    for series, rows in found.predictions.groupby(SERIES, sort=False):
        configuration, name = series[0], names[series]
        known = rows[rows["reason"].isna()].to_dict("records")
        if known:
            unit = plural(2, found.units[configuration])
            answers = [line for row in known for line in _answer(row, unit)]
            for line in (name, *answers, *_caveats(known)):
                terminal.print(plain(line), soft_wrap=True)
            terminal.print()
        reasons = _by_text((_reason(row), row) for row in rows[rows["reason"].notna()].to_dict("records"))
        for reason, own in reasons.items():
            refused.setdefault(f"Not predicted on {_counts(own)}: {reason}", []).append(f"  {name}")
    for line in (each for reason, names in refused.items() for each in (reason, *names)):
        terminal.print(plain(line), soft_wrap=True)
    if refused:
        terminal.print()
    rows = [
        (names[tuple(row[each] for each in SERIES)], *_checked(row))
        for row in found.checks[found.checks["reason"].isna()].to_dict("records")
    ]
    if rows:
        headings = ("Configuration", "Devices", "Predicted\nfrom fewer", "Measured", "Error", "Inside the\ninterval")
        terminal.print(text_table("Checks: measured runs, predicted from those on fewer devices", headings, rows))
    for line in found.verdicts:
        terminal.print(plain(line), soft_wrap=True)


def _names(predictions: "pd.DataFrame", names: dict[str, str]) -> dict[tuple[str, ...], str]:
    """Name of each series: that of its configuration, with the machine or versions where these tell several apart."""
    from multicard.analysis.evidence import place_words

    found = {}
    for configuration, rows in predictions.groupby("configuration", sort=False):
        places = list(dict.fromkeys(zip(rows["machine"], rows["versions"], strict=True)))
        for place, words in zip(places, place_words(places), strict=True):
            found[configuration, *place] = names[configuration] + (f" ({words})" if words else "")
    return found


def _answer(row: Row, unit: str) -> list[str]:
    """How much faster than one device, or how fast where none ran; and below it what else is predicted."""
    from multicard.core.units import BYTES, number, percent, with_unit

    rate, of_one, memory = (
        None if row[name] is None or row[name] != row[name] else row[name]
        for name in ("throughput_per_s", "speedup", "memory_bytes")
    )
    step = f"step {_time(row, 'step_time_s')}"
    if of_one is not None:
        answer = f"{_with_interval(row, 'speedup', '×')} of one, {percent(row['efficiency'])} efficient"
        rest = [step, f"{number(rate)} {unit}/s"]
    elif rate is not None:
        answer, rest = f"{_with_interval(row, 'throughput_per_s')} {unit}/s", [step]
    else:
        answer, rest = step, []
    if memory is not None:
        rest.append(f"{with_unit(memory, BYTES)} per device")
    rest.append(f"mostly {row['bound']}")
    return [
        f"  {_devices(row)}: {answer}, from {row['measured']}{' nodes' if row['nodes'] > 1 else ''} measured",
        f"    {', '.join(rest)}",
    ]


def _checked(row: Row) -> tuple[str, ...]:
    from multicard.core.units import SECONDS, UNKNOWN, percent, with_unit

    inside = {True: "yes", False: "no"}.get(row["inside"], UNKNOWN)
    return (
        _count(row),
        _time(row, "predicted_s"),
        with_unit(row["measured_s"], SECONDS),
        percent(row["prediction_error"], signed=True, decimals=1),
        inside,
    )


def _devices(row: Row) -> str:
    from multicard.analysis.evidence import DEVICE_WORDS

    return _count(row).replace(str(row["devices"]), counted(row["devices"], DEVICE_WORDS[row["device"]]), 1)


def _count(row: Row) -> str:
    return f"{row['devices']}" + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else "")


def _time(row: Row, name: str) -> str:
    from multicard.core.units import SECONDS, unit_for

    scale, unit = unit_for([row[name]], SECONDS)
    return _with_interval(row, name, f" {unit}", scale)


def _with_interval(row: Row, name: str, unit: str = "", scale: float = 1.0) -> str:
    """A value with its interval, such as 6.9× (95% CI 6.2 to 7.5)."""
    from multicard.core.units import UNKNOWN, in_digits

    ends = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
    if any(end is None or end != end for end in ends):
        return UNKNOWN
    value, low, high = in_digits(*(scale * end for end in ends))
    return f"{value}{unit} (95% CI {low} to {high})"


def _caveats(rows: list[Row]) -> list[str]:
    """The caveats of the predictions of one configuration, each once; of which, unless of all."""
    found = _by_text((each, row) for row in rows for each in filter(None, row["caveats"].split("; ")))
    return [f"  Caveat{'' if len(own) == len(rows) else f', {_counts(own)}'}: {text}" for text, own in found.items()]


def _by_text(pairs: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for text, row in pairs:
        found.setdefault(text, []).append(row)
    return found


def _reason(row: Row) -> str:
    """Why nothing is predicted, without the number of devices, which stands before it."""
    return row["reason"].removesuffix(f", not {row['devices']}")


def _counts(rows: list[Row]) -> str:
    nodes = rows[0]["nodes"]
    devices = f"{listed([str(row['devices']) for row in rows])} {plural(max(row['devices'] for row in rows), 'device')}"
    return f"{devices} on {nodes} nodes" if nodes > 1 else devices
