"""Which processes of a script the observer takes for ranks, however they are started, and how ranks end together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.observe import OBSERVE
from observed_scripts import LIMIT_S, Server, environment, left, run, site, write_job

pytestmark = pytest.mark.slow

TRAINING = """
import os
import os
import subprocess
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def train(rank, steps=1000, distributed=True, wrap=nn.parallel.DistributedDataParallel):
    torch.set_num_threads(1)
    if distributed:
        dist.init_process_group("gloo", init_method=METHOD, rank=rank, world_size=2)
    model = wrap(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    sampler = DistributedSampler(data) if distributed else None
    for number in range(steps):
        for x, y in DataLoader(data, batch_size=8, sampler=sampler):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        print("rank", rank, "passed", flush=True)
"""


def script(tmp_path: Path, main: str, defined: str = "") -> str:
    """Script whose ranks meet in a file."""
    method = f"file://{tmp_path}/meeting"
    return f"METHOD = {method!r}\n{TRAINING}\n{defined}\nif __name__ == '__main__':\n    {main}\n"


def of_two(tmp_path: Path, defined: str) -> str:
    """Script that starts two ranks itself, each of which calls the function that is defined."""
    name = defined.removeprefix("def ").partition("(")[0]
    return script(tmp_path, f"torch.multiprocessing.start_processes({name}, nprocs=2, start_method='fork')", defined)


def test_ranks_that_a_script_starts_itself_end_together(server: Server, tmp_path: Path) -> None:
    text = of_two(tmp_path, "def rank(number):\n    train(number)\n")
    found = server.run(tmp_path, text, devices=2, profiler="kineto")
    assert found.exit_code == 0, found.output
    assert [(rank["rank"], rank["outcome"]) for rank in found.ranks] == [(0, "completed"), (1, "completed")]
    for rank, steps in enumerate(found.steps):
        assert {(step["rank"], step["samples"]) for step in steps} == {(str(rank), "8")}
        assert [step["window"] for step in steps] == ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
    assert all(rank["observed"]["loaders"][0]["sampler"] == "DistributedSampler" for rank in found.ranks)
    assert all(rank["observed"]["loaders"][0]["distinct"] is True for rank in found.ranks)
    assert {file.name for file in (tmp_path / "scratch").glob("*.gz")} == {"rank0.json.gz", "rank1.json.gz"}
    assert found.ranks[0]["pid"] != found.ranks[1]["pid"]
    assert found.ranks[0]["profiled_window"] == found.ranks[1]["profiled_window"]
    assert [rank["observed"]["exchanged"] for rank in found.ranks] == [True, True]  # by DistributedDataParallel


def test_the_error_of_a_rank_that_a_script_starts_itself_is_recorded(server: Server, tmp_path: Path) -> None:
    failing = "def fail(rank):\n    train(rank, steps=1)\n    raise ValueError(f'of rank {rank}')\n"
    found = server.run(tmp_path, of_two(tmp_path, failing), devices=2, measured_steps=30)
    assert found.exit_code == 1
    assert "ValueError: of rank" in found.ranks[0]["reason"]["message"]


def test_a_rank_that_ends_before_the_others_is_named(server: Server, tmp_path: Path) -> None:
    """Ranks without collectives, one of which makes fewer steps than the windows need; the other has enough."""
    unequal = "def unequal(rank):\n    train(rank, steps=1000 if rank == 0 else 1, wrap=lambda model: model)\n"
    found = server.run(tmp_path, of_two(tmp_path, unequal), devices=2, measured_steps=5)
    assert [rank["outcome"] for rank in found.ranks] == ["completed", "failed"], found.output
    assert len(found.of("measured", 0)) == 5 and found.ranks[0]["trace_problem"]
    few = found.ranks[1]["reason"]
    assert (few["code"], few["steps"]) == ("too_few_steps", 4)  # 64 samples in batches of 8 for two ranks


def test_of_two_processes_that_take_themselves_for_one_rank_the_first_is_recorded(
    server: Server, tmp_path: Path
) -> None:
    alone = "def alone(rank):\n    train(rank, steps=9, distributed=False, wrap=lambda model: model)\n"
    found = server.run(tmp_path, of_two(tmp_path, alone), devices=2)
    assert found.exit_code == 0, found.output
    assert [rank["outcome"] for rank in found.ranks] == ["completed"]
    assert sum(process["steps"] for process in found.processes) == 2


def test_a_script_that_fails_without_pytorch_names_the_rank_that_the_launcher_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    [process] = run(tmp_path, "open('no such file')").processes
    assert (process["rank"], process["error"]["reason"]["rank"]) == (2, 2)


def test_a_program_that_a_rank_starts_does_not_fail_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    started = "import torch; raise ValueError(1)"
    text = f"""
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "{started}"])
    import torch
    raise ValueError(2)
    """
    found = run(tmp_path, text)
    assert (found.exit_code, found.rank["reason"]["message"]) == (1, "ValueError: 2")
    errors = {each["program"]: each["error"]["reason"]["message"] for each in found.processes}
    assert errors == {"-c": "ValueError: 1", str(tmp_path / "script.py"): "ValueError: 2"}


def test_a_script_without_pytorch_and_its_own_sitecustomize_run_as_ever(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = 'here'\n")
    found = run(tmp_path, "print(of_the_user)\nimport sitecustomize\nprint(sitecustomize.__file__)\n", before=own)
    assert found.output.splitlines() == ["here", str(own / "sitecustomize.py")]
    [process] = found.processes
    assert process["torch"] is None
    assert process["python"] == ".".join(map(str, sys.version_info[:3]))
    assert process["program"] == str(tmp_path / "script.py")
    assert found.ranks == []


def test_the_error_of_a_script_that_never_imports_pytorch_is_kept(tmp_path: Path) -> None:
    """Also where the script, not the program that it asks, fails."""
    asks = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import no_such_package'])\n"
    found = run(tmp_path, f"{asks}open('no such\\nfile')\n")
    errors = {process["program"]: process["error"]["reason"]["message"] for process in found.processes}
    assert errors == {
        "-c": "ModuleNotFoundError: No module named 'no_such_package'",
        str(tmp_path / "script.py"): "FileNotFoundError: [Errno 2] No such file or directory: 'no such\\nfile'",
    }


def test_a_script_that_asks_for_pytorch_before_it_imports_it_is_observed(tmp_path: Path) -> None:
    """As `import datasets` and transformers do."""
    asks = "import importlib.util\nassert importlib.util.find_spec('torch') is not None\n"
    found = run(tmp_path, asks + script(tmp_path, "train(0, distributed=False, wrap=lambda model: model)"))
    assert found.exit_code == 0, found.output
    assert found.rank["outcome"] == "completed"


# How two ranks may share their work, by what the ranks then do to their model and after each backward pass.
EXCHANGES = {
    "nothing but a process group": ("train(RANK, wrap=lambda model: model)", False),
    "a process group of each rank alone": ("train(RANK, wrap=alone)", False),
    "collectives of a group": ("train(RANK, wrap=in_group)", True),
    "messages between two": ("train(RANK, wrap=messages)", True),
    "another library": ("train(RANK, distributed=False, wrap=by_mpi)", None),
}
WAYS = """
def hooked(act):
    def wrap(model):
        model.weight.register_post_accumulate_grad_hook(lambda weight: (act(weight), None)[1])
        return model
    return wrap

