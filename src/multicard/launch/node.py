"""One node's part of a job on several: `python -m multicard.launch.node --job FILE`, which srun starts once on each.

Where a script asks for it, srun starts it once for each rank; then the part is that rank alone.
What the ranks of the node write stays on the node until they have ended; then it is copied to the scratch folder of the
run, which all nodes see.
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
from multicard.launch.interruptible import interruptible, undisturbed
from multicard.launch.node_folder import node_folder
from multicard.launch.node_ranks import run_ranks
from multicard.launch.several_nodes import OtherTasks
from multicard.profilers import PROFILERS, Profiler
from multicard.runs.parameters import JobParameters


def run_node(job: dict[str, Any], p: JobParameters, rendezvous: Rendezvous, task: int) -> int:
    """Run the ranks of this task of Slurm and copy what they leave; return this program's exit code.

    It is 0 when all of them completed, however a profiler exited after them, and when they were ended at the time limit
    or because another task had failed. Any other ends the job on all nodes.
    """
    shared, tasks = Path(job["scratch"]), WORKLOADS[p.workload].launching(p).tasks_per_node
    count = p.ranks_per_node // tasks
    ranks = range(task * count, (task + 1) * count)
    others = OtherTasks(shared, task, p.nodes * tasks)
    with node_folder() as scratch:
        write_json(scratch / JOB, job | {"scratch": str(scratch)})
        ended = None
        try:
            with interruptible(), others.watched():
                _, ended = run_ranks(
                    p, job["profiler"], scratch, scratch / LOG, job["time_limit_s"],
                    lambda line: print(line, flush=True), ranks, rendezvous,
                )  # fmt: skip
        except SystemExit:
            if not others.have_failed:  # but Slurm or srun has told it to end
                raise
        finally:
            _copy_results(scratch, shared, task, rendezvous.node, PROFILERS[job["profiler"]], ranks)
            records = [scratch / rank_file("rank.json", rank) for rank in ranks]
            have_completed = all(path.exists() and read_json(path)["outcome"] == "completed" for path in records)
            timed_out = ended is not None and ended.timed_out
            failed = ended is not None and not have_completed and not timed_out
            others.report(failed, timed_out)
    if not failed:
        return 0
    others.wait()
    return ended.exit_code if ended.exit_code > 0 else 128 - ended.exit_code if ended.exit_code else 1


def _copy_results(scratch: Path, shared: Path, task: int, node: int, profiler: Profiler, ranks: range) -> None:
    """Copy what the ranks and the profiler left; each file appears complete or not at all."""
    names = {path.name: path.name for path in scratch.glob("*.rank[0-9]*")}
    # Two nodes may have processes of the same number.
    names |= {path.name: f"{path.name}-{task}" for path in scratch.glob(f"{PROCESS}.*[0-9]")}
    names |= {name: node_file(name, node) for name in (CPU_SAMPLES, GPU_SAMPLES)}
    if profiler.rank_file:
        names |= {(name := profiler.rank_file.format(rank=rank)): name for rank in ranks}
    if profiler.node_file:
        names[profiler.node_file] = node_file(profiler.node_file, task)
    for name, shared_name in names.items():
        if (scratch / name).exists():
            with atomic_write(shared / shared_name) as temporary:
                shutil.copyfile(scratch / name, temporary)


def end_orphaned_job(address: str, port: int) -> None:
    """End the job of Slurm that this program belongs to if nobody waits for it any more.

    The job outlives the loss of a node, so that the launcher on the first one can write down what happened. When that
    is the node which is lost, Slurm would let the others wait until the job's time limit.
    """
    try:
        socket.create_connection((address, port), timeout=30).close()
    except OSError:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False, timeout=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_json(parser.parse_args().job)
    p = parameters_of(job["parameters"])
    # srun gives its tasks the number of theirs, and the address of the node that it was started on, which is the first.
    task, first = int(os.environ["SLURM_PROCID"]), os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    node = task // WORKLOADS[p.workload].launching(p).tasks_per_node
    rendezvous = Rendezvous(node, p.nodes, first, job["port"])
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    write_json(Path(job["scratch"]) / node_file(NODE, rendezvous.node), {"name": name})
    with undisturbed():  # its folder on the node is removed, and what the ranks left is copied
        code = run_node(job, p, rendezvous, task)
    if code != 0 and rendezvous.node > 0:
        end_orphaned_job(rendezvous.address, int(os.environ["SLURM_SRUN_COMM_PORT"]))
    sys.exit(code)
