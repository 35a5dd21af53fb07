"""Write results for MLflow, Weights & Biases, TensorBoard or Prometheus, or as lines of JSON."""

import argparse
from pathlib import Path

from multicard.cli._command import PREPARE, Command, add_results, refuse_existing
from multicard.cli._console import say

# The keys of `multicard.share.export.EXPORT_FORMATS`, repeated here so that the help does not import that module.
FORMAT_NAMES = ("json", "mlflow", "openmetrics", "tensorboard", "wandb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the results, the format, and where to write."""
    add_results(parser)
    parser.add_argument("--to", choices=FORMAT_NAMES, required=True, help="format; json: a line per run")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="new file or folder (default: NAME-FORMAT; json: print)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the results for another tool, and print what opens them."""
    from multicard import read_results
    from multicard.config.experiment import ARCHIVE
    from multicard.core.text import counted
    from multicard.share.export import EXPORT_FORMATS, as_line, export, exported_runs

    source: Path = arguments.source
    name = source.resolve().name.removesuffix(ARCHIVE).removesuffix(".yaml")
    out = arguments.out or Path(f"{name}-{arguments.to}")
    is_printed = arguments.to == "json" and not arguments.out
    if not is_printed:
        refuse_existing("--out", out)
    results = read_results(source)
    runs = exported_runs(results.measures, results.steps)
    if is_printed:
        for exported_run in runs:
            print(as_line(exported_run))
        return
    export(runs, arguments.to, out)
    opened = EXPORT_FORMATS[arguments.to].opened.format(out=out)
    say(f"exported {counted(len(runs), 'run')}: {out} ({opened})")


COMMAND = Command(PREPARE, "multicard export results --to mlflow", add_arguments, run)
