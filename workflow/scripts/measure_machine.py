"""Measure the limits of this machine: compute, memory, copies, all-reduces.

python workflow/scripts/measure_machine.py --device cpu --out FILE.json
"""

import argparse
import os
from pathlib import Path

from multicard.core.errors import UserError, reported
from multicard.core.files import write_json
from multicard.core.layout import machine_name
from multicard.launch.ending import end_with_process
from multicard.machine.measure import measure_machine

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", choices=["cpu", "cuda"], required=True, help="kind of device")
parser.add_argument("--host", help="name of the machine that is to be measured (default: whichever this is)")
parser.add_argument("--seconds", type=float, default=1.0, help="time of each measurement")
parser.add_argument("--parent", type=int, default=0, help="id of the process that this one ends with")
parser.add_argument("--out", type=Path, required=True, help="record to write")
arguments = parser.parse_args()
end_with_process(arguments.parent)
here = {os.environ.get("SLURMD_NODENAME", machine_name()), machine_name()}  # Slurm may have a name of its own for it
with reported():
    if arguments.host and arguments.host.partition(".")[0] not in {name.partition(".")[0] for name in here}:
        raise UserError(
            f"{arguments.out}: is to be of {arguments.host}, but this machine is {' or '.join(sorted(here))}"
        )
    record = measure_machine(arguments.device, seconds=arguments.seconds, say=print)
    write_json(arguments.out, record)
