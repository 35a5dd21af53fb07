"""What each launcher is told, by its own manual; and what it refuses."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ran, refusal
from machine.faked_programs import put
from multicard.cli import main
from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.system import ask
from multicard.launch import start
from multicard.launchers import LAUNCHERS
from multicard.observe import PACKAGE, observer_variables
from multicard.programs.script import program as script_program
from multicard.programs.script.parameters import ScriptParameters

SCRIPT = ["train.py", "--lr", "0.1"]
SECOND = Rendezvous(1, 2, "10.0.0.1", 4321)


def refused(p: ScriptParameters) -> Reason | None:
    return start.refusal(p, start.rank_command(p))


def environment_of(p: ScriptParameters) -> dict[str, str]:
    return start.environment(p, start.rank_command(p))


def secret_in(p: ScriptParameters) -> str | None:
    return script_program.SCRIPT.checks.config_error(p, {})


def parameters(**changes: Any) -> ScriptParameters:
    return ScriptParameters(**({"command": SCRIPT, "device": "cpu", "devices": 2} | changes))


def started(rendezvous: Rendezvous | None = None, arguments: list[str] = SCRIPT, **changes: Any) -> list[str]:
    p = parameters(**changes)
    return LAUNCHERS[p.launched_by].command("/env/bin/python", arguments, p, rendezvous)


def test_auto_is_the_interpreter_on_one_device_and_torchrun_on_several() -> None:
    assert started(devices=1) == ["/env/bin/python", *SCRIPT]
    command = started()
    assert command[:3] == ["/env/bin/python", "-m", "torch.distributed.run"]
    assert {"--nproc-per-node=2", "--nnodes=1", "--rdzv-endpoint=127.0.0.1:0"} <= set(command)
    assert command[-4:] == ["--", *SCRIPT]


@pytest.mark.slow
def test_arguments_that_abbreviate_options_of_torchrun_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    own = ["--run", "1", "--log=x", "--max", "--node", "2", "--rdzv", "-m", "--no", "--", "--standalone", "-h"]
    p = parameters(devices=1, launcher="torchrun")
    command = LAUNCHERS["torchrun"].command(sys.executable, ["-m", "shown", *own], p, None)
    done = ran(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == own


# By their manuals. Accelerate starts ranks by torchrun where --multi_gpu is stated.
@pytest.mark.parametrize(
    ("changes", "rendezvous", "options"),
    [
        (
            {"launcher": "torchrun", "devices": 8, "nodes": 2},
            SECOND,
            "--nproc-per-node=4 --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=4321",
        ),
        ({"launcher": "accelerate", "devices": 1}, None, "--num_processes=1 --num_machines=1 --cpu"),
        ({"launcher": "accelerate"}, None, "--num_processes=2 --num_machines=1 --multi_gpu"),
        (
            {"launcher": "accelerate", "devices": 8, "nodes": 2},
            SECOND,
            "--num_processes=8 --num_machines=2 --machine_rank=1 --main_process_ip=10.0.0.1 --main_process_port=4321",
        ),
        (
            {"launcher": "srun", "device": "cuda", "threads": 2, "loader_cpus": 3},
            None,
            "--overlap --nodes=1 --ntasks=2 --cpus-per-task=5 --gres=gpu:2 --kill-on-bad-exit=1",
        ),
        ({"launcher": "deepspeed"}, None, "--num_gpus=2"),
        ({"launcher": "mpirun"}, None, "mpirun -n 2 /env/bin/python"),
    ],
)
def test_a_launcher_gets_the_numbers_of_processes_and_where_they_meet(
    changes: dict[str, Any], rendezvous: Rendezvous | None, options: str
) -> None:
    command = started(rendezvous, **changes)
    assert set(options.split()) <= set(command)
    assert command[-3:] == SCRIPT


def test_options_that_a_launcher_takes_only_for_gpus_or_several_processes_are_left_out() -> None:
    assert "--multi_gpu" not in started(launcher="accelerate", devices=1)
    assert not any(part.startswith("--gres") for part in started(launcher="srun"))
    assert any(re.fullmatch(r"--master_port=[1-9]\d*", part) for part in started(launcher="deepspeed"))
    # Accelerate 1.1 hands port 0 to the ranks, which then wait forever.
    assert any(re.fullmatch(r"--main_process_port=[1-9]\d*", part) for part in started(launcher="accelerate"))
    assert started(launcher="mpirun") == ["mpirun", "-n", "2", "/env/bin/python", *SCRIPT]  # what every MPI takes
    assert LAUNCHERS["accelerate"].package == "accelerate"


def test_a_module_is_started_as_one_and_another_program_as_it_is() -> None:
    module = ["-m", "package.train", "--lr", "0.1"]
    assert started(arguments=module, devices=1) == ["/env/bin/python", *module]
    assert started(arguments=module)[-5:] == ["-m", "--", *module[1:]]
    command = started(arguments=module, launcher="deepspeed")
    assert command[command.index("--module") + 1 :] == module[1:]
    tune = ["tune", "run", "--nproc_per_node", "2", "full_finetune_distributed"]
    assert started(arguments=tune, launcher="command") == tune
    assert started(launcher="command") == ["/env/bin/python", *SCRIPT]


def test_on_several_nodes_each_task_of_slurm_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    p = parameters(launcher="srun", devices=8, nodes=2)
    assert LAUNCHERS["srun"].tasks_per_node(p) == 4
    assert started(SECOND, launcher="srun", devices=8, nodes=2) == ["/env/bin/python", *SCRIPT]
    for name, value in {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_AUTH_KEY": "x", "OTHER": "y"}.items():
        monkeypatch.setenv(name, value)
    told = LAUNCHERS["srun"].environment(SECOND)
    assert told.items() >= {"SLURM_PROCID": "5", "SLURM_LOCALID": "1"}.items()
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "4321")
    assert not {"SLURM_AUTH_KEY", "OTHER"} & told.keys()
    # Of a step on one node Slurm sets them, whatever the job around it has.
    assert "SLURM_PROCID" not in LAUNCHERS["srun"].environment()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"launcher": "python"}, "launcher: python starts one process, and on CPUs devices: 2 are as many"),
        ({"launcher": "python", "device": "cuda", "nodes": 2}, "launcher: python starts the ranks of one node"),
        *(
            ({"launcher": name, "nodes": 2}, f"launcher: {name} starts the ranks of one node, and nodes is 2")
            for name in ("command", "deepspeed", "mpirun")
        ),
    ],
)
def test_what_a_launcher_cannot_start_is_refused(changes: dict[str, Any], reason: str) -> None:
    p = parameters(**changes)
    assert LAUNCHERS[p.launched_by].unsupported_reason(p).startswith(reason)
    of_several = ("torchrun", "accelerate", "srun")
    assert all(LAUNCHERS[name].unsupported_reason(parameters(nodes=2)) is None for name in of_several)


@pytest.mark.parametrize(
    ("changes", "selected", "seen"),
    [
        ({"device": "cuda", "devices": 4, "nodes": 2}, None, "0,1"),
        ({"device": "cuda"}, "3,1,0", "3,1"),
        ({"device": "cuda", "devices": 1}, "GPU-e0,GPU-e1", "GPU-e0"),
        ({"device": "cuda"}, "1", "1"),  # too few, which others refuse
        ({"device": "cpu"}, "0,1", ""),
    ],
)
def test_a_run_sees_as_many_gpus_as_it_has_devices(
    changes: dict[str, Any], selected: str | None, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if selected is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", selected)
    assert environment_of(parameters(**changes))["CUDA_VISIBLE_DEVICES"] == seen


def test_ranks_of_launchers_that_do_not_know_pytorch_are_told_where_to_meet() -> None:
    for launcher in ("srun", "mpirun"):
        found = LAUNCHERS[launcher].environment()
        assert found["MASTER_ADDR"] == "127.0.0.1"
        assert 1024 <= int(found["MASTER_PORT"]) < 65536


@pytest.mark.parametrize(
    ("visible", "device", "option"),
    [("4,5,6", "cuda", "--include=localhost:4,5"), ("", "cuda", "--num_gpus=2"), ("4,5,6", "cpu", "--num_gpus=2")],
)
def test_deepspeed_is_told_which_gpus_are_visible(
    visible: str, device: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With --num_gpus it ignores CUDA_VISIBLE_DEVICES, as it says (deepspeed/launcher/runner.py).
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    command = started(launcher="deepspeed", device=device)
    assert [part for part in command if part.startswith(("--include", "--num_gpus"))] == [option]


def test_srun_outside_of_a_job_is_refused() -> None:
    said = LAUNCHERS["srun"].refusal({})
    assert said is not None and said.startswith("launcher: srun starts ranks inside a job of Slurm, and this is none")
    assert LAUNCHERS["srun"].refusal({"SLURM_JOB_ID": "7"}) is None


@pytest.mark.slow
def test_the_observer_is_a_copy_that_needs_nothing_of_the_folder_it_came_from(tmp_path: Path) -> None:
    folder = Path(observer_variables(tmp_path)["PYTHONPATH"].split(os.pathsep)[0])
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    code = (
        "import sys, multicard.marks, multicard.observe.recording, multicard.profilers.nsys\n"
        "print(*(m.__file__ for name, m in sys.modules.items() if name.partition('.')[0] == 'multicard'), sep='\\n')"
    )
    # As in a container: no package of multicard's own but this one.
    away = f"import sys; sys.path[:] = [path for path in sys.path if path != {str(PACKAGE.parent)!r}]\n"
    done = ran(sys.executable, "-c", away + code, env={"PYTHONPATH": str(folder)})
    assert all(Path(file).is_relative_to(folder) for file in done.stdout.split())
    assert len(done.stdout.split()) > 20


def test_a_secret_in_the_command_or_by_the_name_of_a_variable_is_refused_and_a_path_is_none() -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        [line] = (secret_in(parameters(environment=["HF_HOME", name])) or "").splitlines()
        assert line.startswith(f"environment: {name} looks like a secret")
    assert secret_in(parameters(environment=["HF_HOME", "WANDB_MODE", "TOKENIZERS_PARALLELISM"])) is None
    for login in (
        "hf_0123456789abcdef", "https://ghp_0123456789abcdef@github.com/a/b",
        "https://ghp_0123456789abcdef:x-oauth-basic@host", "https://ada:ghp_0123456789abcdef@host",
    ):  # fmt: skip
        given = parameters(command=["train.py", "--login", "{login}"], args={"login": login})
        assert (secret_in(given) or "").startswith("command: it holds what looks like a secret"), login
    for path in (
        "data/sk-learn-1.2.3/x", "/bin:/sk-learn-1.2.3", "file:///sk-learn-1.2.3", "s3://sk-learn-1.2.3/x@1",
        "https://sk-learn-1.2.3:80/a@b", "hf_trainer.py", "hf_llama3_8b.py",
    ):  # fmt: skip
        assert secret_in(parameters(command=["train.py", path])) is None, path


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[[str], str | None]:
    """What is said of an interpreter that runs a given line of a shell."""

    def problem(line: str) -> str | None:
        path = tmp_path / "python"
        put(tmp_path, "python", line)
        if "sleep" in line:
            monkeypatch.setattr(start, "ask", lambda command, _limit_s: ask(command, 0.2))
        found = refused(parameters(command=["-m", "train"], python=str(path)))
        return found and str(found.message).replace(str(path), "PYTHON")

    return problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("echo hello from sitecustomize; echo 3.10; echo 2.4.0", None),
        ("echo 3.12; echo none", "python: PYTHON has no torch"),
        ("echo 3.9; echo 2.8.0", "python: PYTHON is Python 3.9, at least 3.10 is needed"),
        ("echo 3.11; echo 2.2.1+cu118", "python: PYTHON has torch 2.2.1+cu118, at least 2.4 is needed"),
        ("echo hello", "python: PYTHON does not answer as Python does"),
        ("exec sleep 60", "python: PYTHON did not end within 0.2 s"),
        ("echo cannot open shared object file >&2; exit 127", "python: PYTHON ended with 127, saying: cannot open"),
    ],
)
def test_an_interpreter_is_asked_once_whether_it_will_do(
    answering: Callable[[str], str | None], line: str, problem: str | None
) -> None:
    found = answering(line)
    assert found is None if problem is None else found.startswith(problem)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (b"import torch\nprint(torch\n", "line 2: '(' was never closed"),
        (b"for x in ():\n\tpass\n        pass\n", "line 3: inconsistent use of tabs"),
        ('size = "Größe"\n'.encode("latin-1"), "line 1: "),
        (b"import warnings\nassert (1, 'always')\n", None),  # Python warns of it
    ],
)
def test_a_script_that_python_cannot_compile_is_refused_before_a_job_starts(
    program: bytes, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_bytes(program)
    found = refused(parameters(command=["train.py"], folder=str(tmp_path), python=sys.executable))
    assert (found and str(found.message)) is None if fault is None else fault in str(found.message)
    if fault:
        line = refusal(lambda: main(["scale", "--device", "cpu", "--devices", "1", "--", "train.py"]), SystemExit)
        assert "train.py does not compile: " in line and not Path("multicard.yaml").exists()


def test_what_a_sitecustomize_prints_is_no_fault_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    put(
        tmp_path,
        "python",
        f'echo hello; case "$*" in *find_spec*) echo 3.11; echo 2.5.0;; *) exec {sys.executable} "$@";; esac',
    )
    found = refused(parameters(command=["train.py"], folder=str(tmp_path), python=str(tmp_path / "python")))
    assert found is None


def test_a_launcher_that_the_interpreter_does_not_have_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interpreter with torch and nothing else, by its answers; a folder of the package's name is no package."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("deepspeed").mkdir()
    python = tmp_path / "python"
    answers = f'case "$2" in *torch*) echo 3.11; echo 2.5.0;; *) exec {sys.executable} -S "$@";; esac'
    put(tmp_path, "python", answers)
    command = ["scale", "--device", "cpu", "--devices", "1,2", "--launcher", "deepspeed"]
    line = refusal(lambda: main([*command, "--python", "./python", "--", "train.py"]), SystemExit)
    assert line.endswith(
        f": launcher: deepspeed is not installed for {python}; install it: {python} -m pip install deepspeed"
    )
    assert not Path("multicard.yaml").exists()
    Path("deepspeed/__init__.py").touch()
    put(tmp_path, "other", answers)  # what was learned of the first one is kept
    main([*command, "--python", "./other", "--dry-run", "--", "train.py"])
    assert "2 runs: 2 would run" in capsys.readouterr().out
