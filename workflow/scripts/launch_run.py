"""Run one job under its profiler; whatever becomes of it is written to run.json."""

import argparse
import json
import socket
from pathlib import Path

from multicard.core.errors import UserError, reported
from multicard.experiment.load import read_job
from multicard.experiment.machine import Machine, slurm_job
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import Run
from multicard.launch.job import CHECKPOINT_AFTER_S, refuse_job, run_job

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--parameters", required=True, help="workload and parameters that differ from the defaults, as JSON"
)
parser.add_argument("--data", type=Path, help="folder of the prepared data set, for a run that has one")
parser.add_argument("--model", type=Path, help="folder of the prepared language model, for a run that tunes one")
parser.add_argument("--out", type=Path, required=True, help="the run directory")
parser.add_argument("--time-limit-min", type=float, default=60, help="minutes after which the job is ended")
parser.add_argument(
    "--checkpoint-after-s",
    type=float,
    default=CHECKPOINT_AFTER_S,
    help="least seconds between two checkpoints, and before the first; 0: one after every epoch",
)
parser.add_argument("--order", type=json.loads, help="place of the run in the planned order, as JSON, for run.json")
arguments = parser.parse_args()
with reported():
    here = Machine.here()
    parameters = read_job(arguments.parameters, arguments.data, arguments.model, None if slurm_job() else here)
    # On a cluster the run was planned elsewhere, and other runs follow: what its node does not have is an outcome.
    unsupported = Run(run_id(parameters), parameters).unsupported_reason(here)
    if unsupported and here.unanswered:
        # It may have been busy for a moment: no outcome, so that the run is tried again.
        raise UserError(f"cannot tell whether {socket.gethostname()} can run this: {here.unanswered}")
    if unsupported:
        refuse_job(parameters, arguments.out, unsupported, arguments.order)
    else:
        run_job(
            parameters,
            arguments.data,
            arguments.out,
            arguments.time_limit_min * 60,
            arguments.model,
            arguments.checkpoint_after_s,
            arguments.order,
        )
