"""Pack the runs of an experiment into one file, without user names, hostnames and paths."""

import argparse
import sys
from pathlib import Path

from multicard.cli._command import PREPARE, Command, add_configuration, add_profile, refuse_existing
from multicard.cli._console import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the configuration, the file to write, and the profile."""
    add_configuration(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="new file (default: the configuration's name, with .tar.gz)"
    )
    add_profile(parser)


def run(arguments: argparse.Namespace) -> None:
    """Pack the runs of an experiment, and list the skipped ones; exit with 1 if there are any."""
    from multicard.config.experiment import ARCHIVE
    from multicard.config.load import read_experiment
    from multicard.core.text import counted, listed
    from multicard.core.units import BYTES, with_unit
    from multicard.share.pack import pack

    out = arguments.out or Path(f"{arguments.config.stem}{ARCHIVE}")
    refuse_existing("--out", out)
    packed = pack(read_experiment(arguments.config, arguments.profile, outside=False), out)
    say(*(f"skipped: {file}: missing" for file in packed.incomplete))
    if packed.names:
        where = "appears in its configuration or commands; check them before you share it"
        say(f"{listed(list(map(repr, packed.names)))} {where}")
    say(f"packed {counted(len(packed.runs), 'run')} ({with_unit(out.stat().st_size, BYTES)}): {out}")
    if packed.incomplete:
        sys.exit(1)


COMMAND = Command(PREPARE, "multicard archive config/mine.yaml --out mine.tar.gz", add_arguments, run)
