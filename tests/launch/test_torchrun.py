"""Where the processes of a distributed job listen."""

import json
import subprocess
from pathlib import Path

import pytest

from multicard.launch.commands import LOOPBACK, job_environment, training_command

pytestmark = pytest.mark.slow

JOB = """
import json, os, sys
import psutil, torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    launcher = psutil.Process(os.getppid())
    sockets = [c for p in (launcher, *launcher.children(recursive=True)) for c in p.net_connections("inet")]
    with open(sys.argv[1], "w") as file:
        json.dump([c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN], file)
dist.barrier()
dist.destroy_process_group()
"""


def test_the_ranks_of_one_machine_listen_on_its_loopback_address_alone(tmp_path: Path) -> None:
    (tmp_path / "job_that_listens.py").write_text(JOB)
    command = training_command("job_that_listens", [str(tmp_path / "found.json")], 2, distributed=True)
    environment = job_environment() | {"PYTHONPATH": str(tmp_path), "GLOO_SOCKET_IFNAME": LOOPBACK}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    listening = json.loads((tmp_path / "found.json").read_text())
    assert listening
    assert set(listening) == {"127.0.0.1"}
