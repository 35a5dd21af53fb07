"""`multicard predict`."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from multicard.cli._command import Command, add_results, numbers_of_devices
from multicard.core.errors import UserError
from multicard.core.text import listed, plural

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
SERIES = ["configuration", "machine", "versions"]  # columns that tell series apart

# But for the throughput, whose unit depends on the workload.
HEADINGS = ("Devices", "Step time\n[95% interval]", "Speed-up\n(efficiency)", "Memory\nper device", "Bound")


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
    if unequal := [str(count) for count in devices if count % arguments.nodes]:
        raise UserError(
            f"--devices: found {listed(unequal)}, expected multiples of {arguments.nodes}, so that as many nodes share "
            "the devices equally"
        )
    found = read_results(arguments.results, arguments.config).predictions(devices, arguments.nodes)
    terminal = console()
    names = _names(found.predictions, found.names)
    refused: dict[str, list[str]] = {}
    for series, rows in found.predictions.groupby(SERIES, sort=False):
        configuration, name = series[0], names[series]
        known = rows[rows["reason"].isna()].to_dict("records")
        if known:
            headings = (*HEADINGS[:2], f"Throughput\n({plural(2, found.units[configuration])}/s)", *HEADINGS[2:])
            terminal.print(text_table(name, headings, [_predicted(row) for row in known]))
            for line in _basis(known):
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


def _predicted(row: Row) -> tuple[str, ...]:
    from multicard.core.units import BYTES, UNKNOWN, number, number_in, percent, with_unit

    speedup = (
        UNKNOWN if row["speedup"] != row["speedup"] else f"{number(row['speedup'])} ({percent(row['efficiency'])})"
    )
    return (
        _count(row),
        _time(row, "step_time_s"),
        number_in(*(row[f"throughput_per_s{end}"] for end in ("", "_low", "_high"))),
        speedup,
        UNKNOWN if row["memory_bytes"] != row["memory_bytes"] else with_unit(row["memory_bytes"], BYTES),
        row["bound"],
    )


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


def _count(row: Row) -> str:
    return f"{row['devices']}" + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else "")


def _time(row: Row, name: str) -> str:
    from multicard.core.units import SECONDS, number_in, unit_for

    scale, unit = unit_for([row[name]], SECONDS)
    ends = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{number_in(*(None if end is None else scale * end for end in ends))} {unit}"


def _basis(rows: list[Row]) -> list[str]:
    """The laws and caveats of the predictions of one configuration, each once; of which, unless of all."""
    laws = _by_text((row["laws"], row) for row in rows)
    caveats = _by_text((each, row) for row in rows for each in filter(None, row["caveats"].split("; ")))
    return [
        f"  {kind}{'' if len(own) == len(rows) else f', {_counts(own)}'}: {text}"
        for kind, found in (("Fitted laws", laws), ("Caveat", caveats))
        for text, own in found.items()
    ]


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


COMMAND = Command(
    "predict",
    98,
    "predict step time, throughput and memory on more devices, and check predictions of measured runs",
    add_arguments,
    run,
)
