"""The table of traces that a user writes: one row per run."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.text import natural
from multicard.core.validation import expectation
from multicard.profilers.interface import Profiler
from multicard.programs import USER_PROGRAM, parameters_of
from multicard.runs.parameter_types import OWN_NAME
from multicard.runs.parameters import run_id
from multicard.trace.files import READABLE, profiler_of

# Columns of whole numbers, with the least value that each allows. They are not among the user's own parameters.
LEAST_VALUES = {"devices": 1, "nodes": 1, "repeat": 1, "samples_per_step": 1, "warmup_steps": 0}
REQUIRED = ("trace", "devices")


@dataclass(frozen=True)
class TracedRun:
    """A run, as a row of a table states it."""

    # Parameters of `USER_PROGRAM`, as JSON stores them.
    parameters: Mapping[str, Any]
    # Names the file and the line of the row in messages.
    where: str
    # The traces of the run, in natural order of their names; at least one.
    files: list[Path]
    # Samples of a step, of all ranks together; None if the row does not state them.
    samples_per_step: int | None
    # Steps at the start of the traces that are not counted.
    warmup_steps: int

    @property
    def id(self) -> str:
        """Name of the run."""
        return run_id(parameters_of(self.parameters))

    @property
    def profiler(self) -> Profiler:
        """The profiler that recorded the traces."""
        profiler = profiler_of(self.files[0])
        # `read_table` refuses files that no profiler writes.
        assert profiler is not None
        return profiler


class _Line(NamedTuple):
    """The cells of one line of a table, and its number in the file."""

    number: int
    cells: list[str]


@dataclass(frozen=True)
class _TableText:
    """The text of a table."""

    header: list[str]
    lines: list[_Line]


def read_table(path: Path) -> list[TracedRun]:
    """Read the runs of a table: CSV with a header; paths are relative to its folder.

    Raises `UserError` with a line per error.
    """
    table = _read_cells(path)
    errors = _header_errors(path, table.header)
    if not errors and not table.lines:
        errors = [f"{path}: holds no row below its header"]
    if errors:
        raise UserError(*errors)
    program = _program_name(path)
    runs: dict[str, TracedRun] = {}
    for line in table.lines:
        where = f"{path}, line {line.number}"
        try:
            if len(line.cells) != len(table.header):
                raise UserError(
                    f"{where}: found {len(line.cells)} cells, expected {len(table.header)} as in the header"
                )
            stated = dict(zip(table.header, line.cells, strict=True))
            run = _run(stated, where, program, path.parent)
            if run.id in runs:
                raise UserError(f"{where}: is the same run as {runs[run.id].where}; state another repeat")
            runs[run.id] = run
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError(*errors)
    return list(runs.values())


def _read_cells(path: Path) -> _TableText:
    """Read a CSV file, without empty lines and spaces around cells; the header `Batch Size` becomes `batch_size`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [re.sub("[- ]", "_", cell.strip().lower()) for cell in next(reader, [])]
            lines = [_Line(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {reason}") from error
    return _TableText(header, lines)


def _program_name(path: Path) -> str:
    """Return a name for the program of the runs, made from the file name of their table.

    Each sequence of characters that such a name may not have becomes "-". If nothing remains, the name is "traces".

    >>> _program_name(Path("our runs!.csv")), _program_name(Path("β.csv"))
    ('our-runs', 'traces')
    """
    name = re.sub(r"[^A-Za-z0-9.+-]+", "-", path.stem).strip("-.+")
    return name[:40] or "traces"


def _header_errors(path: Path, header: Sequence[str]) -> list[str]:
    missing = [name for name in REQUIRED if name not in header]
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    misnamed = [name for name in header if not re.fullmatch(OWN_NAME, name)]
    return [
        *(f"{path}: found no column {name}" for name in missing),
        *(f"{path}: the column {name} is there twice" for name in repeated),
        *(
            f"{path}: the column {name!r} is no name of a parameter, expected letters, digits and _, a letter first"
            for name in misnamed
        ),
    ]


def _run(stated: Mapping[str, str], where: str, program: str, folder: Path) -> TracedRun:
    """Return a run, given the cells of its row by column; raise `UserError` if a cell is not valid.

    `folder`: the one that paths of traces are relative to.
    """
    numbers = {name: _number(where, name, stated[name]) for name in stated if name in LEAST_VALUES and stated[name]}
    if "devices" not in numbers:
        raise UserError(f"{where}: devices: is empty, expected the number of GPUs of the run")
    arguments = {name: cell for name, cell in stated.items() if name not in (*REQUIRED, *LEAST_VALUES)}
    for name, cell in arguments.items():
        if not cell:
            raise UserError(f"{where}: {name}: is empty; state the value of every row, or leave the column out")
    counts: dict[str, int] = {name: numbers[name] for name in ("devices", "nodes", "repeat") if name in numbers}
    try:
        values = {"workload": USER_PROGRAM.name, "command": [program], "launcher": "traces", "args": arguments}
        checked = parameters_of({**values, **counts})
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{where}: {fault['loc'][0]}: found {fault['input']!r}, {expectation(fault)}") from error
    if checked.devices % checked.nodes:
        raise UserError(f"{where}: {checked.devices} devices cannot be shared equally by {checked.nodes} nodes")
    return TracedRun(
        parameters=checked.stated(),
        where=where,
        files=_files(stated["trace"], where, folder),
        samples_per_step=numbers.get("samples_per_step"),
        warmup_steps=numbers.get("warmup_steps", 0),
    )


def _number(where: str, name: str, cell: str) -> int:
    """Return the whole number of a cell; raise `UserError` if the cell holds no such number, or one below the least."""
    if not re.fullmatch(r"\d{1,9}", cell) or int(cell) < LEAST_VALUES[name]:
        raise UserError(f"{where}: {name}: found {cell!r}, expected a whole number of at least {LEAST_VALUES[name]}")
    return int(cell)


def _files(trace: str, where: str, folder: Path) -> list[Path]:
    """Return the trace files of a row, sorted in natural order: rank2 before rank10.

    `trace`: the path of a file, or a pattern such as `run/*.json.gz`, relative to `folder`. A file whose own path looks
    like a pattern counts as that file.

    Raises `UserError` if there is no such file, or the files are not traces of one profiler, by their names.
    """
    if not trace:
        raise UserError(f"{where}: trace: is empty, expected a file")
    paths = [folder / trace]
    is_pattern = re.search(r"[*?\[]", trace) is not None
    if is_pattern and not paths[0].exists():
        # Path.glob takes no absolute patterns.
        matches = glob(str(folder / trace))  # noqa: PTH207
        paths = [Path(match) for match in sorted(matches, key=natural)]
    if not paths or not all(path.is_file() for path in paths):
        raise UserError(f"{where}: {folder / trace}: no such file")
    profilers = [profiler_of(path) for path in paths]
    for path, profiler in zip(paths, profilers, strict=True):
        if profiler is None:
            raise UserError(f"{where}: {path}: is no trace by its name, expected *{', *'.join(READABLE)}")
    if len(set(profilers)) > 1:
        raise UserError(f"{where}: {trace}: are traces of several profilers, expected those of one run")
    return paths
