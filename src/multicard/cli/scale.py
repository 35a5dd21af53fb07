"""Measure your own training script on several numbers of devices, unchanged."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from multicard.cli._command import (
    MEASURE,
    OF_SCALE,
    SHIPPED,
    Command,
    add_device,
    device_of,
    numbers_of_devices,
    refuse_unwritable,
)
from multicard.cli._next_step import command_line, next_step
from multicard.cli.run import add_retry
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import listed, plural, printable

PYTHON = re.compile(r"python[0-9.]*")
OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # may have dashes and capitals, which the file does not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to vary, and how to run it."""
    add = parser.add_argument
    add("--devices", required=True, metavar="N,...", help="numbers of GPUs, or of processes on CPUs, such as 1,2,4")
    add(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help="a parameter of your own and its values; the command names it in braces",
    )  # fmt: skip
    add(
        "--ablate", metavar="PART,...",
        help="run also without loading (loader), without exchanging gradients (communication), without loading and the "
        "host's work (host, GPUs only), and without all that is named, to measure what each costs; such runs train "
        "nothing",
    )  # fmt: skip
    add("--steps", type=int, default=50, help="measured steps (default: %(default)s)")
    add("--warmup", type=int, metavar="N", help="warm-up steps before the measured ones (default: 10)")
    add("--profiled-steps", type=int, metavar="N", help="steps that a profiler records after them (default: 10)")
    add("--repeats", type=int, default=1, help="repeats of each configuration; two or more give intervals")
    add_device(parser)
    add("--python", metavar="FILE", help="interpreter that runs the script (default: the active environment's)")
    add("--launcher", default="auto", help="what starts the ranks; auto: python, or torchrun on several devices")
    add(
        "--samples-per-step", type=int, metavar="N",
        help="samples of a step, of all ranks together, if its loaders do not tell",
    )  # fmt: skip
    add(
        "--samples-per-device", type=int, metavar="N", help="the same of each device, where each has a batch of its own"
    )
    add(
        "--memory-snapshot", action="store_true",
        help="record the history of GPU memory, which tells what held it if it runs out",
    )  # fmt: skip
    add("--time-limit-min", type=int, default=60, metavar="N", help="minutes per run (default: %(default)s)")
    add(
        "--config-out", type=Path, default=OF_SCALE, metavar="FILE",
        help="configuration to write (default: %(default)s); the results of NAME.yaml go to results-NAME",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="replace a configuration file that differs")
    add_retry(parser)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="list the runs; write and run nothing")
    only.add_argument(
        "--write-only", action="store_true", help="write the configuration and run nothing, as on a login node"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the configuration, run it, and print its results; exit as `run_and_print` does."""
    from multicard.archive.matrix import Matrix
    from multicard.cli.run import check_start, print_runs, run_and_print
    from multicard.experiment.load import check

    config, path = configuration(arguments), arguments.config_out
    try:
        experiment = check(config, "multicard scale")
    except UserError as error:
        raise UserError(*map(_by_option, str(error).splitlines())) from None
    matrix = Matrix.plan(experiment)
    if warning := _same_samples(config):
        print(warning, flush=True)
    results = Path(config["results"])
    if not path.exists() and results.is_dir() and any(results.iterdir()) and not any(results.glob("runs/*/run.json")):
        raise UserError(f"{results}: not results of multicard; choose another folder with --config-out NAME.yaml")
    if not arguments.write_only:
        check_start(matrix, planning=arguments.dry_run, by_option=True)
    if arguments.dry_run:
        print_runs(matrix, arguments.retry_failed)
        return
    _write(path, as_yaml(config, arguments.rest), arguments.overwrite)
    print(f"configuration: {path}", flush=True)
    print(f"interpreter: {config['scenarios']['scale']['fixed'].get('python', sys.executable)}", flush=True)
    if arguments.write_only:
        print(next_step("to run it", "run", path))
        print(next_step("to run it on a cluster", "run", path, "--profile", "slurm"))
        return
    run_and_print(matrix, path, retry_failed=arguments.retry_failed)


def _by_option(line: str) -> str:
    """Name the option where a line names the key that `configuration` makes of it.

    >>> _by_option("multicard scale: scenarios.scale.repeats: found -1, expected 1 or more")
    'multicard scale: --repeats: found -1, expected 1 or more'
    """
    key = r"multicard scale: (?:scenarios\.scale\.)?(?:fixed\.|vary\.)?(\w+)[^:]*: "
    named = re.match(key, line)
    options = {
        "repeats": "repeats", "steps": "steps", "warmup_steps": "warmup", "profiled_steps": "profiled-steps",
        "samples_per_step": "samples-per-step", "samples_per_device": "samples-per-device", "launcher": "launcher",
        "time_limit_min": "time-limit-min", "devices": "devices", "args": "vary", "python": "python",
        "results": "config-out",
    }  # fmt: skip
    if named is None or named[1] not in options:
        return line
    return f"multicard scale: --{options[named[1]]}: {line[named.end() :]}"


def _write(path: Path, text: str, overwrite: bool) -> None:
    """Write the configuration file, unless another one is there."""
    refuse_unwritable("--config-out", path)
    if path.exists() and not overwrite and path.read_bytes() != text.encode():
        raise UserError(
            f"{path}: exists and differs; --overwrite replaces it and keeps finished runs whose parameters are the "
            f"same, --config-out FILE writes another; to run it as it is: {command_line('run', path)}"
        )
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def configuration(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the configuration file is to say.

    Raises `UserError` if the arguments do not fit together.
    """
    from multicard.experiment.config import RESULTS, default_results
    from multicard.workloads.script.parameters import GIVEN, program
    from multicard.workloads.script.template import command_error, renamed
    from multicard.workloads.script.workload import default_figures

    python, command = parse_command(arguments.rest, arguments.launcher)
    varied = dict(map(parse_vary, arguments.vary))
    if len(varied) < len(arguments.vary):
        raise UserError("--vary: names a parameter twice, expected --vary NAME=VALUE,... once for each")
    command = renamed(command, lambda name: own if (own := _as_in_file(name)) in varied else name)
    if error := command_error(command, varied, GIVEN, "--vary {}", "write --vary {}=VALUE,..."):
        raise UserError(error)
    devices = numbers_of_devices(arguments.devices)
    device = device_of(arguments.device)
    if arguments.write_only and arguments.device == "auto" and device == "cpu":
        raise UserError("--write-only: this machine has no GPU, but others may; set --device cuda or --device cpu")
    fixed = {"workload": "script", "command": command, "folder": ".", "device": device, "steps": arguments.steps}
    fixed |= {"launcher": arguments.launcher}
    stated = {
        "python": arguments.python or python or _active_interpreter(),
        "samples_per_step": arguments.samples_per_step,
        "samples_per_device": arguments.samples_per_device,
        "warmup_steps": arguments.warmup,
        "profiled_steps": arguments.profiled_steps,
        "memory_snapshot": arguments.memory_snapshot or None,
    }
    fixed |= {name: value for name, value in stated.items() if value is not None}
    several, name = len(devices) > 1, Path(program(command)).name
    what = plural(2, "GPU" if device == "cuda" else "process")
    more = f"How much faster is {name} with more {what}, and where does its time go?"
    scenario = {
        "question": more if several else f"Where does the time of {name} go?",
        "fixed": fixed,
        "vary": {"devices": devices} | _ablations(arguments.ablate, devices) | ({"args": varied} if varied else {}),
        "repeats": arguments.repeats,
        "figures": list(default_figures(several, device, bool(arguments.ablate))),
    }
    # In a clone the demo has the folder.
    alone = arguments.config_out.name == OF_SCALE.name and not SHIPPED.exists()
    results = RESULTS if alone else default_results(arguments.config_out)
    return {"results": results, "time_limit_min": arguments.time_limit_min, "scenarios": {"scale": scenario}}


def parse_command(command: list[str], launcher: str = "auto") -> tuple[str | None, list[str]]:
    """The interpreter that a command names by its path, if any, and the command from the script or `-m` on.

    With the launcher `command` it stays as it is, unless it begins with an interpreter.

    Raises `UserError` if there is no command, it starts with a launcher, or with something else that is no script.

    >>> parse_command(["python", "train.py", "-b", "8"]), parse_command([".venv/bin/python", "-m", "pkg.train"])
    ((None, ['train.py', '-b', '8']), ('.venv/bin/python', ['-m', 'pkg.train']))
    """
    from multicard.workloads.script.launchers import LAUNCHERS

    if not command:
        raise UserError("the command is missing; write it last, after --, such as: -- train.py --epochs 1")
    python, first = None, Path(command[0]).name
    if PYTHON.fullmatch(first):
        python, command = (command[0] if "/" in command[0] else None), command[1:]
        if command[:1] == ["-u"]:  # when its output is written makes no difference to what is measured
            command = command[1:]
    by_module = command[:1] == ["-m"] and len(command) > 1
    is_script = by_module or (command[:1] != [] and command[0].endswith(".py"))
    launchers = LAUNCHERS.values()
    found = (one.name for one in launchers if (command[1] in one.modules if by_module else first in one.programs))
    started_by = next(found, None)
    if launcher == "command" or (is_script and not started_by):
        return python, command
    script = next((at for at, part in enumerate(command) if part.endswith(".py")), None)
    rest = "SCRIPT.py ..." if script is None else shlex.join(command[script:])
    if started_by:
        raise UserError(f"-- {first}: multicard starts the ranks itself; write --launcher {started_by} -- {rest}")
    raise UserError(
        f"-- {shlex.join(command[:1]) or first}: not a Python script, expected SCRIPT.py or -m MODULE (--python FILE "
        "selects another environment); a program that starts its own ranks needs --launcher command"
    )


def _ablations(stated: str | None, devices: list[int]) -> dict[str, list[str]]:
    """What runs go without, each part alone and all together, beside those that go without nothing.

    The host's work is what is left out beside the loader, so there are runs without that, too.
    """
    from multicard.runs.parameters import ABLATIONS

    parts = list(dict.fromkeys(stated.split(","))) if stated else []
    known = [each for each in ABLATIONS[1:] if "+" not in each]
    if wrong := [each for each in parts if each not in known]:
        raise UserError(f"--ablate: found {wrong[0]!r}, expected {listed(known, 'or')}, or several with commas between")
    if parts == ["communication"] and max(devices) == 1:
        raise UserError("--ablate: found communication, expected several --devices, between which there is some")
    if "host" in parts:
        parts, known = ["loader", *(each for each in parts if each != "loader")], known[1:]
    together = "+".join(each for each in known if each in parts)
    return {"ablate": ["none", *dict.fromkeys((*parts, together))]} if parts else {}


def _active_interpreter() -> str | None:
    """Interpreter of the environment that is active, if that is another one than multicard's."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    python = Path(active or "", "bin", "python")
    is_other = active and Path(active).resolve() != Path(sys.prefix).resolve()
    return str(python) if is_other and python.is_file() else None


def _same_samples(config: dict[str, Any]) -> str | None:
    """A warning that a stated number of samples counts for all runs; None without one, or where nothing varies."""
    [scenario] = config["scenarios"].values()
    fixed, own = scenario["fixed"], scenario["vary"].get("args", {})
    for option, counts in (
        ("samples_per_device", own),
        ("samples_per_step", {"devices": scenario["vary"]["devices"]} | own),
    ):
        varied = [name for name, values in counts.items() if len(values) > 1]
        if option in fixed and varied:
            return (
                f"--{option.replace('_', '-')}: counts in every run, so throughput and speed-up are wrong where "
                f"{listed(varied, 'or')} changes that number"
            )
    return None


def as_yaml(config: dict[str, Any], command: list[str]) -> str:
    """The configuration file, with a comment for who edits it."""
    import yaml

    return (
        f"# Written by multicard scale, for: {printable(shlex.join(command))}\n"
        "# Edit it and run it again by multicard run FILE (--dry-run lists the runs); what has been measured stays as "
        "long as\n# its parameters do. Below args are your own parameters, with all values that the runs combine.\n"
        "# All parameters: python -m multicard.experiment --docs\n"
        f"{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=None)}"
    )


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """Name and values of one `--vary`.

    >>> parse_vary("batch-size=32,64")
    ('batch_size', [32, 64])
    """
    from multicard.runs.parameter_types import own_value

    name, equals, listed_values = text.partition("=")
    values = [value.strip() for value in listed_values.split(",")]
    if not equals or not OWN_NAME.fullmatch(name) or not all(values):
        raise UserError(f"--vary: found {text!r}, expected NAME=VALUE,... such as batch-size=32,64")
    if any(value.count(one) != value.count(other) for value in values for one, other in ("[]", "()", "{}")):
        raise UserError(
            f"--vary: found {text!r}, but commas separate values; write such values under `vary` in the file"
        )
    return _as_in_file(name), list(map(own_value, values))


def _as_in_file(name: str) -> str:
    """The name of a parameter of the user's own as the configuration has it."""
    return name.lower().replace("-", "_")


COMMAND = Command(
    MEASURE,
    "multicard scale --devices 1,2,4 -- train.py --epochs 1",
    add_arguments,
    run,
    "-- SCRIPT.py [ARGUMENT ...]",
)
