"""Say how much faster more GPUs are or would be, where the step goes, and what to try."""

import argparse
import math
from typing import Any, NamedTuple

from multicard.cli._command import UNDERSTAND, Command, add_results, numbers_of_devices
from multicard.cli._console import say, text_table
from multicard.core.text import counted, plural, without_escapes

Row = dict[str, Any]


class Series(NamedTuple):
    """A key of runs that differ only in their number of devices: a configuration, a machine and its versions."""

    configuration: str
    machine: str
    versions: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: what to print, and the results."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--devices", metavar="N,...", help="predict these numbers of devices instead, such as 8,16")
    either.add_argument("--json", action="store_true", help="print the table of choices as JSON")
    either.add_argument("--verbose", action="store_true", help="add the table of choices, and all options")
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print recommendations, or the table of choices as JSON; with --devices, print predictions instead."""
    if arguments.devices:
        _print_predictions(arguments)
        return
    from multicard import read_results

    results = read_results(arguments.source)
    if arguments.json:
        print(f'{{"configurations": {results.choices().to_json(orient="records", indent=2)}}}')
        return
    print(without_escapes(results.recommendations(arguments.verbose)), end="")


def _print_predictions(arguments: argparse.Namespace) -> None:
    """Print predictions with their caveats, and how predictions of measured runs turned out."""
    from multicard import read_results
    from multicard.results.provenance import distinguishing_words

    devices = numbers_of_devices(arguments.devices)
    predictions = read_results(arguments.source).predictions(devices)
    rows_of_series: dict[Series, list[Row]] = {}
    for row in predictions.predictions.to_dict("records"):
        rows_of_series.setdefault(_series_of(row), []).append(row)
    machines = distinguishing_words([(series.machine, series.versions) for series in rows_of_series])
    names: dict[Series, str] = {}
    for series, machine in zip(rows_of_series, machines, strict=True):
        names[series] = f"{series.configuration} ({machine})" if machine else series.configuration
    for series, rows in rows_of_series.items():
        unit = plural(2, predictions.units[series.configuration])
        answers = [line for row in rows for line in _answer(row, unit)]
        # The numbers of devices of a series share most of their caveats.
        caveats = dict.fromkeys(caveat for row in rows for caveat in row["caveats"].split("; ") if caveat)
        say(names[series], *answers, *(f"  Caveat: {caveat}" for caveat in caveats), "")
    checks = [(names[_series_of(row)], *_check_cells(row)) for row in predictions.checks.to_dict("records")]
    if checks:
        headings = ("Configuration", "Devices", "Predicted\nfrom fewer", "Measured", "Error", "Inside the\ninterval")
        say(text_table("Checks: measured runs, predicted from those on fewer devices", headings, checks))
    say(*predictions.verdicts)


def _series_of(row: Row) -> Series:
    return Series(row["configuration"], row["machine"], row["versions"])


def _answer(row: Row, unit: str) -> list[str]:
    """Return the lines of a prediction.

    The first has the speed-up over one device, else the throughput, else the step time, whichever is the first that is
    known. A second line has the others.
    """
    from multicard.core.units import number, percent
    from multicard.results.configuration import DEVICE_WORDS

    devices = counted(row["devices"], DEVICE_WORDS[row["device"]])
    if isinstance(row["reason"], str):  # else empty: None, or NaN if pandas converted it
        return [f"  {devices}: not predicted: {row['reason']}"]
    step = f"step {_time(row, 'step_time_s')}"
    details: list[str] = []
    if _is_known(row["speedup"]):
        efficiency = percent(row["speedup"] / row["devices"])
        answer = f"{_with_interval(row, 'speedup', '×')} of one, {efficiency} efficient"
        details = [step, f"{number(row['throughput_per_s'])} {unit}/s"]
    elif _is_known(row["throughput_per_s"]):
        answer = f"{_with_interval(row, 'throughput_per_s')} {unit}/s"
        details = [step]
    else:
        answer = step
    lines = [f"  {devices}: {answer}, from {row['measured']} measured"]
    return [*lines, f"    {', '.join(details)}"] if details else lines


def _is_known(value: float | None) -> bool:
    # In pandas an empty cell is None in a column without any value, else NaN.
    return value is not None and not math.isnan(value)


def _check_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a checked prediction, those after the name of its series."""
    from multicard.core.units import SECONDS, percent, with_unit

    return (
        str(row["devices"]),
        _time(row, "predicted_s"),
        with_unit(row["measured_s"], SECONDS),
        percent(row["prediction_error"], signed=True, decimals=1),
        "yes" if row["inside"] else "no",
    )


def _time(row: Row, name: str) -> str:
    from multicard.core.units import SECONDS, unit_for

    scale, unit = unit_for([row[name]], SECONDS)
    return _with_interval(row, name, f" {unit}", scale)


def _with_interval(row: Row, name: str, unit: str = "", scale: float = 1.0) -> str:
    """Return a value with its interval, such as 6.9× (95% CI 6.2 to 7.5)."""
    from multicard.core.units import in_digits

    value, low, high = in_digits(*(scale * row[f"{name}{end}"] for end in ("", "_low", "_high")))
    return f"{value}{unit} (95% CI {low} to {high})"


COMMAND = Command(UNDERSTAND, "multicard recommend results --devices 8,16", add_arguments, run)
