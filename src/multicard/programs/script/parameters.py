"""The parameters of a run of the user's own training script."""

import hashlib
import json
import re
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from multicard.launchers import LAUNCHERS
from multicard.programs.user_command import GIVEN, command_error, fill, names_in, program
from multicard.runs.parameter_types import TEXT, LauncherName, OwnName, OwnValue
from multicard.runs.parameters import ANY, JobParameters, labelled, secret_own, worded

# Pattern of the name of an environment variable.
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"

# Digits of a digest in a run id.
DIGITS = 6
# A value that matches as a whole stands in a run id unchanged.
SAFE = re.compile(r"[A-Za-z0-9._+-]{1,32}")


# Parameters of a user's program, whose meaning multicard does not know.
OwnParameters = Annotated[
    dict[OwnName, OwnValue],
    Field(
        description="The program's own parameters by name: text, numbers, or booleans, which the command of a script "
        "gets as `True` and `False`.",
        json_schema_extra={"additionalProperties": False},
    ),
]


class ScriptParameters(JobParameters):
    """Parameters of one run of the user's training script.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(ScriptParameters(command=["train.py", "-b", "{batch}"], device="cpu", devices=2, args={"batch": 32}))
    'script_train-899560_cpu2_batch-32_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("script", "devices")

    # The user's processes are not bound to CPUs, so this is no parameter here. As a class variable it is no field:
    # pydantic removes the base class's field. mypy takes that for an error.
    binding: ClassVar[str] = "none"  # type: ignore[misc]

    workload: Literal["script"] = Field("script", description="The kind of job.")
    command: tuple[Annotated[str, StringConstraints(pattern=TEXT)], ...] = worded(
        "{}",
        "The script and its arguments. A name in braces is a parameter under `args`, or one of "
        f"{', '.join(f'`{{{name}}}`' for name in GIVEN)}; `{{{{` and `}}}}` are braces.",
        min_length=1,
        strict=False,
    )
    folder: str = worded(
        "{}",
        "Folder that the script runs in, relative to the one that multicard runs in.",
        default=".",
        min_length=1,
        pattern=TEXT,
    )
    python: Annotated[str, StringConstraints(min_length=1, pattern=TEXT)] | None = worded(
        "{}", "Interpreter that runs the script; null: the one that runs multicard.", default=None
    )
    launcher: LauncherName = labelled(
        "launcher-",
        "What starts the ranks. `auto`: `python` on one device, `torchrun` on several. "
        + " ".join(f"`{name}`: {launcher.description}" for name, launcher in LAUNCHERS.items()),
        {"traces": "from traces", ANY: "{}"},
        default="auto",
    )
    environment: tuple[Annotated[str, StringConstraints(pattern=VARIABLE)], ...] = Field(
        (), strict=False, description="Names of variables of a launcher that the script gets nevertheless."
    )
    samples_per_step: int | None = labelled(
        "samples",
        "Samples of a step, of all ranks together; null: as many as the script's loaders give.",
        ge=1,
        default=None,
    )
    samples_per_device: int | None = labelled(
        "samplesperdevice",
        "The same of each device, where `samples_per_step` is null: `devices` times as many in a step.",
        ge=1,
        default=None,
    )
    steps: int = labelled("steps", "Measured steps, after the warm-up.", ge=1, default=50)
    loader_cpus: int = labelled(
        "loadercpus", "CPUs per rank for processes of the script that load data.", ge=0, default=0
    )
    count_operations: bool = labelled("counted", "Count the operations of a warm-up step, for MFU.", default=False)
    args: OwnParameters = {}  # noqa: RUF012, pydantic gives each its own

    @model_validator(mode="after")
    def _command_fits(self) -> "ScriptParameters":
        # Nothing is known about the command of a program that multicard did not launch.
        error = None if self.launcher == "traces" else command_error(self.command, self.args, GIVEN)
        if error:
            raise ValueError(error)
        if self.samples_per_step is not None and self.samples_per_device is not None:
            raise ValueError("samples_per_device: samples_per_step is stated too, expected one of them")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def script(self) -> str:
        """The script's name in a run id: its stem and a digest.

        The digest is of the command, its folder, its interpreter, and the names of the variables in `environment`.
        """
        stem = program(self.command)
        if self.command[0] == "-m":
            stem = stem.rpartition(".")[2]
        else:
            stem = PurePath(stem).stem
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", stem).strip("-.")[:40] or "script"
        return f"{stem}-{_digest([self.command, self.folder, self.python, sorted(self.environment)])}"

    @property
    def id_parts(self) -> list[str]:
        """The script's own parameters with their values, in the order of the command; sorted if that is not known.

        A value that looks like a secret is replaced by a digest.
        """
        secrets = secret_own(self.command, self.args)
        parts = []
        for name in sorted(self.args) if self.launcher == "traces" else names_in(self.command):
            if name in self.args:
                value = self.args[name]
                parts.append(f"{name}-{_digest(str(value)) if name in secrets else slug(value)}")
        return parts

    @property
    def launched_by(self) -> str:
        """Name of the launcher; for `auto`, the launcher that it selects."""
        if self.launcher != "auto":
            return self.launcher
        return "torchrun" if self.devices > 1 else "python"

    @property
    def measured_steps(self) -> int:
        """Number of measured steps, unless the script itself marks how many steps it trains."""
        return self.steps

    @property
    def counts_operations(self) -> bool:
        """True if the floating-point operations of one step are counted."""
        return self.count_operations

    @property
    def stated_samples(self) -> int | None:
        """Samples of a step that the user states, of all ranks together; None if they are counted from the loaders."""
        if self.samples_per_device:
            return self.samples_per_device * self.devices
        return self.samples_per_step

    @property
    def ranks(self) -> int:
        """Number of processes that train."""
        return LAUNCHERS[self.launched_by].ranks(self.devices)

    @property
    def distributed(self) -> bool:
        """True if several ranks form a process group."""
        return self.ranks > 1

    @property
    def loader_workers(self) -> int:
        """Number of processes that load data, of all ranks together: as many as `loader_cpus` states for each rank."""
        return self.loader_cpus * self.ranks

    def arguments(self, run_dir: str) -> list[str]:
        """Return the command with values in place of the names in braces.

        `run_dir`: value of `{run_dir}`, a folder in which the script may write.
        """
        given = {name: getattr(self, name) for name in ("devices", "devices_per_node", "nodes", "repeat")}
        return fill(self.command, {**self.args, **given, "seed": self.seed + self.repeat - 1, "run_dir": run_dir})


def slug(value: Any) -> str:
    """Return the text of a value in a run id.

    If characters have to be replaced or cut off, or if the text could be read as several parameters, a digest of the
    whole value is appended.

    >>> slug(0.5), slug("a b/c"), slug("x_y-z")
    ('0.5', 'a-b-c-eb69ba', 'x-y-z-7f7192')
    """
    text = str(value)
    # In a run id "_" separates parameters, and "-" separates name and value. So "x_y-z" could be the value x, and a
    # parameter y of value z.
    could_be_parameters = re.search("_.*-", text) is not None
    if SAFE.fullmatch(text) and not could_be_parameters:
        return text
    readable = re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-")[:24]
    digest = _digest(text)
    return f"{readable}-{digest}" if readable else digest


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:DIGITS]