def alone(model):
    groups = [dist.new_group([rank]) for rank in range(2)]
    return hooked(lambda weight: dist.all_reduce(weight.grad, group=groups[dist.get_rank()]))(model)

def in_group(model):
    group = dist.new_group([0, 1])
    return hooked(lambda weight: dist.all_reduce(weight.grad, group=group))(model)

def by_mpi(model):
    sys.modules["mpi4py"] = sys
    return model

def messages(model):
    def act(weight):
        work = [dist.isend(weight.grad, 1)] if dist.get_rank() == 0 else [dist.irecv(weight.grad, 0)]
        [each.wait() for each in work]
    return hooked(act)(model)

def start(run):
    for rank in range(2):
        if os.fork() == 0:
            os.environ["RANK"] = str(rank)
            run(rank)
    [os.wait() for _ in range(2)]
    os._exit(0)
"""


@pytest.mark.parametrize(("main", "exchanged"), EXCHANGES.values(), ids=EXCHANGES)
def test_ranks_know_whether_they_exchanged_anything_in_the_measured_steps(
    main: str, exchanged: bool | None, server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, script(tmp_path, f"start(lambda RANK: {main})", WAYS), devices=2)
    assert [rank["outcome"] for rank in found.ranks] == 2 * ["completed"], found.output
    assert [rank["observed"]["exchanged"] for rank in found.ranks] == 2 * [exchanged]


def test_what_a_process_noted_is_kept_when_it_notes_more_and_is_not_its_child_s(tmp_path: Path) -> None:
    script = """
    import os, torch
    weight = torch.nn.Parameter(torch.ones(2))
    weight.sum().backward()
    if os.fork() == 0:
        raise ValueError("of the child")
    os.wait()
    raise ValueError("of the parent")
    """
    found = run(tmp_path, script, devices=2)
    noted = {each["error"]["reason"]["message"]: each.get("backward") for each in found.processes}
    assert noted == {"ValueError: of the child": None, "ValueError: of the parent": True}


# Leaves in torch.distributed what a PyTorch has that was built without it, then observes this process.
WITHOUT_DISTRIBUTED = """
import os, sys, torch, torch._dynamo
import torch.distributed as dist
for name in set(dir(dist)) - {"is_available", "ProcessGroup"}:
    if not name.startswith(("_", "Dist")):
        delattr(dist, name)
