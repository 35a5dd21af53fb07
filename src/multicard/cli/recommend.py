"""`multicard recommend`."""

import argparse
import re

from multicard.cli._command import UNDERSTAND, Command, add_results, duration_s, memory_bytes, name_damaged, read_source
from multicard.cli._predict import add_arguments as add_arguments_of_predicting
from multicard.cli._predict import print_predictions
from multicard.core.errors import UserError
from multicard.core.text import without_escapes

# Of what a demand states.
OPTIONS = {
    "deadline_s": "--deadline",
    "max_memory_bytes": "--max-memory",
    "gpu_hour_cost": "--gpu-hour-cost",
    "min_accuracy": "--min-accuracy",
    "max_loss": "--max-loss",
    "samples": "--samples",
    "epochs": "--samples",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the goal, what a training is to meet, and the results."""
    add, either = parser.add_argument, parser.add_mutually_exclusive_group()
    add(
        "--goal",
        choices=["throughput", "time_to_accuracy", "energy", "memory"],
        default="throughput",
        help="by what the best is found (default: throughput)",
    )
    add("--deadline", metavar="TIME", help="how many GPUs train in this time, such as 6h, 90min or 2h30m")
    add("--gpu-hour-cost", type=float, metavar="X", help="price of an hour of one GPU, in any currency")
    add("--max-memory", metavar="SIZE", help="skip configurations that need more per device, such as 80GB or 74.5GiB")
    add("--min-accuracy", type=float, metavar="X", help="count only what reached this test accuracy, such as 0.98")
    add("--max-loss", type=float, metavar="X", help="count only what reached this loss")
    add(
        "--samples",
        metavar="N",
        help="length of the training in samples, of language models in tokens, such as 1.2e6; or in passes over the "
        "data, such as 90epochs (default: that of the longest run)",
    )
    either.add_argument("--json", action="store_true", help="print the table of choices as JSON")
    either.add_argument("--verbose", action="store_true", help="add the table of choices and every configuration")
    add_arguments_of_predicting(parser)
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print recommendations, or the table of choices as JSON; with numbers of devices what these would gain."""
    if arguments.devices:
        print_predictions(arguments)
        return
    from multicard.analysis.choice.demand import Demand

    deadline, memory = arguments.deadline, arguments.max_memory
    demand = {
        "deadline_s": None if deadline is None else duration_s("--deadline", deadline),
        "max_memory_bytes": None if memory is None else memory_bytes("--max-memory", memory),
        **{name: getattr(arguments, name) for name in ("gpu_hour_cost", "min_accuracy", "max_loss", "goal")},
        **_length(arguments.samples),
    }
    try:
        Demand(**demand)
    except UserError as error:
        name, _, found = str(error).partition(":")
        raise UserError(f"{OPTIONS[name]}:{found}") from None
    results = read_source(arguments)
    name_damaged(results.damaged)
    if arguments.json:
        print(f'{{"configurations": {results.choices(**demand).to_json(orient="records", indent=2)}}}')
        return
    print(without_escapes(results.recommendations(arguments.verbose, **demand)), end="")


def _length(text: str | None) -> dict[str, float]:
    """Samples, or epochs."""
    if text is None:
        return {}
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\+?\d+)?) ?(epochs?)?", text)
    if not found:
        raise UserError(f"--samples: found {text!r}, expected a number such as 1.2e6, or of passes such as 90epochs")
    return {"epochs" if found[2] else "samples": float(found[1])}


COMMAND = Command(
    "recommend",
    50,
    "say how much faster more GPUs are or would be, where the step goes, and what to try",
    add_arguments,
    run,
    UNDERSTAND,
    "multicard recommend results --devices 8,16",
)
