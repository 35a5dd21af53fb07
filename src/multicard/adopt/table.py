"""The table of traces that a user writes: one row per trace, or per run of several."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.text import natural
from multicard.experiment.parameters import OwnName, run_id
from multicard.experiment.workload import parameters_of
from multicard.profilers.interface import Profiler
from multicard.trace.files import READABLE, profiler_of

# Columns that are no parameters of the user's own.
NEEDED = ("trace", "devices")
OPTIONAL = ("nodes", "repeat", "step_range", "samples_per_step", "warmup_steps", "rank", "program")
NUMBERS = {"devices": 1, "nodes": 1, "repeat": 1, "samples_per_step": 1, "warmup_steps": 0, "rank": 0}  # at least
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.+-]+")


@dataclass
class TracedRun:
    """What a table states of one run.

    Attributes
    ----------
    parameters
        Of the workload `adopted`, as JSON has them.
    where
        The row, for messages.
    files
        Its traces in order, each with its rank where that is stated.
    facts
        `step_range`, `samples_per_step` and `warmup_steps` where stated.
    """

    parameters: dict[str, Any]
    where: str
    facts: dict[str, Any]
    files: list[tuple[Path, int | None]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Name of the run."""
        return run_id(parameters_of(self.parameters))

    @property
    def profiler(self) -> Profiler:
        """What recorded the traces."""
        profiler = profiler_of(self.files[0][0])
        assert profiler is not None  # `read_table` takes no others
        return profiler


def read_table(path: Path, step_range: str | None = None) -> list[TracedRun]:
    """Read the runs of a table: CSV with a header; paths are relative to its folder.

    Parameters
    ----------
    step_range
        Name of the ranges that are steps, where a row states none.

    Raises
    ------
    UserError
        One line per error.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [_column(cell) for cell in next(reader, [])]
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if errors := _header_errors(path, header) or ([] if rows else [f"{path}: holds no row below its header"]):
        raise UserError(*errors)
    program = NOT_IN_A_NAME.sub("-", path.stem).strip("-.+")[:40] or "traces"
    runs: dict[str, TracedRun] = {}
    for line, cells in rows:
        where = f"{path}, line {line}"
        if len(cells) != len(header):
            errors.append(f"{where}: found {len(cells)} cells, expected {len(header)} as in the header")
            continue
        stated = dict(zip(header, cells, strict=True))
        try:
            _add(runs, _run(stated, where, program, step_range), _files(stated, where, path.parent))
        except UserError as error:
            errors.append(str(error))
    seen: dict[Path, str] = {}
    for run in runs.values():
        for file, _ in run.files:
            before = seen.setdefault(file.resolve(), run.where)
            if before != run.where:
                errors.append(f"{run.where}: {file}: is the trace of another run already ({before})")
    if errors:
        raise UserError(*errors)
    return list(runs.values())


def _column(cell: str) -> str:
    return cell.strip().lower().replace("-", "_").replace(" ", "_")


def _header_errors(path: Path, header: list[str]) -> list[str]:
    pattern = next(each.pattern for each in OwnName.__metadata__ if getattr(each, "pattern", None))
    errors = [f"{path}: found no column {name}" for name in NEEDED if name not in header]
    errors += [f"{path}: the column {name} is there twice" for name in dict.fromkeys(header) if header.count(name) > 1]
    return errors + [
        f"{path}: the column {name!r} is no name of a parameter, expected letters, digits and _, a letter first"
        for name in dict.fromkeys(header)
        if not re.fullmatch(pattern, name)
    ]


def _run(stated: Mapping[str, str], where: str, program: str, step_range: str | None) -> TracedRun:
    numbers = {name: _number(where, name, cell) for name, cell in stated.items() if name in NUMBERS and cell}
    if "devices" not in numbers:
        raise UserError(f"{where}: devices: is empty, expected the number of GPUs of the run")
    own = {name: cell for name, cell in stated.items() if name not in (*NEEDED, *OPTIONAL)}
    if empty := next((name for name, cell in own.items() if not cell), None):
        raise UserError(f"{where}: {empty}: is empty; state the value of every row, or leave the column out")
    parameters = {name: numbers[name] for name in ("devices", "nodes", "repeat") if name in numbers}
    parameters |= {"workload": "adopted", "program": stated.get("program") or program, "args": own}
    facts = {
        "step_range": stated.get("step_range") or step_range,
        "samples_per_step": numbers.get("samples_per_step"),
        "warmup_steps": numbers.get("warmup_steps", 0),
    }
    try:
        checked = parameters_of(parameters)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{where}: {fault['loc'][0]}: found {fault['input']!r}: {fault['msg']}") from error
    if checked.devices % checked.nodes:
        raise UserError(f"{where}: {checked.devices} devices cannot be shared equally by {checked.nodes} nodes")
    return TracedRun(checked.stated(), where, facts)


def _number(where: str, name: str, cell: str) -> int:
    if not re.fullmatch(r"\d{1,9}", cell) or int(cell) < NUMBERS[name]:
        raise UserError(f"{where}: {name}: found {cell!r}, expected a whole number of at least {NUMBERS[name]}")
    return int(cell)


def _files(stated: Mapping[str, str], where: str, folder: Path) -> list[tuple[Path, int | None]]:
    """The traces of a row: one file, or those of a pattern such as `run/*.json.gz`, rank10 after rank2."""
    trace, rank = stated["trace"], stated.get("rank")
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
    if rank and len(paths) > 1:
        raise UserError(f"{where}: rank: found {rank} for {len(paths)} traces, expected a row for each rank")
    return [(path, int(rank) if rank else None) for path in paths]


def _add(runs: dict[str, TracedRun], run: TracedRun, files: list[tuple[Path, int | None]]) -> None:
    """Add a row to the runs: as a run, or as the traces of another rank."""
    known = runs.setdefault(run.id, run)
    if known is not run:
        ranks = [rank for _, rank in known.files]
        if None in ranks or files[0][1] is None or files[0][1] in ranks:
            raise UserError(
                f"{run.where}: is the same run as {known.where}; state another repeat, or of traces of one run the rank"
            )
        if differ := next((name for name, value in run.facts.items() if known.facts[name] != value), None):
            raise UserError(f"{run.where}: {differ}: differs from that of the same run, {known.where}")
        if profiler_of(files[0][0]) is not known.profiler:
            raise UserError(f"{run.where}: is a trace of another profiler than that of the same run, {known.where}")
    known.files += files
