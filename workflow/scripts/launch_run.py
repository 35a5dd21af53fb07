"""Run one job under its profiler; whatever becomes of it is written to run.json.

python workflow/scripts/launch_run.py --parameters JSON [--data FOLDER] [--model FOLDER] --out results/runs/RUN
"""

import argparse
import socket
import sys
from pathlib import Path

from multicard.config.load import read_job
from multicard.config.resources import ATTEMPTS
from multicard.config.runs import Run
from multicard.core.errors import UserError, reported
from multicard.core.files import report_unwritable
from multicard.core.layout import PROGRESS
from multicard.core.reasons import Reason
from multicard.launch.ending import end_with_process
from multicard.launch.job import refuse_job, run_job
from multicard.programs.machine import Machine, slurm_job
from multicard.runs.parameters import run_id
from multicard.runs.record import Place
from multicard.workflow.kept_outcomes import keep, made_of, restore
from multicard.workflow.starts import note_start, started_jobs

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "--parameters", required=True, help="workload and parameters that differ from the defaults, as JSON"
)
parser.add_argument("--data", type=Path, help="folder of the prepared data set, for a run that has one")
parser.add_argument("--model", type=Path, help="folder of the prepared language model, for a run that tunes one")
parser.add_argument("--out", type=Path, required=True, help="the run directory")
parser.add_argument("--parent", type=int, default=0, help="id of the process that this one ends with")
parser.add_argument("--time-limit-min", type=float, default=60, help="minutes after which the job is ended")
parser.add_argument("--memory-mb", type=int, help="memory of a node that the job requests, in Slurm's MB")
parser.add_argument("--order", type=Place.model_validate_json, help="its place in the planned order, as JSON")
arguments = parser.parse_args()
end_with_process(arguments.parent)
with reported(), report_unwritable(arguments.out):
    here, job = Machine.here(), slurm_job()
    parameters = read_job(arguments.parameters, arguments.data, arguments.model, None if job else here)
    of = made_of(parameters, arguments.data, arguments.model)
    if restore(arguments.out, of, arguments.memory_mb):
        print(f"{PROGRESS}{run_id(parameters)}: finished before, its outcome is kept", file=sys.stderr)
        sys.exit()
    # On a cluster the run was planned elsewhere, and other runs follow: what its node does not have is an outcome.
    run = Run(run_id(parameters), parameters)
    unsupported = run.unsupported_reason(here)
    # Where Snakemake is started by itself, runs are planned before their data are there.
    lacks_data = run.data_error(arguments.data)
    if unsupported and here.unanswered:
        # It may have been busy for a moment: no outcome, so that the run is tried again.
        raise UserError(f"cannot tell whether {socket.gethostname()} can run this: {here.unanswered}")
    if unsupported or lacks_data:
        refuse_job(parameters, arguments.out, unsupported or lacks_data, arguments.order)
    elif job and len(started_jobs(arguments.out, other_than=job)) >= ATTEMPTS:
        refuse_job(parameters, arguments.out, Reason("job_lost"), arguments.order)
    else:
        if job:
            note_start(arguments.out, job)
        run_job(
            parameters,
            arguments.data,
            arguments.out,
            arguments.time_limit_min * 60,
            arguments.model,
            arguments.order,
        )
    keep(arguments.out, of, arguments.memory_mb)
