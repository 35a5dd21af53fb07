"""Report scaling (measured or predicted), where step time goes, and what to try next."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from multicard.cli._command import UNDERSTAND, Command, add_results, numbers_of_devices
from multicard.cli._console import say, text_table
from multicard.core.text import counted, plural, without_escapes


class Series(NamedTuple):
    """A key of runs that differ only in their number of devices: a configuration, a machine and its versions."""

    configuration: str
    machine: str
    versions: str


class Estimate(NamedTuple):
    """A value with the bounds of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """A row of `Predictions.predictions`."""

    series: Series
    device: str  # "cpu" or "cuda"
    devices: int
    # Seconds; None if it was not predicted, as in the two fields below.
    step_time_s: Estimate | None
    # Units of the program per second.
    throughput_per_s: Estimate | None
    # Over one device.
    speedup: Estimate | None
    # Numbers of devices that the prediction is made from, in words.
    measured: str
    caveats: tuple[str, ...]
    # Why nothing is predicted; None if something is.
    reason: str | None


@dataclass(frozen=True)
class Check:
    """A row of `Predictions.checks`: a measured run that was predicted from those on fewer devices."""

    series: Series
    devices: int
    predicted_s: Estimate
    measured_s: float
    # Predicted by measured time, minus 1.
    error: float
    # True if the measured time is inside the interval.
    is_inside: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: what to print, and the results."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--devices", metavar="N,...", help="instead predict these numbers of devices, such as 8,16")
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
    predicted = read_results(arguments.source).predictions(devices)
    predictions_of: dict[Series, list[Prediction]] = {}
    for prediction in map(_prediction, predicted.predictions.to_dict("records")):
        predictions_of.setdefault(prediction.series, []).append(prediction)
    machines = distinguishing_words([(series.machine, series.versions) for series in predictions_of])
    names: dict[Series, str] = {}
    for series, machine in zip(predictions_of, machines, strict=True):
        names[series] = f"{series.configuration} ({machine})" if machine else series.configuration
    for series, predictions in predictions_of.items():
        unit = plural(2, predicted.units[series.configuration])
        answers = [line for prediction in predictions for line in _answer(prediction, unit)]
        # The numbers of devices of a series share most of their caveats.
        caveats = dict.fromkeys(caveat for prediction in predictions for caveat in prediction.caveats)
        say(names[series], *answers, *(f"  Caveat: {caveat}" for caveat in caveats), "")
    checks = [_check(row) for row in predicted.checks.to_dict("records")]
    if checks:
        headings = ("Configuration", "Devices", "Predicted\nfrom fewer", "Measured", "Error", "Inside the\ninterval")
        rows = [(names[check.series], *_check_cells(check)) for check in checks]
        say(text_table("Checks: measured runs, predicted from those on fewer devices", headings, rows))
    say(*predicted.verdicts)


def _prediction(row: Mapping[str, Any]) -> Prediction:
    reason = row["reason"]
    return Prediction(
        series=_series_of(row),
        device=row["device"],
        devices=row["devices"],
        step_time_s=_estimate(row, "step_time_s"),
        throughput_per_s=_estimate(row, "throughput_per_s"),
        speedup=_estimate(row, "speedup"),
        measured=row["measured"],
        caveats=tuple(filter(None, row["caveats"].split("; "))),
        # An empty cell is None, or NaN if pandas converted it.
        reason=reason if isinstance(reason, str) else None,
    )


def _check(row: Mapping[str, Any]) -> Check:
    return Check(
        series=_series_of(row),
        devices=row["devices"],
        predicted_s=Estimate(row["predicted_s"], row["predicted_s_low"], row["predicted_s_high"]),
        measured_s=row["measured_s"],
        error=row["prediction_error"],
        is_inside=bool(row["inside"]),
    )


def _series_of(row: Mapping[str, Any]) -> Series:
    return Series(row["configuration"], row["machine"], row["versions"])


def _estimate(row: Mapping[str, Any], name: str) -> Estimate | None:
    """Return the value of the column `name` with its bounds; None if the cell is empty."""
    value = row[name]
    # In pandas an empty cell is None in a column without any value, else NaN.
    if value is None or math.isnan(value):
        return None
    return Estimate(value, row[f"{name}_low"], row[f"{name}_high"])


def _answer(prediction: Prediction, unit: str) -> list[str]:
    """Return the lines of a prediction.

    The first has the speed-up over one device, else the throughput, else the step time, whichever is the first that is
    known. A second line has the others.
    """
    from multicard.core.units import number, percent
    from multicard.results.configuration import DEVICE_WORDS

    devices = counted(prediction.devices, DEVICE_WORDS[prediction.device])
    step_time_s, throughput, speedup = prediction.step_time_s, prediction.throughput_per_s, prediction.speedup
    if step_time_s is None:
        return [f"  {devices}: not predicted: {prediction.reason}"]
    step = f"step {_time(step_time_s)}"
    details: list[str] = []
    if speedup is not None:
        efficiency = percent(speedup.value / prediction.devices)
        answer = f"{_with_interval(speedup, '×')} of one, {efficiency} efficient"
        details = [step]
        if throughput is not None:
            details.append(f"{number(throughput.value)} {unit}/s")
    elif throughput is not None:
        answer = f"{_with_interval(throughput)} {unit}/s"
        details = [step]
    else:
        answer = step
    lines = [f"  {devices}: {answer}, from {prediction.measured} measured"]
    return [*lines, f"    {', '.join(details)}"] if details else lines


def _check_cells(check: Check) -> tuple[str, ...]:
    """Return the cells of a checked prediction, those after the name of its series."""
    from multicard.core.units import SECONDS, percent, with_unit

    return (
        str(check.devices),
        _time(check.predicted_s),
        with_unit(check.measured_s, SECONDS),
        percent(check.error, signed=True, decimals=1),
        "yes" if check.is_inside else "no",
    )


def _time(seconds: Estimate) -> str:
    from multicard.core.units import SECONDS, unit_for

    scale, unit = unit_for([seconds.value], SECONDS)
    return _with_interval(seconds, f" {unit}", scale)


def _with_interval(estimate: Estimate, unit: str = "", scale: float = 1.0) -> str:
    """Return a value with its interval, such as 6.9× (95% CI 6.2 to 7.5)."""
    from multicard.core.units import in_digits

    value, low, high = in_digits(*(scale * number for number in estimate))
    return f"{value}{unit} (95% CI {low} to {high})"


COMMAND = Command(UNDERSTAND, "multicard recommend results --devices 8,16", add_arguments, run)
