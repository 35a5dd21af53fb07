"""`multicard scale`."""

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
    Command,
    add_device,
    device_of,
    needs_writing,
    numbers_of_devices,
    results_of,
)
from multicard.cli._own_command import as_in_file, parse_command, resolve_names
from multicard.cli.run import add_failures
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import plural

OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # may have dashes and capitals, which the file does not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to vary, and how to run it."""
    add = parser.add_argument
    add("--devices", required=True, metavar="N,...", help="numbers of GPUs, or of processes on CPUs, such as 1,2,4")
    add(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help="a parameter of your own and its values; the command names it in braces",
    )  # fmt: skip
    add("--steps", type=int, default=50, help="measured steps (default: %(default)s)")
    add("--warmup", type=int, metavar="N", help="warm-up steps before the measured ones (default: 10)")
    add("--profiled-steps", type=int, metavar="N", help="steps that a profiler records after them (default: 10)")
    add("--repeats", type=int, default=1, help="repeats of each configuration; two or more give intervals")
    add_device(parser)
    add("--python", metavar="FILE", help="interpreter that runs the script (default: the active environment's)")
    add(
        "--launcher",
        default="auto",
        help="what starts the ranks; auto (default): python, or torchrun on several devices",
    )
    add(
        "--samples-per-step",
        type=int,
        metavar="N",
        help="samples of a step, of all ranks together, if its loaders do not tell",
    )
    add(
        "--samples-per-device", type=int, metavar="N", help="the same of each device, where each has a batch of its own"
    )
    add(
        "--count-operations", action="store_true",
        help="count the operations of a warm-up step, for MFU",
    )  # fmt: skip
    add(
        "--pass", action="append", default=[], dest="environment", metavar="VARIABLE",
        help="environment variable of another launcher that the script gets nevertheless, such as MASTER_ADDR",
    )  # fmt: skip
    add("--time-limit-min", type=int, default=60, metavar="N", help="minutes per run (default: %(default)s)")
    add(
        "--results",
        metavar="FOLDER",
        help="where everything goes (default: results; with --config-out NAME.yaml results-NAME)",
    )
    add(
        "--config-out",
        type=Path,
        default=OF_SCALE,
        metavar="FILE",
        help="configuration to write (default: %(default)s)",
    )
    add("--overwrite", action="store_true", help="replace a configuration file that differs")
    add_failures(parser)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="list the runs; write and run nothing")
    only.add_argument(
        "--write-only", action="store_true",
        help="write the configuration file and run nothing, as on a login node",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write the configuration, run it, and print its results; exit as `run_and_print` does."""
    from multicard.archive.matrix import Matrix
    from multicard.cli._run_table import print_runs
    from multicard.cli.run import check_start, run_and_print
    from multicard.core.pipeline import pipeline_folder
    from multicard.experiment.load import check

    config, path = configuration(arguments), arguments.config_out
    earlier = None if arguments.overwrite else _extended(path, config)
    kept, config = earlier not in (None, config), earlier or config
    matrix = Matrix.plan(check(config, "multicard scale"))
    if warning := _same_samples(config):
        print(warning, flush=True)
    if not path.exists():
        _refuse_others(Path(config["results"]))
    for name in arguments.environment:
        if name not in os.environ and not arguments.write_only:
            print(f"--pass: {name} is not set, so the script does not get it", file=sys.stderr, flush=True)
    if not arguments.write_only:
        check_start(matrix, planning=arguments.dry_run)
    if arguments.dry_run:
        print_runs(matrix)
        return
    _write(path, as_yaml(config, arguments.rest), arguments.overwrite or earlier is not None)
    print(f"configuration: {path}{', extended by this' if kept else ''}", flush=True)
    print(f"interpreter: {config['scenarios']['scale']['fixed'].get('python', sys.executable)}", flush=True)
    if arguments.write_only:
        profile = pipeline_folder() / "profiles/slurm"
        print(f"next: multicard run {shlex.quote(str(path))}, on a cluster with --profile, such as {profile}")
        return
    run_and_print(matrix, path, retry_failed=arguments.retry_failed, keep_going=arguments.keep_going)


def _refuse_others(results: Path) -> None:
    """Refuse a folder for results that holds files of something else, which could be replaced."""
    if results.is_dir() and any(results.iterdir()) and not any(results.glob("runs/*/run.json")):
        raise UserError(
            f"{results}: holds something else than results of multicard; --results FOLDER names another one"
        )


def _write(path: Path, text: str, overwrite: bool) -> None:
    """Write the configuration file, unless another one is there."""
    more = f", whose results go to a folder of their own, and multicard run {path} runs it as it is"
    kept = " and keeps what was measured with unchanged parameters"
    if needs_writing(path, overwrite, lambda: path.read_bytes() == text.encode(), more, kept):
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def configuration(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the configuration file is to say.

    Raises
    ------
    UserError
        If the arguments do not fit together.
    """
    python, command = parse_command(arguments.rest, arguments.launcher)
    varied = dict(map(_parse_vary, arguments.vary))
    if len(varied) < len(arguments.vary):
        raise UserError("--vary: names a parameter twice, expected --vary NAME=VALUE,... once for each")
    command = resolve_names(command, varied)
    devices = numbers_of_devices("--devices", arguments.devices)
    device = device_of(arguments.device)
    if arguments.write_only and arguments.device == "auto" and device == "cpu":
        raise UserError("--write-only: this machine has no GPU, and others may; state --device cuda or --device cpu")
    stated = {
        "python": arguments.python or python or _active_interpreter(),
        "launcher": arguments.launcher,
        "environment": arguments.environment,
        "samples_per_step": arguments.samples_per_step,
        "samples_per_device": arguments.samples_per_device,
        "count_operations": arguments.count_operations or None,
        "warmup_steps": arguments.warmup,
        "profiled_steps": arguments.profiled_steps,
    }
    fixed = {"workload": "script", "command": command, "folder": ".", "device": device, "steps": arguments.steps}
    fixed |= {name: value for name, value in stated.items() if value is not None and value != []}
    return {
        "results": arguments.results or results_of(arguments.config_out, OF_SCALE),
        "time_limit_min": arguments.time_limit_min,
        "scenarios": {"scale": _scenario(fixed, devices, varied, arguments.repeats)},
    }


def _scenario(fixed: dict[str, Any], devices: list[int], varied: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The scenario of a command."""
    from multicard.workloads.script.parameters import program
    from multicard.workloads.script.workload import default_figures

    several, name = len(devices) > 1, Path(program(fixed["command"])).name
    what = "GPU" if fixed["device"] == "cuda" else "process"
    return {
        "question": f"How much faster is {name} with more {plural(2, what)}, and where does its time go?"
        if several
        else f"Where does the time of {name} go?",
        "fixed": fixed,
        "vary": {"devices": devices} | ({"args": varied} if varied else {}),
        "repeats": repeats,
        "figures": list(default_figures(several, fixed["device"])),
    }


def _active_interpreter() -> str | None:
    """Interpreter of the environment that is active, if that is another one than multicard's."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    python = Path(active or "", "bin", "python")
    is_other = active and Path(active).resolve() != Path(sys.prefix).resolve()
    return str(python) if is_other and python.is_file() else None


def _extended(path: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """An earlier configuration of the same command with more devices, values or repeats; None where it is another one.

    A file that was edited by hand is another one: its changes would be lost.
    """
    import yaml

    try:
        before = yaml.safe_load(path.read_text(encoding="utf-8"))
        [(name, old)] = before["scenarios"].items()
        devices, values, repeats = old["vary"]["devices"], old["vary"].get("args", {}), old["repeats"]
        [new] = config["scenarios"].values()
        own = new["vary"].get("args", {})
        same = before | {"time_limit_min": None} == {
            **config, "time_limit_min": None, "scenarios": {name: _scenario(new["fixed"], devices, values, repeats)},
        }  # fmt: skip
        if not same or values.keys() != own.keys():
            return None
        args = {name: list(dict.fromkeys([*values[name], *own[name]])) for name in own}
        scenario = _scenario(
            new["fixed"], sorted({*devices, *new["vary"]["devices"]}), args, max(repeats, new["repeats"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None
    return config | {"scenarios": {name: scenario}}


def _same_samples(config: dict[str, Any]) -> str | None:
    """A warning that a stated number of samples counts for all runs; None without one, or where nothing varies."""
    from multicard.core.text import listed

    [scenario] = config["scenarios"].values()
    fixed, vary = scenario["fixed"], scenario["vary"]
    each, samples = fixed.get("samples_per_device"), fixed.get("samples_per_step")
    counts = vary.get("args", {}) if each else {"devices": vary["devices"], **vary.get("args", {})}
    varied = [name for name, values in counts.items() if len(values) > 1]
    if (each or samples) is None or not varied:
        return None
    option, of = (
        ("device", f"{each} samples of each device") if each else ("step", f"{samples} samples of all ranks together")
    )
    return (
        f"--samples-per-{option}: a step counts as {of} in every run, so throughput and speed-up are wrong where "
        f"{listed(varied, 'or')} changes that number"
    )


def as_yaml(config: dict[str, Any], command: list[str]) -> str:
    """The configuration file, with comments for who edits it."""
    from multicard.core.text import printable

    [(name, scenario)] = config["scenarios"].items()
    remarks = {
        "command": "a name in braces is one of args below, or {run_dir}, {devices}, {seed}, ...",
        "folder": "where the script runs, relative to where multicard runs",
        "steps": "measured ones, after warmup_steps (10) and before profiled_steps (10)",
        "args": "your own parameters, with all values that the runs combine",
    }

    def lines(values: dict[str, Any], indent: int) -> list[str]:
        """A line for each key, with its remark."""
        texts = ((key, f"{' ' * indent}{key}: {_inline_yaml(value)}") for key, value in values.items())
        return [f"{text} # {remarks[key]}" if key in remarks else text for key, text in texts]

    return "\n".join(
        [
            "# Written by multicard scale, for:",
            f"#     {printable(shlex.join(command))}",
            "# To change it, edit it and run it again; what has been measured stays as long as its parameters do:",
            "#     multicard run FILE --dry-run       lists the runs",
            "#     multicard run FILE                runs what is missing",
            "# All parameters: python -m multicard.experiment --docs",
            *lines({key: config[key] for key in ("results", "time_limit_min")}, 0),
            "scenarios:",
            f"  {name}:",
            *lines({"question": scenario["question"]}, 4),
            "    fixed:",
            *lines(scenario["fixed"], 6),
            "    vary:",
            *lines(scenario["vary"], 6),
            *lines({key: scenario[key] for key in ("repeats", "figures")}, 4),
            "",
        ]
    )


def _inline_yaml(value: Any) -> str:
    """A value as YAML in one line."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)[1:-2]


def _parse_vary(text: str) -> tuple[str, list[Any]]:
    """Name and values of one `--vary`."""
    name, equals, listed = text.partition("=")
    values = [value.strip() for value in listed.split(",")]
    if not equals or not OWN_NAME.fullmatch(name) or not all(values):
        raise UserError(f"--vary: found {text!r}, expected NAME=VALUE,... such as batch-size=32,64")
    if any(value.count(one) != value.count(other) for value in values for one, other in ("[]", "()", "{}")):
        raise UserError(f"--vary: found {text!r}, whose commas part values; state such values under `vary` in the file")
    return as_in_file(name), [_value(value) for value in values]


def _value(text: str) -> Any:
    """A number where it is written as Python would write it, so that the command gets it as it was stated."""
    for kind in (int, float):
        try:
            if str(kind(text)) == text and text not in ("nan", "inf", "-inf"):
                return kind(text)
        except ValueError:
            pass
    return text


COMMAND = Command(
    "scale",
    10,
    "measure your own training script on several numbers of devices, unchanged",
    add_arguments,
    run,
    MEASURE,
    "multicard scale --devices 1,2,4 -- train.py --epochs 1",
    rest="-- SCRIPT.py [ARGUMENT ...]",
)
