"""The table of traces that a user writes: one row per run."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.text import natural
from multicard.core.validation import expectation
from multicard.experiment.workload import parameters_of
from multicard.profilers.interface import Profiler
from multicard.runs.parameter_types import OwnName
from multicard.runs.parameters import run_id
from multicard.trace.files import READABLE, profiler_of

# Columns that are no parameters of the user's own, and of numbers the least.
NUMBERS = {"devices": 1, "nodes": 1, "repeat": 1, "samples_per_step": 1, "warmup_steps": 0}
NEEDED = ("trace", "devices")
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.+-]+")


@dataclass
class TracedRun:
    """What a table states of one run."""

    parameters: dict[str, Any]  # of the workload `adopted`, as JSON has them
    where: str  # the row, for messages
    files: list[Path]  # its traces in order
    facts: dict[str, Any]  # `samples_per_step` and `warmup_steps` where stated

    @property
    def id(self) -> str:
        """Name of the run."""
        return run_id(parameters_of(self.parameters))

    @property
    def profiler(self) -> Profiler:
        """What recorded the traces."""
        profiler = profiler_of(self.files[0])
        assert profiler is not None  # `read_table` takes no others
        return profiler


def read_table(path: Path) -> list[TracedRun]:
    """Read the runs of a table: CSV with a header; paths are relative to its folder.

    Raises `UserError` with a line per error.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [cell.strip().lower().replace("-", "_").replace(" ", "_") for cell in next(reader, [])]
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if errors := _header_errors(path, header) or ([] if rows else [f"{path}: holds no row below its header"]):
        raise UserError(*errors)
    program = NOT_IN_A_NAME.sub("-", path.stem).strip("-.+")[:40] or "traces"
    runs: dict[str, TracedRun] = {}
    for line, cells in rows:
        where = f"{path}, line {line}"
        try:
            if len(cells) != len(header):
                raise UserError(f"{where}: found {len(cells)} cells, expected {len(header)} as in the header")
            run = _run(dict(zip(header, cells, strict=True)), where, program, path.parent)
            known = runs.setdefault(run.id, run)
            if known is not run:
                raise UserError(f"{where}: is the same run as {known.where}; state another repeat")
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError(*errors)
    return list(runs.values())


def _header_errors(path: Path, header: list[str]) -> list[str]:
    pattern = next(each.pattern for each in OwnName.__metadata__ if getattr(each, "pattern", None))
    errors = [f"{path}: found no column {name}" for name in NEEDED if name not in header]
    errors += [f"{path}: the column {name} is there twice" for name in dict.fromkeys(header) if header.count(name) > 1]
    return errors + [
        f"{path}: the column {name!r} is no name of a parameter, expected letters, digits and _, a letter first"
        for name in header
        if not re.fullmatch(pattern, name)
    ]


def _run(stated: Mapping[str, str], where: str, program: str, folder: Path) -> TracedRun:
    numbers = {name: _number(where, name, cell) for name, cell in stated.items() if name in NUMBERS and cell}
    if "devices" not in numbers:
        raise UserError(f"{where}: devices: is empty, expected the number of GPUs of the run")
    own = {name: cell for name, cell in stated.items() if name not in (*NEEDED, *NUMBERS)}
    if empty := next((name for name, cell in own.items() if not cell), None):
        raise UserError(f"{where}: {empty}: is empty; state the value of every row, or leave the column out")
    parameters = {name: numbers[name] for name in ("devices", "nodes", "repeat") if name in numbers}
    try:
        checked = parameters_of(parameters | {"workload": "adopted", "program": program, "args": own})
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{where}: {fault['loc'][0]}: found {fault['input']!r}, {expectation(fault)}") from error
    if checked.devices % checked.nodes:
        raise UserError(f"{where}: {checked.devices} devices cannot be shared equally by {checked.nodes} nodes")
    facts = {"samples_per_step": numbers.get("samples_per_step"), "warmup_steps": numbers.get("warmup_steps", 0)}
    return TracedRun(checked.stated(), where, _files(stated["trace"], where, folder), facts)


def _number(where: str, name: str, cell: str) -> int:
    if not re.fullmatch(r"\d{1,9}", cell) or int(cell) < NUMBERS[name]:
        raise UserError(f"{where}: {name}: found {cell!r}, expected a whole number of at least {NUMBERS[name]}")
    return int(cell)


def _files(trace: str, where: str, folder: Path) -> list[Path]:
    """The traces of a row: one file, or those of a pattern such as `run/*.json.gz`, rank10 after rank2."""
    if not trace:
        raise UserError(f"{where}: trace: is empty, expected a file")
    paths = [folder / trace]
    if not paths[0].exists() and re.search(r"[*?\[]", trace):
        found = map(Path, glob(str(folder / trace)))  # noqa: PTH207, Path.glob takes no absolute patterns
        paths = sorted(found, key=lambda path: natural(str(path)))
    if not paths or not all(path.is_file() for path in paths):
        raise UserError(f"{where}: {folder / trace}: no such file")
    for path in paths:
        if profiler_of(path) is None:
            raise UserError(f"{where}: {path}: is no trace by its name, expected *{', *'.join(READABLE)}")
    if len(set(map(profiler_of, paths))) > 1:
        raise UserError(f"{where}: {trace}: are traces of several profilers, expected those of one run")
    return paths
