"""Where the processes of a distributed job listen and connect to."""

import json
import subprocess
from pathlib import Path

import pytest

from multicard.launch.node_ranks import training_command
from multicard.launch.variables import LOOPBACK, job_environment

pytestmark = pytest.mark.slow

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


def test_the_ranks_of_one_machine_listen_and_connect_on_its_loopback_address_alone(tmp_path: Path) -> None:
    """The ranks only: the stores of torchrun itself listen on all addresses, which PyTorch has no option for."""
    (tmp_path / "job_that_listens.py").write_text(JOB)
    command = training_command("job_that_listens", [str(tmp_path / "found.json")], 2)
    environment = job_environment() | {"PYTHONPATH": str(tmp_path), "GLOO_SOCKET_IFNAME": LOOPBACK}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=600, capture_output=True)
    for rank in json.loads((tmp_path / "found.json").read_text()):
        assert rank["listening"] and rank["peers"]
        assert {address.removeprefix("::ffff:") for address in rank["listening"] + rank["peers"]} == {"127.0.0.1"}
        assert rank["store"] == "127.0.0.1"