dist.is_available = lambda: False
sys.modules["torch.distributed.distributed_c10d"] = None
from multicard.observe import hooks
hooks.install(lambda **facts: None, os.environ["MULTICARD_OBSERVE"])
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight])
for step in range(1000):
    if step == STEPS:
        raise ValueError("no more")
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "ranks", "reasons"), [(999, 1, [None]), (0, 1, ["error"]), (0, 2, [])])
def test_a_pytorch_without_distributed_trains_and_reports_errors(
    steps: int, ranks: int, reasons: list[str | None], tmp_path: Path
) -> None:
    script = WITHOUT_DISTRIBUTED.replace("STEPS", str(steps))
    job, command = write_job(tmp_path, script, devices=ranks)
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | {OBSERVE: str(job)}, text=True, stderr=subprocess.PIPE
    )
    found = left(tmp_path, done.returncode, done.stderr)
    assert "Traceback" not in found.output.partition("ValueError: no more")[2]
    assert [rank["reason"] and rank["reason"]["code"] for rank in found.ranks] == reasons, found.output


@pytest.mark.parametrize(
    "reads",
    ["sys.stdin.read()", "sys.stdin.readline()", "list(sys.stdin)", "input()"],
)
def test_a_script_that_reads_its_empty_input_is_told_so_in_a_line(reads: str, tmp_path: Path) -> None:
    job, command = write_job(
        tmp_path, f"import contextlib, sys\nwith contextlib.suppress(EOFError):\n    {reads}\n" * 2
    )
    own = {"env": environment(site(tmp_path / "observer"), job), "cwd": tmp_path, "text": True, "timeout": LIMIT_S}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    given = subprocess.run([sys.executable, *command], input="a\nb\n", **streams, **own)
    assert (given.returncode, given.stdout) == (0, "")
    empty = subprocess.run([sys.executable, *command], stdin=subprocess.DEVNULL, **streams, **own)
    assert empty.returncode == 0
    [line] = empty.stdout.splitlines()
    assert line.startswith("multicard:   the script reads its standard input, which is empty: ")
