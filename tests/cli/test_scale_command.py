"""`multicard scale`: how a command is parsed, the configuration file that is written, and bad input."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.code_blocks import shell_commands
from multicard.cli import main
from multicard.cli.scale import parse_command
from multicard.config.load import check, read_experiment
from multicard.config.runs import distinct, expand
from multicard.core.errors import UserError
from multicard.programs.machine import Machine

ONE = ("--devices", "1", "--", "train.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script in it, in which nothing is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    monkeypatch.setattr("multicard.cli.run.run_and_print", lambda *_, **__: None)
    return tmp_path


def written(*arguments: str) -> dict[str, Any]:
    """What the file says that the command writes."""
    main(["scale", "--device", "cpu", *arguments])
    return yaml.safe_load(Path("multicard.yaml").read_text())


def scenario(*arguments: str) -> dict[str, Any]:
    """The scenario in a file that replaces any other."""
    return written("--overwrite", *arguments)["scenarios"]["scale"]


def refused(*arguments: str) -> str:
    """The one line that refuses it, where nothing may be written."""
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as stopped:
        main(["scale", "--device", "cpu", *arguments])
    assert sorted(Path().iterdir()) == before
    [line] = str(stopped.value).splitlines()
    return line


def test_the_file_says_what_was_asked_and_is_valid(folder: Path) -> None:
    stated = written(
        "--devices", "1,2", "--vary", "batch-size= 32, 64", "--vary", "amp=none,bf16", "--vary", "lr=0.1",
        "--steps", "20", "--repeats", "3", "--samples-per-step", "64", "--python", sys.executable,
        "--time-limit-min", "5", "--warmup", "3", "--profiled-steps", "4",
        "--", "train.py", "--batch-size", "{batch-size}", "--amp={amp}", "--lr", "{lr}", "--out", "{run_dir}/x y",
    )  # fmt: skip
    [found] = stated["scenarios"].values()
    assert (stated["results"], stated["time_limit_min"], found["repeats"]) == ("results", 5, 3)
    command = ["--batch-size", "{batch_size}", "--amp={amp}", "--lr", "{lr}", "--out", "{run_dir}/x y"]
    options = {"steps": 20, "samples_per_step": 64, "warmup_steps": 3, "profiled_steps": 4}
    program = {"command": ["train.py", *command], "folder": ".", "python": sys.executable, "launcher": "auto"}
    assert found["fixed"] == {"workload": "script", "device": "cpu"} | options | program
    own = {"batch_size": [32, 64], "amp": ["none", "bf16"], "lr": [0.1]}
    assert found["vary"] == {"devices": [1, 2], "args": own}
    [read] = read_experiment(Path("multicard.yaml")).scenarios.values()
    assert read.varied == {"devices": [1, 2]} | {f"args.{name}": values for name, values in own.items()}


def test_parts_to_go_without_are_values_of_a_parameter_each_alone_and_all_together(folder: Path) -> None:
    assert scenario("--ablate", "loader", *ONE)["vary"] == {"devices": [1], "ablate": ["none", "loader"]}
    both = scenario("--devices", "1,2", "--ablate", "communication,loader", "--", "train.py")
    assert both["vary"]["ablate"] == ["none", "communication", "loader", "loader+communication"]
    assert "ablation" in both["figures"]
    # On one device there is no communication to go without: these values make no further runs there.
    [runs] = expand(read_experiment(Path("multicard.yaml"))).values()
    assert sorted((run.parameters.devices, run.parameters.ablate) for run in runs) == [
        (1, "loader"), (1, "none"),
        (2, "communication"), (2, "loader"), (2, "loader+communication"), (2, "none"),
    ]  # fmt: skip


@pytest.mark.parametrize(("devices", "device"), [("1,2", "cpu"), ("2", "cuda")])
def test_figures_that_the_runs_cannot_have_are_not_asked_for(folder: Path, devices: str, device: str) -> None:
    figures = scenario("--device", device, "--devices", devices, "--write-only", "--", "train.py")["figures"]
    assert ("speedup" in figures) == (devices == "1,2") and ("device_time" in figures) == (device == "cuda")
    assert read_experiment(Path("multicard.yaml")).scenarios["scale"].figures == figures


def test_any_text_of_the_command_and_of_its_values_stays_as_it_was_typed(folder: Path) -> None:
    words = ["1e-3", "007", "none", "nan", "true", "1:30", "0x10", "a b", "#1", "~", "{x}", "ä", "a: b", "'"]
    typed = {"32": 32, "-1": -1, "0.1": 0.1} | {word: word for word in words}
    options = [option for at, text in enumerate(typed) for option in ("--vary", f"v{at}={text}")]
    texts = ["-x", "- y", "#", "a: [b", "'\"", "yes", "1", "{{}}", "two\nlines", "\x1b[1m", "--", "é" * 200]
    command = ["train.py", *texts, *(f"{{v{at}}}" for at in range(len(typed)))]
    stated = scenario("--write-only", "--devices", "1", *options, "--", *command)
    assert stated["fixed"]["command"] == command
    found = [value for [value] in stated["vary"]["args"].values()]
    assert [(value, type(value), str(value)) for value in found] == [
        (value, type(value), text) for text, value in typed.items()
    ]


@pytest.mark.parametrize(
    ("typed", "python", "command"),
    [
        ("train.py -b 8", None, "train.py -b 8"),
        ("python -u train.py", None, "train.py"),
        ("python3.12 -m pkg.train --x", None, "-m pkg.train --x"),
        (".venv/bin/python train.py", ".venv/bin/python", "train.py"),
    ],
)
def test_a_command_is_understood_with_and_without_its_interpreter(typed: str, python: str | None, command: str) -> None:
    assert parse_command(typed.split()) == (python, command.split())


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("torchrun --nproc-per-node 2 train.py -b 8", "write --launcher torchrun -- train.py -b 8"),
        ("python -m torch.distributed.run train.py", "write --launcher torchrun -- train.py"),
        ("/opt/bin/accelerate launch train.py", "write --launcher accelerate -- train.py"),
        ("srun ./train", "write --launcher srun -- SCRIPT.py ..."),
        ("uv run train.py", "--python FILE selects another environment"),
        ("./train.sh", "a program that starts its own ranks needs --launcher command"),
        ("python", "expected SCRIPT.py or -m MODULE"),
        ("python -O train.py", "expected SCRIPT.py or -m MODULE"),
    ],
)
def test_what_is_no_script_is_refused_with_what_to_write(typed: str, line: str) -> None:
    with pytest.raises(UserError, match=r"^-- ") as caught:
        parse_command(typed.split())
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--devices 1 --", "the command is missing; write it last, after --"),
        ("--devices 1,a -- train.py", "--devices: found '1,a', expected numbers of devices such as 1,2,4"),
        ("--devices 9999999 -- train.py", "--devices: found '9999999', expected numbers of devices"),
        ("--devices 1 -- other.py", "command: no such file: other.py (in "),
        ("--devices 1 --vary d=[1,2] -- train.py {d}", "--vary: found 'd=[1,2]', but commas separate values"),
        ("--devices 1 --vary b -- train.py {b}", "--vary: found 'b', expected NAME=VALUE,..."),
        ("--devices 1 --vary b=1,,2 -- train.py {b}", "--vary: found 'b=1,,2'"),
        ("--devices 1 --vary b=1 --vary b=2 -- train.py {b}", "--vary: names a parameter twice"),
        ("--devices 1 --vary b=1 -- train.py", "--vary b: the command does not use it; write {b} where"),
        ("--devices 1 --vary batch-size=1 -- train.py {batch_siz}", "did you mean {batch_size}?"),
        ("--devices 1 -- train.py {x}", "(write --vary x=VALUE,..., or write {{ and }} for braces)"),
        ("--devices 1 --config-out . -- train.py", "--config-out: cannot write to .: . is a folder, expected a file"),
        ("--devices 1 --launcher command -- no-such-program", "launcher: command needs the program"),
        ("--devices 1 --launcher srun -- train.py", "this is none; use salloc, or --write-only"),
        ("--devices 1 --steps 0 -- train.py", "steps: found 0, "),
        ("--devices 1 --ablate loading -- train.py", "found 'loading', expected loader or communication, or several"),
        ("--devices 1 --ablate communication -- train.py", "--ablate: found communication, expected several --devices"),
        ("--devices 1 --memory-snapshot -- train.py", "memory_snapshot: records the memory of GPUs, found device: cpu"),
        ("--devices 1024 -- train.py", "cannot run here: needs 1024 devices, "),
        ("--devices 1 --python no/such -- train.py", "python: no such interpreter: "),
        ("--devices 1 --python /bin/false -- train.py", "python: /bin/false ended with 1"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert says in refused(*arguments.split())


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("scale --devices 1 --steps x -- train.py", "multicard scale: error: argument --steps: invalid int value: 'x'"),
        ("scale --devices 1 --device", "multicard scale: error: argument --device: expected one argument"),
        ("scale --devices 1 train.py", "unrecognized arguments: train.py; -- SCRIPT.py [ARGUMENT ...] comes last"),
    ],
)
def test_what_cannot_be_parsed_is_told_in_the_last_line(
    command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    assert stopped.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--repeats -1", "multicard scale: --repeats: found -1, expected 1 or more"),
        ("--steps 0", "multicard scale: --steps: found 0, expected 1 or more"),
        ("--warmup -1", "multicard scale: --warmup: found -1, expected 0 or more"),
        ("--profiled-steps 0", "multicard scale: --profiled-steps: found 0, expected 1 or more"),
        ("--time-limit-min 0", "multicard scale: --time-limit-min: found 0, expected 1 or more"),
        (
            "--launcher torchrum",
            "multicard scale: --launcher: found 'torchrum' (did you mean 'torchrun'?), expected one",
        ),
        ("--launcher traces", "--launcher: found 'traces', expected one of auto, python, torchrun,"),
    ],
)
def test_a_value_that_is_refused_is_named_by_its_option(folder: Path, arguments: str, line: str) -> None:
    """And not by the key of a file that the user never wrote."""
    assert refused(*arguments.split(), *ONE).startswith(line)


def test_no_gpu_is_told_with_what_runs_without_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multicard.programs.machine.Machine.here", lambda: Machine(cpus=2, gpus=0))
    line = "cannot run here: needs a CUDA GPU, none found; --device cpu runs it on CPU processes"
    assert refused("--device", "cuda", *ONE) == line


def test_beside_the_demo_results_have_a_folder_of_their_own(folder: Path) -> None:
    (folder / "config").mkdir()
    (folder / "config/config.yaml").touch()
    assert written(*ONE)["results"] == "results-multicard"


def test_a_folder_that_cannot_be_written_to_is_one_line_and_leaves_nothing(folder: Path) -> None:
    (folder / ".snakemake").write_text("a file where Snakemake needs a folder")
    assert "cannot write to this folder, where Snakemake keeps its state: " in refused(*ONE)


def test_a_file_that_says_something_else_is_kept_until_told_otherwise(folder: Path) -> None:
    first = written(*ONE)
    assert written(*ONE) == first, "the same is no other"
    asked = ["--devices", "1,2", "--", "train.py", "--other"]
    line = (
        "multicard.yaml: exists and differs; --overwrite replaces it and keeps finished runs whose parameters are the "
    )
    assert f"{line}same, --config-out FILE writes another" in refused(*asked)
    main(["scale", "--device", "cpu", "--config-out", "other.yaml", *asked])
    assert yaml.safe_load(Path("multicard.yaml").read_text()) == first
    other = yaml.safe_load(Path("other.yaml").read_text())
    assert (first["results"], other["results"]) == ("results", "results-other"), "neither replaces the other's"
    assert scenario(*asked) == other["scenarios"]["scale"]


def ids(config: dict[str, Any]) -> set[str]:
    return set(distinct(expand(check(config, "multicard.yaml"))))


def test_a_folder_of_the_users_is_not_taken_for_results(folder: Path) -> None:
    report = folder / "results" / "report.html"
    report.parent.mkdir()
    report.write_text("my own")
    assert "results: not results of multicard; choose another folder with --config-out NAME.yaml" in refused(*ONE)
    assert report.read_text() == "my own"
    # As `multicard doctor --measure` leaves it.
    limits = folder / "results" / "machine" / "node-cpu.json"
    limits.parent.mkdir()
    limits.touch()
    assert written(*ONE)["results"] == "results"
    Path("multicard.yaml").unlink()
    limits.unlink()
    run = folder / "results" / "runs" / "script_train_cpu1_r1" / "run.json"
    run.parent.mkdir(parents=True)
    run.touch()
    assert written(*ONE)["results"] == "results"


def test_the_interpreter_of_the_active_environment_is_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = folder / "env" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    own = Path(sys.prefix)
    for active, found in ((None, None), (own, None), (folder / "gone", None), (other.parents[1], str(other))):
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            monkeypatch.delenv(name, raising=False)
        if active:
            monkeypatch.setenv("CONDA_PREFIX" if active == other.parents[1] else "VIRTUAL_ENV", str(active))
        assert scenario("--write-only", *ONE)["fixed"].get("python") == found
        assert f"interpreter: {found or sys.executable}" in capsys.readouterr().out
    assert scenario("--write-only", "--python", "python3", *ONE)["fixed"]["python"] == "python3"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("--samples-per-step 64 --devices 1,2 --vary b=4,8 --vary lr=1 -- train.py {b} {lr}", "devices or b changes"),
        ("--samples-per-step 64 --devices 2 -- train.py", None),
        ("--samples-per-device 12 --devices 1,2 --vary b=4,8 -- train.py {b}", "b changes"),
        ("--samples-per-device 12 --devices 1,2 -- train.py", None),
        ("--devices 1,2 -- train.py", None),
    ],
)
def test_samples_that_are_stated_for_all_runs_are_warned_of_where_their_number_varies(
    asked: str, named: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--dry-run", "--write-only"):
        main(["scale", "--device", "cpu", option, *asked.split()])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--samples-per-")]
        assert [line.partition("wrong where ")[2] for line in lines] == ([f"{named} that number"] if named else [])


def test_a_dry_run_lists_the_runs_of_the_readmes_command_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(command for command in shell_commands("README.md") if command.startswith("multicard scale "))
    main(["scale", "--device", "cpu", "--dry-run", *shlex.split(first)[2:]])
    listed = capsys.readouterr().out
    assert all(f"cpu{devices}_batch_size-{batch}_" in listed for devices in (1, 2, 4) for batch in (32, 64))
    assert "6 runs: " in listed
    assert sorted(path.name for path in folder.iterdir()) == ["package", "train.py"]


def test_a_file_is_written_and_nothing_run_where_jobs_are_only_submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multicard.cli.run.run_and_print", lambda *_, **__: pytest.fail("it was run"))
    asked = ["--write-only", "--devices", "4,1024", "--launcher", "srun", "--", "train.py"]
    stated = scenario("--device", "cuda", *asked)
    assert (stated["fixed"]["launcher"], stated["fixed"]["device"]) == ("srun", "cuda")
    assert stated["vary"] == {"devices": [4, 1024]}
    assert "next, to run it: multicard run multicard.yaml\n" in capsys.readouterr().out
    Path("multicard.yaml").unlink()
    monkeypatch.setattr("multicard.programs.machine.Machine.here", lambda: Machine(cpus=2, gpus=0))
    assert "set --device cuda or --device cpu" in refused("--device", "auto", *asked)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["bash", "-c", "exec python -m torch.distributed.run --nproc-per-node {devices} iter2.py"], "bash"),
        (["env", "python", "src/iter2.py"], "iter2.py"),
    ],
)
def test_a_program_that_starts_its_ranks_itself_stays_as_it_is_and_names_its_runs(
    command: list[str], name: str, folder: Path
) -> None:
    stated = written("--devices", "1", "--launcher", "command", "--", *command)
    [found] = stated["scenarios"].values()
    assert (found["question"], found["fixed"]["command"]) == (f"Where does the time of {name} go?", command)
    [run] = ids(stated)
    assert run.startswith(f"script_{name.removesuffix('.py')}-")
