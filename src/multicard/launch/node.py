"""One node's part of a job on several: `python -m multicard.launch.node --job FILE`, which srun starts once on each.

Where a script asks for it, srun starts it once for each rank; then the part is that rank alone.
The ranks of the node write to a folder on the node; when they have ended, their files are copied to the scratch folder
of the run, which all nodes see.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from multicard.core.files import atomic_write, read_json, write_json
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES, JOB, LOG, NODE, PROCESS, node_file, rank_file
from multicard.core.rendezvous import Rendezvous
from multicard.experiment.workload import WORKLOADS, parameters_of
from multicard.launch.ending import deferred_signals, end_process
from multicard.launch.node_folder import node_folder
from multicard.launch.node_ranks import run_ranks
from multicard.launch.several_nodes import OtherTasks
from multicard.launch.supervise import Ended
from multicard.profilers import PROFILERS, Profiler
from multicard.runs.parameters import JobParameters


def run_node(job: dict[str, Any], p: JobParameters, rendezvous: Rendezvous, task: int) -> int:
    """Run the ranks of this task of Slurm and copy their files; return this program's exit code.

    It is 0 when all of them completed, however a profiler exited after them, and when they were ended at the time limit
    or because another task had failed. Any other code makes srun end the job on all nodes.

    `job`: content of job.json.
    """
    shared = Path(job["scratch"])
    tasks_per_node = WORKLOADS[p.workload].launching(p).tasks_per_node
    ranks_per_task = p.ranks_per_node // tasks_per_node
    ranks = range(task * ranks_per_task, (task + 1) * ranks_per_task)
    other_tasks = OtherTasks(shared, task, p.nodes * tasks_per_node)
    # A signal must not keep the files from being copied, nor the folder on the node from being removed.
    with deferred_signals() as signals:
        with node_folder() as scratch:
            write_json(scratch / JOB, job | {"scratch": str(scratch)})
            ended = None
            try:
                with signals.delivered(end_process), other_tasks.watched():
                    _, ended = run_ranks(
                        p, job["profiler"], scratch, scratch / LOG, job["time_limit_s"], _print, ranks, rendezvous
                    )
            except SystemExit:
                if not other_tasks.have_failed:  # then it is Slurm or srun that ends this task
                    raise
            finally:
                _copy_results(scratch, shared, task, rendezvous.node, PROFILERS[job["profiler"]], ranks)
                timed_out = ended is not None and ended.timed_out
                failed = ended is not None and not timed_out and not _have_completed(scratch, ranks)
                other_tasks.report(failed, timed_out)
        if ended is None or not failed:
            return 0
        # The folder is gone by now: once the others have ended, srun may kill this task.
        other_tasks.wait()
        return _exit_code(ended)


def _print(line: str) -> None:
    print(line, flush=True)


def _have_completed(scratch: Path, ranks: range) -> bool:
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]
    return all(record.exists() and read_json(record)["outcome"] == "completed" for record in records)


def _exit_code(ended: Ended) -> int:
    """Return the exit code of a task whose ranks failed: never 0, and for a signal as a shell has it."""
    if ended.exit_code < 0:
        return 128 - ended.exit_code
    return ended.exit_code or 1


def _copy_results(scratch: Path, shared: Path, task: int, node: int, profiler: Profiler, ranks: range) -> None:
    """Copy the files of the ranks and of the profiler; each appears complete or not at all."""
    shared_names = {path.name: path.name for path in scratch.glob("*.rank[0-9]*")}
    for path in scratch.glob(f"{PROCESS}.*[0-9]"):
        # Two nodes may have processes of the same number.
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
    """End the job of Slurm that this program belongs to if no process waits for it any more.

    The job outlives the loss of a node, so that the launcher on the first one can write down what happened. When that
    is the node which is lost, Slurm would let the others wait until the job's time limit.

    `address`, `port`: where the srun that started this program listens.
    """
    try:
        socket.create_connection((address, port), timeout=30).close()
    except OSError:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False, timeout=60)


def main() -> int:
    """Run the part of a job that srun has started this process for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_json(parser.parse_args().job)
    p = parameters_of(job["parameters"])
    # srun gives its tasks their number, and the address of the node that it was started on, which is the first.
    task = int(os.environ["SLURM_PROCID"])
    first_node = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    node = task // WORKLOADS[p.workload].launching(p).tasks_per_node
    rendezvous = Rendezvous(node, p.nodes, first_node, job["port"])
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    write_json(Path(job["scratch"]) / node_file(NODE, node), {"name": name})
    code = run_node(job, p, rendezvous, task)
    if code != 0 and node > 0:
        end_orphaned_job(first_node, int(os.environ["SLURM_SRUN_COMM_PORT"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
