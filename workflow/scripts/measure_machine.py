"""Measure the limits of this machine: compute, memory, copies, all-reduces, loaders."""

import argparse
import json
from pathlib import Path

from multicard.core.errors import UserError, reported
from multicard.core.layout import machine_name
from multicard.limits.keep import keep
from multicard.limits.measure import measure_machine

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", choices=["cpu", "cuda"], required=True, help="kind of device")
parser.add_argument("--host", required=True, help="name of the machine that is to be measured")
parser.add_argument("--loaders", type=json.loads, default=[], help="loaders, as multicard.limits.jobs gives them")
parser.add_argument("--steps", type=json.loads, default=[], help="steps without a loader, likewise")
parser.add_argument("--seconds", type=float, default=1.0, help="time of each measurement")
parser.add_argument("--loader-seconds", type=float, default=10.0, help="time of each number of loader workers")
parser.add_argument("--out", type=Path, required=True, help="record to write")
arguments = parser.parse_args()
here = machine_name()
with reported():
    if here.partition(".")[0] != arguments.host.partition(".")[0]:
        raise UserError(f"{arguments.out}: is to be of {arguments.host}, but this machine is {here}")
    record = measure_machine(
        arguments.device,
        loaders=arguments.loaders,
        steps=arguments.steps,
        seconds=arguments.seconds,
        loader_seconds=arguments.loader_seconds,
        say=print,
    )
    keep(record, arguments.out)
