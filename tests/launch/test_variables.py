"""Command lines of torchrun and srun, the environment that they get, and where the ranks then listen."""

import getpass
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import snakemake.shell
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from multicard.core.rendezvous import Rendezvous, torchrun_options
from multicard.launch import start
from multicard.launch.node_ranks import NOT_FOR_SRUN, srun_command
from multicard.launch.variables import LOOPBACK, job_environment, secrets_in, settings, variables_of_ranks
from multicard.launchers import LAUNCHERS
from multicard.programs.script.parameters import ScriptParameters
from multicard.programs.vision.parameters import VisionParameters


def test_torchrun_has_ranks_of_one_machine_meet_inside_it_and_those_of_several_at_the_first() -> None:
    p = VisionParameters(device="cpu", devices=4, strategy="ddp")
    command = start.start_command(p, start.rank_command(p))
    assert {"--nproc-per-node=4", "--nnodes=1", "--rdzv-endpoint=127.0.0.1:0"} <= set(command)
    program = ["-m", "--", "multicard.programs.vision.train", "--device=cpu", "--devices=4", "--strategy=ddp"]
    assert command[-6:] == program
    p = VisionParameters(device="cpu", devices=8, nodes=2, strategy="ddp")
    command = start.start_command(p, start.rank_command(p), Rendezvous(1, 2, "10.0.0.1", 4321))
    expected = {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=4321"}
    assert expected | {"--nproc-per-node=4"} <= set(command)


def test_srun_starts_tasks_on_each_node_and_ends_all_when_one_fails() -> None:
    p = VisionParameters(device="cuda", nodes=2, devices=8, strategy="ddp", threads=1, num_workers=1)
    command = srun_command(p, Path("/job.json"))
    assert (command[0], command[-4:]) == ("srun", ["-m", "multicard.launch.node", "--job", "/job.json"])
    expected = {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--gres=gpu:4"}
    assert expected | {"--kill-on-bad-exit=1"} <= set(command)
    p = ScriptParameters(command=["a.py"], launcher="srun", device="cpu", nodes=2, devices=8, threads=1, loader_cpus=1)
    command = srun_command(p, Path("/job.json"))
    expected = {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--distribution=block", "--cpus-per-task=2"}
    assert expected <= set(command)
    assert not any(part.startswith("--gres") for part in command)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/x", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_NODE": "9", "PATH": "/bin"}


def test_srun_gets_of_slurms_variables_those_that_are_no_options() -> None:
    expected = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/x", "PATH": "/bin"}
    assert job_environment(SLURM, withheld=NOT_FOR_SRUN) == expected
    assert job_environment(SLURM, withheld=LAUNCHERS["srun"].withheld) == expected
    assert job_environment(SLURM, withheld=LAUNCHERS["mpirun"].withheld) == {"PATH": "/bin"}


def test_a_job_gets_the_variables_that_it_would_have_without_multicard() -> None:
    names = (
        "LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX", "NVTE_FUSED_ATTN", "TORCHDYNAMO_DISABLE", "HF_HOME",
        "ACCELERATE_MIXED_PRECISION", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_TMPDIR", "NO_PROXY",
        "SCRATCH", "PYTHONPATH", "PYTHONOPTIMIZE", "WANDB_MODE", "TOKENIZERS_PARALLELISM", "OMPI_MCA_btl",
        "OMPI_ALLOW_RUN_AS_ROOT", "CUDA_MODULE_LOADING", "NCCL_IB_PKEY", "SLINGSHOT_VNIS", "MULTICARD_SHARED_GPU",
        "BASH_FUNC_module%%", "A_NAME_OF_THE_USERS_OWN",
    )  # fmt: skip
    there = dict.fromkeys(names, "a value") | {"http_proxy": "http://proxy.example:3128"}
    assert job_environment(there) == there


def test_who_a_process_is_in_another_job_reaches_no_job_unless_it_is_stated() -> None:
    of_torchrun = (
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PET_NNODES",
    )  # fmt: skip
    of_mpi = ("OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "PMI_RANK", "PMIX_NAMESPACE", "MPI_LOCALRANKID")
    of_slurm = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID")
    of_multicard = ("MULTICARD_JOB", "MULTICARD_OBSERVE", "MULTICARD_WRAPPED")
    there = dict.fromkeys((*of_torchrun, *of_mpi, *of_slurm, *of_multicard), "3")
    assert job_environment(there) == {}
    there["HF_TOKEN"] = "x"  # which passes though it is stated as little
    assert job_environment(there, stated=["MASTER_ADDR", "HF_TOKEN"]) == {"MASTER_ADDR": "3"}


def test_what_looks_like_a_secret_reaches_no_job_whatever_it_begins_with() -> None:
    named = dict.fromkeys(
        ("NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "CUDA_PASSWORD", "NCCL_AUTH", "UCX_SECRET", "AWS_SECRET_ACCESS_KEY",
         "MYSQL_PWD", "SLURM_JWT", "SENTRY_DSN", "SSH_AUTH_SOCK", "GOOGLE_APPLICATION_CREDENTIALS"), "x",
    )  # fmt: skip
    named |= dict.fromkeys(
        ("TOKEN", "API_KEY", "HF_TOKEN", "AUTH", "AUTHORIZATION", "PGPASSWORD", "SSH_PRIVATE_KEY", "GITHUB_PAT",
         "WANDB_API_KEY", "KAGGLE_KEY", "OPENAI_KEY", "COOKIE", "OAUTH2", "API_KEY_1", "OPENAI_API_KEYS", "APIKEY",
         "GHTOKEN", "API_TOKENS", "http_cookie"), "x",
    )  # fmt: skip
    named |= {"CUDA_PKEY": "x"}  # of a login; a partition key of InfiniBand (NCCL_IB_PKEY) is none
    formed = {"NVIDIA_LOGIN": "nvapi-0123456789abcdef", "TORCH_HUB": "hf_0123456789abcdef"}
    formed |= {"TORCH_HEADER": "Bearer hf_0123456789abcdef", "NCCL_HOST": "https://ada:ghp_0123456789abcdef@host"}
    formed |= {
        "NCCL_SOURCE": "git+https://ghp_0123456789abcdef@github.com/a/b",
        "UCX_HUB": "https://hf_0123456789abcdef@host",
        "DATABASE_URL": "postgres://ada:hunter2@host/db",
        "https_proxy": "http://:hunter2@proxy:3128",
        "IDENTITY": "-----BEGIN OPENSSH PRIVATE KEY-----",
    }
    kept = {
        "PATH": "/opt/sk-learn-1.2.3/bin:/bin:/sk-learn-1.2.3/bin",
        "NCCL_ALGO": "Ring",
        "UCX_ROOT": "/sk-learn-1.2.3",
        "REPOSITORY": "ssh://git@github.com:22/a/b",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "PWD": "/here",
        "MAX_TOKENS": "4096",
        "TOKENS_PER_BATCH": "65536",
        "TOKENIZER": "gpt2",
        "KEYPOINTS": "17",
        "DATASET_KEY": "text",
        "GIT_AUTHOR_NAME": "Ada",
        "TORCHINDUCTOR_CACHE_KEY_TAG": "v2",
        "NUM_KEY_VALUE_HEADS": "16",
        "PATTERN": "x",
        "TIMES": "10:20@work",
    }
    assert job_environment(named | formed | kept) == kept
    assert secrets_in(named | formed | kept) == sorted(named | formed)


def test_variables_that_may_change_results_are_recorded_and_places_are_not() -> None:
    changing = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_ALGO": "Ring",
        "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "TORCHDYNAMO_DISABLE": "1", "NVTE_FLASH_ATTN": "0",
        "MALLOC_ARENA_MAX": "2", "ACCELERATE_MIXED_PRECISION": "bf16",
    }  # fmt: skip
    places = {
        "CUDA_HOME": "/opt/cuda", "CUDA_MPS_PIPE_DIRECTORY": "/mps", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/somewhere",
        "LC_ALL": "C", "MKL_NUM_THREADS": "9", "OMP_NUM_THREADS": "9", "PATH": "/bin", "TMPDIR": "/scratch",
        "SLINGSHOT_VNIS": "1310",  # of this step of a job
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
        "TRITON_LIBCUDA_PATH": "/opt/cuda", "USER": "ada", "SCRATCH": "/scratch/ada", "HF_HOME": "/models",
        "SLURM_JOB_ACCOUNT": "physics", "A_NAME_OF_THE_USERS_OWN": "a value",
    }  # fmt: skip
    assert settings(changing | places) == changing
    preloaded = "/opt/lib/libjemalloc.so.2:libtcmalloc.so"
    assert settings({"LD_PRELOAD": preloaded}) == {"LD_PRELOAD": "libjemalloc.so.2 libtcmalloc.so"}
    assert settings({"NVIDIA_API_KEY": "x", "NCCL_HOST": "a/hf_0123456789abcdef"}) == {"NCCL_HOST": "a/removed"}


ONE_NODE = VisionParameters(device="cpu", threads=2)
COMMAND = start.rank_command(ONE_NODE)


def test_a_rank_has_the_threads_of_its_run_and_not_those_of_the_whole_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_by_snakemake = dict.fromkeys(
        re.findall(r"\w+_(?:NUM|MAXIMUM)_THREADS", inspect.getsource(snakemake.shell)), "8"
    )
    assert len(set_by_snakemake) == 6
    for name in set_by_snakemake:
        monkeypatch.setenv(name, "8")
    environment = variables_of_ranks(ONE_NODE, COMMAND, "none", tmp_path)
    assert {environment[name] for name in set_by_snakemake} == {"2"}


def test_temporary_files_of_a_job_are_its_own_and_the_compilers_cache_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = variables_of_ranks(ONE_NODE, COMMAND, "nsys", Path("/own"))
    assert (found["TMPDIR"], found["TORCHINDUCTOR_CACHE_DIR"]) == ("/own", default_cache_dir())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    assert variables_of_ranks(ONE_NODE, COMMAND, "nsys", Path("/own"))["TORCHINDUCTOR_CACHE_DIR"] == "/cache"


def test_a_user_that_the_system_does_not_know_gets_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container that is started for a number of a user. PyTorch's compiler asks as getpass does.
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=KeyError("getpwuid(): uid not found: 12345")))
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    assert variables_of_ranks(ONE_NODE, COMMAND, "none", tmp_path)["USER"] == f"uid-{os.getuid()}"
    monkeypatch.setenv("USER", "ada")
    assert variables_of_ranks(ONE_NODE, COMMAND, "none", tmp_path)["USER"] == "ada"


JOB = """
import json, os, sys
import psutil, torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
sockets = psutil.Process().net_connections("inet")
found = [None] * dist.get_world_size()
mine = {
    "listening": [c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN],
    "peers": [c.raddr.ip for c in sockets if c.status == psutil.CONN_ESTABLISHED],
    "store": os.environ["MASTER_ADDR"],
}
dist.all_gather_object(found, mine)
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_ranks_of_one_machine_listen_and_connect_on_its_loopback_address_alone(tmp_path: Path) -> None:
    """The ranks only: the stores of torchrun itself listen on all addresses, which PyTorch has no option for."""
    (tmp_path / "job_that_listens.py").write_text(JOB)
    options = torchrun_options(2)
    listener = ["-m", "job_that_listens", str(tmp_path / "found.json")]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *listener]
    environment = job_environment() | {"PYTHONPATH": str(tmp_path), "GLOO_SOCKET_IFNAME": LOOPBACK}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=600, capture_output=True)
    for rank in json.loads((tmp_path / "found.json").read_text()):
        assert rank["listening"] and rank["peers"]
        assert {address.removeprefix("::ffff:") for address in rank["listening"] + rank["peers"]} == {"127.0.0.1"}
        assert rank["store"] == "127.0.0.1"
