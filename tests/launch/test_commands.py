"""Command lines of torchrun and srun, and the environment that they get."""

from multicard.launch.commands import Rendezvous, job_environment, training_command
from multicard.launch.slurm import srun_command, srun_environment


def test_ranks_of_one_machine_meet_inside_it() -> None:
    command = training_command("a.b", ["--job", "x"], 4, distributed=True)
    assert {"--nproc-per-node=4", "--nnodes=1", "--rdzv-endpoint=127.0.0.1:0"} <= set(command)
    assert command[-4:] == ["-m", "a.b", "--job", "x"]


def test_ranks_of_several_nodes_meet_at_the_first() -> None:
    command = training_command("a.b", [], 4, distributed=True, rendezvous=Rendezvous(1, 2, "10.0.0.1", 4321))
    assert {
        "--nproc-per-node=4", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=4321",
    } <= set(command)  # fmt: skip


def test_srun_starts_one_task_on_each_node_and_ends_all_when_one_fails() -> None:
    command = srun_command(["program"], nodes=2, cpus=8, gpus=4)
    assert command[0] == "srun"
    assert command[-1] == "program"
    assert {
        "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--gres=gpu:4", "--kill-on-bad-exit=1",
    } <= set(command)  # fmt: skip
    assert not any(part.startswith("--gres") for part in srun_command(["program"], nodes=2, cpus=8, gpus=0))


def test_srun_gets_the_variables_of_slurm_that_it_needs_and_a_job_none() -> None:
    there = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/x", "SLURM_NTASKS": "2", "SLURM_JWT": "secret", "PATH": "/bin"}
    assert srun_environment(there) == {"SLURM_JOB_ID": "7", "SLURM_CONF": "/x"}
    assert job_environment(there) == {"PATH": "/bin"}
