"""One task of a job on several nodes: `python -m multicard.launch.node --job FILE`, started by srun.

srun starts one task on each node, which runs all ranks of the node. For a script that wants its ranks to be started by
srun, it starts one task for each rank instead. The ranks of a task write to a folder on the node. When they have ended,
the task copies their files to the scratch folder of the run, which all nodes see.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from multicard.core.files import atomic_write, read_json, write_json
from multicard.core.job_file import JobFile, read_job
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES, LOG, NODE, PROCESS, node_file, rank_file
from multicard.core.rendezvous import Rendezvous
from multicard.launch.ending import deferred_signals, end_process
from multicard.launch.node_folder import node_folder
from multicard.launch.node_ranks import run_ranks
from multicard.launch.several_nodes import OtherTasks
from multicard.launch.start import tasks_per_node
from multicard.launch.supervise import Ended
from multicard.profilers import PROFILERS, Profiler
from multicard.programs import parameters_of
from multicard.runs.parameters import JobParameters


def run_node(job: JobFile, p: JobParameters, rendezvous: Rendezvous, task: int) -> int:
    """Run the ranks of this task of Slurm, copy their files, and return the exit code for this program.

    The code is 0 if all ranks of the task completed, whatever the exit code of a profiler. It is also 0 if the ranks
    were ended at the time limit, or because another task had failed or reached it. Otherwise it is not 0, and makes
    srun end the job on all nodes.

    `job`: content of job.json. `task`: number of this task in the job, from 0.
    """
    shared = job.scratch
    tasks_of_node = tasks_per_node(p)
    ranks_per_task = p.ranks_per_node // tasks_of_node
    ranks = range(task * ranks_per_task, (task + 1) * ranks_per_task)
    other_tasks = OtherTasks(shared, task, p.nodes * tasks_of_node)
    # Signals are deferred, so that none of them prevents the files from being copied and the folder from being removed.
    with deferred_signals() as signals:
        with node_folder() as scratch:
            replace(job, scratch=scratch).write()
            ended = None
            try:
                with signals.delivered(end_process), other_tasks.watched():
                    _, ended = run_ranks(
                        p, job.profiler, scratch, scratch / LOG, job.time_limit_s, _print, ranks, rendezvous
                    )
            except SystemExit:
                # `watched` sends SIGTERM when another task has failed. Any other signal is from Slurm or srun, and ends
                # this program.
                if not other_tasks.have_failed:
                    raise
            finally:
                _copy_results(scratch, shared, task, rendezvous.node, PROFILERS[job.profiler], ranks)
                timed_out = ended is not None and ended.timed_out
                failed = ended is not None and not timed_out and not _have_completed(scratch, ranks)
                # The other tasks read this report. If this task failed or timed out, they end their ranks. The launcher
                # reads it, too: the job has timed out if any of its tasks has.
                other_tasks.report(failed, timed_out)
        if ended is None or not failed:
            return 0
        # Once this task exits with an error, srun kills the other tasks. So it waits until they have copied their
        # files. The block above has removed this task's own folder already, since srun may kill this task as well.
        other_tasks.wait()
        return _exit_code(ended)


def _print(line: str) -> None:
    print(line, flush=True)


def _have_completed(scratch: Path, ranks: range) -> bool:
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]
    return all(record.exists() and read_json(record)["outcome"] == "completed" for record in records)


def _exit_code(ended: Ended) -> int:
    """Return the exit code of a task whose ranks failed.

    It is that of the task's command, or 128 + N if signal N ended the command, or 1 if the command exited with 0.
    """
    if ended.exit_code < 0:
        return 128 - ended.exit_code
    return ended.exit_code or 1


def _copy_results(scratch: Path, shared: Path, task: int, node: int, profiler: Profiler, ranks: range) -> None:
    """Copy the files of the ranks, the samplers and the profiler from `scratch` to `shared`.

    Each copy appears complete or not at all. Files that two tasks or nodes have with the same name get a new name.
    """
    shared_names = {path.name: path.name for path in scratch.glob("*.rank[0-9]*")}
    for path in scratch.glob(f"{PROCESS}.*[0-9]"):
        # The name ends in a process id, and processes of two nodes may have the same id.
        shared_names[path.name] = f"{path.name}-{task}"
    for name in (CPU_SAMPLES, GPU_SAMPLES):
        shared_names[name] = node_file(name, node)
    if profiler.rank_file:
        for rank in ranks:
            name = profiler.rank_file.format(rank=rank)
            shared_names[name] = name
    if profiler.node_file:
        shared_names[profiler.node_file] = node_file(profiler.node_file, task)
    for name, shared_name in shared_names.items():
        if (scratch / name).exists():
            with atomic_write(shared / shared_name) as temporary:
                shutil.copyfile(scratch / name, temporary)


def end_orphaned_job(address: str, port: int) -> None:
    """Cancel the Slurm job that this program belongs to, if srun on the first node is gone.

    Slurm keeps the job when it loses a node, so that the launcher on the first node can still write the run's record.
    But if the first node is lost, no launcher is left, and the other nodes would be held until the job's time limit.

    `address`, `port`: where the srun that started this program listens.
    """
    try:
        socket.create_connection((address, port), timeout=30).close()
    except OSError:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False, timeout=60)


def main() -> int:
    """Run the task of a job that srun started this process for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_job(parser.parse_args().job)
    p = parameters_of(job.parameters)
    # srun sets these variables: the number of this task, and the address of the node that srun runs on. The launcher
    # starts srun on the first node of the job.
    task = int(os.environ["SLURM_PROCID"])
    first_node = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    node = task // tasks_per_node(p)
    rendezvous = Rendezvous(node, p.nodes, first_node, job.port)
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    write_json(job.scratch / node_file(NODE, node), {"name": name})
    code = run_node(job, p, rendezvous, task)
    if code != 0 and node > 0:
        end_orphaned_job(first_node, int(os.environ["SLURM_SRUN_COMM_PORT"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
