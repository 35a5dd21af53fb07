"""Measure your own training script on several numbers of devices, unchanged."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import (
    MEASURE,
    OF_SCALE,
    OVERWRITE_REMEDY,
    SHIPPED,
    Command,
    add_device,
    device_of,
    numbers_of_devices,
    refuse_different,
    refuse_foreign_results,
    refuse_unwritable,
)
from multicard.cli._next_step import command_line, next_step
from multicard.cli.run import add_retry
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import listed, plural, printable
from multicard.core.units import ARGS_PREFIX
from multicard.core.values import JsonObject

if TYPE_CHECKING:
    from multicard.config.experiment import Scenario

SCENARIO = "scale"  # name of the only scenario in the file

# Names of Python interpreters.
PYTHON = re.compile(r"python[0-9.]*")
# Name of a user's parameter on the command line. In the file the name has neither dashes nor capitals.
USERS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: what to vary, and how to run it."""
    add = parser.add_argument
    add("--devices", required=True, metavar="N,...", help="numbers of GPUs, or of processes on CPUs, such as 1,2,4")
    add(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help="a parameter of your script and its values; write it in braces in the command",
    )  # fmt: skip
    add(
        "--ablate", metavar="PART,...",
        help="also run without loading data (loader), without exchanging gradients (communication), and without both, "
        "to measure what each costs; such runs train nothing",
    )  # fmt: skip
    add("--steps", type=int, default=50, help="measured steps (default: %(default)s)")
    add("--warmup", type=int, metavar="N", help="warm-up steps before the measured ones (default: 10)")
    add("--profiled-steps", type=int, metavar="N", help="profiled steps, after the measured ones (default: 10)")
    add(
        "--repeats",
        type=int,
        metavar="N",
        help="repeats of each configuration; two or more give intervals (default: 1)",
    )
    add(
        "--until", metavar="X%",
        help="add repeats to --repeats (default: 3) until each difference is significant, or known to within X%%",
    )  # fmt: skip
    add("--most", type=int, metavar="N", help="with --until: most repeats of a configuration (default: 10)")
    add_device(parser)
    add("--python", metavar="FILE", help="interpreter that runs the script (default: the active environment's)")
    add("--launcher", default="auto", help="starts the ranks; auto: python, or torchrun on several devices")
    add(
        "--samples-per-step", type=int, metavar="N",
        help="samples per step, of all ranks together, if the loaders do not show it",
    )  # fmt: skip
    add(
        "--samples-per-device",
        type=int,
        metavar="N",
        help="samples per step and device, if each device has its own batch",
    )
    add(
        "--memory-snapshot", action="store_true",
        help="record GPU allocations, so that an out-of-memory error shows what was using the memory",
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
    """Write the configuration, run it, and print its results; exit codes are those of `run_and_print`."""
    from multicard.cli.run import check_start, print_runs, run_and_print
    from multicard.config.added_repeats import with_added_repeats
    from multicard.config.load import check
    from multicard.config.plan import Plan

    config = configuration(arguments)
    path = arguments.config_out
    try:
        experiment = with_added_repeats(check(config, "multicard scale"))
    except UserError as error:
        raise UserError(*map(_by_option, str(error).splitlines())) from None
    plan = Plan.make(experiment)
    scenario = experiment.scenarios[SCENARIO]
    warning = _same_samples(scenario)
    if warning:
        print(warning, flush=True)
    if not path.exists():
        refuse_foreign_results(Path(experiment.results), "choose another folder with --config-out NAME.yaml")
    if not arguments.write_only:
        check_start(plan, planning=arguments.dry_run, by_option=True)
    if arguments.dry_run:
        print_runs(plan, path, arguments.retry_failed)
        return
    _write(path, as_yaml(config, arguments.trailing), arguments.overwrite)
    print(f"configuration: {path}", flush=True)
    print(f"interpreter: {scenario.fixed.stated().get('python', sys.executable)}", flush=True)
    if arguments.write_only:
        print(next_step("to run it", "run", path))
        print(next_step("to run it on a cluster", "run", path, "--profile", "slurm"))
        return
    run_and_print(plan, path, retry_failed=arguments.retry_failed)


def _by_option(line: str) -> str:
    """Return a line of an error with the option in place of the configuration's key that the option sets.

    >>> _by_option("multicard scale: scenarios.scale.repeats: found -1, expected 1 or more")
    'multicard scale: --repeats: found -1, expected 1 or more'
    """
    options = {
        "repeats": "repeats", "steps": "steps", "warmup_steps": "warmup", "profiled_steps": "profiled-steps",
        "samples_per_step": "samples-per-step", "samples_per_device": "samples-per-device", "launcher": "launcher",
        "time_limit_min": "time-limit-min", "devices": "devices", "args": "vary", "python": "python",
        "results": "config-out", "until": "until", "least": "repeats", "most": "most",
    }  # fmt: skip
    key = re.match(r"multicard scale: (?:scenarios\.scale\.)?(?:fixed\.|vary\.|repeats\.)?(\w+)[^:]*: ", line)
    if key is None or key[1] not in options:
        return line
    return f"multicard scale: --{options[key[1]]}: {line[key.end() :]}"


def _write(path: Path, text: str, overwrite: bool) -> None:
    """Write the configuration file; raise `UserError` if a different one exists and `overwrite` is False."""
    refuse_unwritable("--config-out", path)
    if not overwrite:
        remedy = (
            f"{OVERWRITE_REMEDY} and keeps finished runs whose parameters are the same, --config-out FILE writes "
            f"another; to run it as it is: {command_line('run', path)}"
        )
        refuse_different(path, text, remedy)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def configuration(arguments: argparse.Namespace) -> JsonObject:
    """Return the content of the configuration file.

    Raises `UserError` if the arguments do not fit together.
    """
    from multicard.config.experiment import RESULTS, default_results
    from multicard.launchers import LAUNCHERS
    from multicard.programs import USER_PROGRAM
    from multicard.programs.user_command import program

    if arguments.launcher in LAUNCHERS and not LAUNCHERS[arguments.launcher].launches:
        starting = [name for name, launcher in LAUNCHERS.items() if launcher.launches]
        raise UserError(f"--launcher: found {arguments.launcher!r}, expected one of auto, {', '.join(starting)}")
    stated_python, command = parse_command(arguments.trailing, arguments.launcher)
    varied = _varied(arguments.vary)
    command = _with_names_of_file(command, varied)
    devices = numbers_of_devices(arguments.devices)
    device = device_of(arguments.device)
    if arguments.write_only and arguments.device == "auto" and device == "cpu":
        raise UserError("--write-only: this machine has no GPU, but others may; set --device cuda or --device cpu")
    optional = {
        "python": arguments.python or stated_python or _active_interpreter(),
        "samples_per_step": arguments.samples_per_step,
        "samples_per_device": arguments.samples_per_device,
        "warmup_steps": arguments.warmup,
        "profiled_steps": arguments.profiled_steps,
        "memory_snapshot": arguments.memory_snapshot or None,
    }
    fixed = {
        "workload": USER_PROGRAM.name,
        "command": command,
        "folder": ".",
        "device": device,
        "steps": arguments.steps,
        "launcher": arguments.launcher,
        **{name: value for name, value in optional.items() if value is not None},
    }
    vary: JsonObject = {"devices": devices, **_ablations(arguments.ablate, devices)}
    vary |= {"args": varied} if varied else {}
    scenario: JsonObject = {
        "question": _question(Path(program(command)).name, device, len(devices)),
        "fixed": fixed,
        "vary": vary,
        "repeats": _repeats(arguments),
        "figures": _figures(len(devices) > 1, device, bool(arguments.ablate)),
    }
    # The default file, multicard.yaml, gets the default folder, `results`. Not in a clone of multicard: there `results`
    # is the folder of the shipped configuration.
    is_default = arguments.config_out.name == OF_SCALE.name and not SHIPPED.exists()
    results = RESULTS if is_default else default_results(arguments.config_out)
    return {"results": results, "time_limit_min": arguments.time_limit_min, "scenarios": {SCENARIO: scenario}}


def _repeats(arguments: argparse.Namespace) -> int | JsonObject:
    """Return the repeats as a configuration states them: a number, or with --until a mapping."""
    if arguments.until is None:
        if arguments.most is not None:
            raise UserError("--most: expected --until X% with it; --repeats states a fixed number")
        return 1 if arguments.repeats is None else arguments.repeats
    optional = {"least": arguments.repeats, "most": arguments.most}
    return {"until": arguments.until, **{key: value for key, value in optional.items() if value is not None}}


def _varied(stated: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of the user's parameters by their names in the file. `stated`: the texts of --vary."""
    varied = dict(map(parse_vary, stated))
    if len(varied) < len(stated):
        raise UserError("--vary: names a parameter twice, expected --vary NAME=VALUE,... once for each")
    return varied


def _with_names_of_file(command: list[str], varied: dict[str, list[Any]]) -> list[str]:
    """Return a command in which varied parameters, in braces, have the names that they have in the file.

    Raises `UserError` if the command names a parameter that is not varied, or does not name one that is.
    """
    from multicard.programs.user_command import GIVEN, command_error, renamed

    def name_in_file(name: str) -> str:
        return _name_in_file(name) if _name_in_file(name) in varied else name

    command = renamed(command, name_in_file)
    error = command_error(command, varied, GIVEN, "--vary {}", "write --vary {}=VALUE,...")
    if error:
        raise UserError(error)
    return command


def _figures(several_counts: bool, device: str, ablates: bool) -> list[str]:
    """Return the names of the figures of the scenario.

    Parameters
    ----------
    several_counts
        True if the number of devices varies.
    device
        cpu or cuda.
    ablates
        True if there are runs without a part of their step.
    """
    figures: list[str] = []
    if several_counts:
        figures += ["iteration_time", "speedup", "tradeoff"]
    if ablates:
        figures.append("ablation")
    figures += ["step_breakdown", "utilization", "step_times"]
    if device == "cuda":
        figures += ["device_time", "time_shares", "kernel_classes", "collectives"]
    figures.append("memory")
    return figures


def _question(script: str, device: str, counts: int) -> str:
    if counts == 1:
        return f"Where does the time of {script} go?"
    devices = plural(2, "GPU" if device == "cuda" else "process")
    return f"How much faster is {script} with more {devices}, and where does its time go?"


def parse_command(command: list[str], launcher: str = "auto") -> tuple[str | None, list[str]]:
    """Return the interpreter that a command begins with, and the rest of the command, from the script or `-m` on.

    The interpreter is None if it is named without a folder, or not at all: the one of the active environment is used.
    With the launcher `command` the rest may be any command.

    Raises `UserError` if the command is empty. With other launchers, raises it also if the command begins with a
    launcher such as torchrun, or with neither a script *.py nor `-m`.

    >>> parse_command(["python", "train.py", "-b", "8"]), parse_command([".venv/bin/python", "-m", "pkg.train"])
    ((None, ['train.py', '-b', '8']), ('.venv/bin/python', ['-m', 'pkg.train']))
    """
    if not command:
        raise UserError("the command is missing; write it last, after --, such as: -- train.py --epochs 1")
    first = Path(command[0]).name
    python = None
    if PYTHON.fullmatch(first):
        # An interpreter that is named without a folder is that of the active environment.
        python = command[0] if "/" in command[0] else None
        command = command[1:]
        if command[:1] == ["-u"]:
            # -u only makes Python write its output at once, which does not matter for the measurement.
            command = command[1:]
    if launcher == "command":
        return python, command
    is_module = command[:1] == ["-m"] and len(command) > 1
    starting = _launcher_of(command[1] if is_module else first, is_module)
    if starting is not None:
        raise UserError(
            f"-- {first}: multicard starts the ranks itself; write --launcher {starting} -- {_from_script(command)}"
        )
    if is_module or (command and command[0].endswith(".py")):
        return python, command
    raise UserError(
        f"-- {shlex.join(command[:1]) or first}: not a Python script, expected SCRIPT.py or -m MODULE (--python FILE "
        "selects another environment); a program that starts its own ranks needs --launcher command"
    )


def _launcher_of(name: str, is_module: bool) -> str | None:
    """Return the name of the launcher that a module or a program is; None if it is no launcher."""
    from multicard.launchers import LAUNCHERS

    for launcher in LAUNCHERS.values():
        if name in (launcher.modules if is_module else launcher.programs):
            return launcher.name
    return None


def _from_script(command: list[str]) -> str:
    """Return a command from its script on, quoted for a shell; a placeholder if it has no script."""
    for index, part in enumerate(command):
        if part.endswith(".py"):
            return shlex.join(command[index:])
    return "SCRIPT.py ..."


def _ablations(stated: str | None, devices: list[int]) -> dict[str, list[str]]:
    """Return the values of `ablate` as an entry of `vary`; empty without `--ablate`.

    They are: nothing left out, each of the stated parts left out alone, and all of them together.
    """
    from multicard.runs.parameters import ABLATIONS

    if not stated:
        return {}
    parts = list(dict.fromkeys(stated.split(",")))
    single = [ablation for ablation in ABLATIONS if ablation != "none" and "+" not in ablation]
    unknown = [part for part in parts if part not in single]
    if unknown:
        expected = listed(single, "or")
        raise UserError(f"--ablate: found {unknown[0]!r}, expected {expected}, or several with commas between")
    if parts == ["communication"] and max(devices) == 1:
        raise UserError("--ablate: found communication, expected several --devices")
    together = "+".join(part for part in single if part in parts)
    return {"ablate": ["none", *dict.fromkeys((*parts, together))]}


def _active_interpreter() -> str | None:
    """Return the interpreter of the active environment (venv, conda) if that is not multicard's own; else None."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    python = Path(active or "", "bin", "python")
    is_other = active and Path(active).resolve() != Path(sys.prefix).resolve()
    return str(python) if is_other and python.is_file() else None


def _same_samples(scenario: "Scenario") -> str | None:
    """Return a warning if a stated number of samples counts for all runs, although a varied parameter may change it.

    None if no number is stated, or if nothing varies that may change it: devices do not change samples per device.
    """
    varied = [name for name, values in scenario.varied.items() if len(values) > 1]
    args = [name.removeprefix(ARGS_PREFIX) for name in varied if name.startswith(ARGS_PREFIX)]
    devices = ["devices"] if "devices" in varied else []
    for option, changing in (("samples_per_device", args), ("samples_per_step", devices + args)):
        if option in scenario.fixed.stated() and changing:
            return (
                f"--{option.replace('_', '-')}: counts in every run, so throughput and speed-up are wrong where "
                f"{listed(changing, 'or')} changes that number"
            )
    return None


def as_yaml(config: JsonObject, command: list[str]) -> str:
    """Return the text of the configuration file, with a comment for users. `command`: as the user typed it."""
    import yaml

    return (
        f"# Written by multicard scale, for: {printable(shlex.join(command))}\n"
        "# Edit it and run it again with multicard run FILE (--dry-run lists the runs); finished runs are kept as\n"
        "# long as their parameters stay. Below args are the script's parameters, with all their values.\n"
        "# All parameters: python -m multicard.config --docs\n"
        f"{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=None)}"
    )


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """Return the name that a parameter has in the file, and its values, from the text of one `--vary`.

    >>> parse_vary("batch-size=32,64")
    ('batch_size', [32, 64])
    """
    from multicard.runs.parameter_types import own_value

    name, equals, listed_values = text.partition("=")
    values = [value.strip() for value in listed_values.split(",")]
    if not equals or not USERS_NAME.fullmatch(name) or not all(values):
        raise UserError(f"--vary: found {text!r}, expected NAME=VALUE,... such as batch-size=32,64")
    if not all(map(_has_closed_brackets, values)):
        raise UserError(
            f"--vary: found {text!r}, but commas separate values; write such values under `vary` in the file"
        )
    return _name_in_file(name), list(map(own_value, values))


def _has_closed_brackets(value: str) -> bool:
    """True if each bracket in a value has its counterpart. Else the value is a list or mapping, cut at a comma."""
    return all(value.count(opening) == value.count(closing) for opening, closing in ("[]", "()", "{}"))


def _name_in_file(name: str) -> str:
    """Return the name that a user's parameter has in the configuration file.

    >>> _name_in_file("Batch-Size")
    'batch_size'
    """
    return name.lower().replace("-", "_")


COMMAND = Command(
    MEASURE,
    "multicard scale --devices 1,2,4 -- train.py --epochs 1",
    add_arguments,
    run,
    "-- SCRIPT.py [ARGUMENT ...]",
)
