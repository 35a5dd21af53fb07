"""`multicard recommend`."""

import argparse

from multicard.cli._command import Command, add_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the goal, the limit and the results."""
    parser.add_argument(
        "--goal",
        choices=["throughput", "time_to_accuracy", "energy", "memory"],
        help="what to optimize (default: all four)",
    )
    parser.add_argument(
        "--memory-limit-gb",
        type=float,
        metavar="X",
        help="skip configurations that need more memory per device, in GB (10^9 bytes)",
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print recommendations as Markdown."""
    from multicard import read_results

    goals = {"goals": (arguments.goal,)} if arguments.goal else {}
    print(read_results(arguments.results).recommendations(**goals, memory_limit_gb=arguments.memory_limit_gb), end="")


COMMAND = Command(
    "recommend",
    100,
    "list each configuration's bottlenecks, what to try, and the best configuration for a goal",
    add_arguments,
    run,
)
