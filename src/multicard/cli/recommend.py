"""Say how much faster more GPUs are or would be, where the step goes, and what to try."""

import argparse
from typing import Any

from multicard.cli._command import UNDERSTAND, Command, add_results, numbers_of_devices
from multicard.cli._console import say, text_table
from multicard.core.text import counted, plural, without_escapes

Row = dict[str, Any]
SERIES = ["configuration", "machine", "versions"]  # columns that tell series apart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to print, and the results."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--devices", metavar="N,...", help="predict these numbers of devices instead, such as 8,16")
    either.add_argument("--json", action="store_true", help="print the table of choices as JSON")
    either.add_argument("--verbose", action="store_true", help="add the table of choices, and all options")
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print recommendations, or the table of choices as JSON; with numbers of devices what these would gain."""
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
    """Print predictions, how those of measured runs turn out, and what they rest on."""
    from multicard import read_results
    from multicard.results.provenance import distinguishing_words

    devices = numbers_of_devices(arguments.devices)
    found = read_results(arguments.source).predictions(devices)
    series = list(dict.fromkeys(zip(*(found.predictions[name] for name in SERIES), strict=True)))
    places = distinguishing_words([place for _, *place in series])
    names = {each: each[0] + (f" ({words})" if words else "") for each, words in zip(series, places, strict=True)}
    for key, group in found.predictions.groupby(SERIES, sort=False):
        rows = group.to_dict("records")
        answers = [line for row in rows for line in _answer(row, plural(2, found.units[key[0]]))]
        caveats = dict.fromkeys(text for row in rows for text in filter(None, row["caveats"].split("; ")))
        say(names[key], *answers, *(f"  Caveat: {text}" for text in caveats), "")
    rows = [(names[tuple(row[each] for each in SERIES)], *_checked(row)) for row in found.checks.to_dict("records")]
    if rows:
        headings = ("Configuration", "Devices", "Predicted\nfrom fewer", "Measured", "Error", "Inside the\ninterval")
        say(text_table("Checks: measured runs, predicted from those on fewer devices", headings, rows))
    say(*found.verdicts)


def _answer(row: Row, unit: str) -> list[str]:
    """How much faster than one device, or how fast where none ran; and below it what else is predicted."""
    from multicard.core.units import number, percent
    from multicard.results.configuration import DEVICE_WORDS

    devices = counted(row["devices"], DEVICE_WORDS[row["device"]])
    if isinstance(row["reason"], str):  # else empty, which pandas may have as not a number
        return [f"  {devices}: not predicted: {row['reason']}"]
    rate, of_one = (None if row[name] != row[name] else row[name] for name in ("throughput_per_s", "speedup"))
    answer, *rest = [f"step {_time(row, 'step_time_s')}"]
    if of_one is not None:
        rest = [answer, f"{number(rate)} {unit}/s"]
        answer = f"{_with_interval(row, 'speedup', '×')} of one, {percent(of_one / row['devices'])} efficient"
    elif rate is not None:
        rest, answer = [answer], f"{_with_interval(row, 'throughput_per_s')} {unit}/s"
    lines = [f"  {devices}: {answer}, from {row['measured']} measured"]
    return [*lines, f"    {', '.join(rest)}"] if rest else lines


def _checked(row: Row) -> tuple[str, ...]:
    from multicard.core.units import SECONDS, percent, with_unit

    error = percent(row["prediction_error"], signed=True, decimals=1)
    measured = with_unit(row["measured_s"], SECONDS)
    return f"{row['devices']}", _time(row, "predicted_s"), measured, error, "yes" if row["inside"] else "no"


def _time(row: Row, name: str) -> str:
    from multicard.core.units import SECONDS, unit_for

    scale, unit = unit_for([row[name]], SECONDS)
    return _with_interval(row, name, f" {unit}", scale)


def _with_interval(row: Row, name: str, unit: str = "", scale: float = 1.0) -> str:
    """A value with its interval, such as 6.9× (95% CI 6.2 to 7.5)."""
    from multicard.core.units import in_digits

    value, low, high = in_digits(*(scale * row[f"{name}{end}"] for end in ("", "_low", "_high")))
    return f"{value}{unit} (95% CI {low} to {high})"


COMMAND = Command(UNDERSTAND, "multicard recommend results --devices 8,16", add_arguments, run)
