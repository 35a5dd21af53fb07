"""Write the runs of an experiment to one archive that can be given away."""

import gzip
import hashlib
import io
import json
import os
import re
import socket
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from multicard import __version__
from multicard.config.experiment import Experiment
from multicard.config.read_run import read_run
from multicard.config.runs import distinct, expand
from multicard.core.errors import UserError
from multicard.core.files import atomic_write, unwritable
from multicard.core.layout import (
    ACTIVITY,
    ACTIVITY_INDEX,
    ARCHIVED_TABLES,
    EPOCH_COLUMNS,
    EPOCHS,
    MACHINES,
    RUN,
    STEP_COLUMNS,
    STEPS,
    machine_records,
)
from multicard.core.validation import first_fault
from multicard.programs import parameters_of
from multicard.results.limits import read_machine
from multicard.results.run_files import RunFiles
from multicard.runs.parameters import run_id
from multicard.runs.record import RunRecord
from multicard.share.allowed import COLUMNS, UNSAID, Allowed, NumberedNames, given, text
from multicard.share.manifest import (
    FORMAT,
    MANIFEST,
    ConfigurationJson,
    Member,
    check_suffix,
    configuration_of,
    configured,
)
from multicard.share.whole import first_missing
from multicard.trace.tables import ACTIVITIES

# The words in the column `window` of the steps.
WINDOWS = (b"warmup", b"measured", b"profiled")
# The form of a trace's notice, without the trace's name before it.
NOTICE = text(r"process [0-9]+(, device [0-9]+)?: [\w ,;.()]+(: [\w ,;.()]+)?")
# The characters of numbers in CSV, with `nan` and `inf`, and of what separates them.
NUMBERS = b"0123456789+-.,einfa\r\n"
# The files of an archive are collected in memory up to this many bytes, and on disk if they are more.
SPOOLED_BYTES = 64 << 20


@dataclass
class Packed:
    """What went into an archive."""

    runs: list[str] = field(default_factory=list)
    # The first missing file of each run that has a record, but was skipped because it is incomplete.
    incomplete: list[Path] = field(default_factory=list)
    # Names of this account and this machine that are also words of archived text, such as a command; maybe by chance.
    names: list[str] = field(default_factory=list)


def pack(experiment: Experiment, out: Path) -> Packed:
    """Write the complete runs of an experiment, and the limits of machines in its results, to the .tar.gz `out`.

    `allowed` selects what leaves of them. Equal runs give equal bytes.

    Raises `UserError` if there is no complete run, a file of a run cannot be read, or `out` cannot be written. It is
    raised as well if a run or the configuration is not valid without private text, or two runs are the same without it.
    """
    check_suffix(out)
    problem = unwritable(out.parent)
    if problem or out.is_dir():
        raise UserError(f"{out}: cannot be written: {problem or 'it is a folder'}")
    runs, packed = Path(experiment.results) / "runs", Packed()
    for run in sorted(distinct(expand(experiment))):
        if (runs / run / RUN).exists():
            if missing := first_missing(runs / run):
                packed.incomplete.append(runs / run / missing)
            else:
                packed.runs.append(run)
    if not packed.runs:
        raise UserError(f"{runs}: found no complete run of the experiment, expected one or more to archive")
    private_records = [_read_record(runs / run) for run in packed.runs]
    allowed = Allowed(private_records)
    records = [allowed.record(_renamed(record, allowed)) for record in private_records]
    ids = [record.run for record in records]
    if twice := [old for old, new in zip(packed.runs, ids, strict=True) if ids.count(new) > 1]:
        raise UserError(f"{runs}: {twice[0]} and {twice[1]} differ only in what an archive leaves out, such as paths")

    with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as spool:
        files: list[Member] = []

        def add(name: str, content: bytes) -> None:
            spool.write(content)
            files.append(Member(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()))

        for number, path in enumerate(machine_records(Path(experiment.results)), start=1):
            limits = allowed.record(read_machine(path))
            add(f"{MACHINES}/{number}-{limits.device}.json", _json(limits.model_dump(mode="json", exclude_unset=True)))
        for folder, record in zip((runs / run for run in packed.runs), records, strict=True):
            for name, content in _members(folder, record):
                add(f"runs/{record.run}/{name}", content)
        stated = allowed.own(configuration_of(experiment))
        _check_stated(stated)
        written = [stated, [record.parameters.model_dump(mode="json") for record in records]]
        packed.names = _names_in(json.dumps(written, ensure_ascii=False))
        listed = [member.model_dump() for member in files]
        manifest = {"format": FORMAT, "multicard": __version__, "experiment": stated, "files": listed}
        spool.seek(0)
        members = ((member.name, spool.read(member.bytes)) for member in files)
        with atomic_write(out) as temporary, temporary.open("wb") as target:
            _write(target, chain([(MANIFEST, _json(manifest))], members))
    return packed


def _check_stated(stated: ConfigurationJson) -> None:
    """Raise `UserError` if a configuration is no longer valid after private text was removed from it."""
    try:
        configured(stated)
    except UserError as error:
        why = str(error).splitlines()[0]
        raise UserError(f"the configuration cannot be archived: with private text removed, {why}") from None


def _read_record(folder: Path) -> RunRecord:
    """Read the record of a run.

    Raises `UserError` if it is damaged, or is the record of a run that the folder is not named after.
    """
    record = read_run(folder)
    if record.run != folder.name:
        raise UserError(f"{folder / RUN}: run: found {record.run!r}, expected {folder.name!r}, as its folder is named")
    return record


def _renamed(record: RunRecord, allowed: Allowed) -> RunRecord:
    """Return a record without private text in its parameters, and with the id that these parameters give the run.

    Raises `UserError` if the parameters are not valid without their private text.
    """
    try:
        parameters = parameters_of(allowed.own(record.parameters.model_dump(mode="json")))
    except ValidationError as error:
        why = f"with private text removed, {first_fault(error)}"
        raise UserError(f"{record.run}: its parameters cannot be archived: {why}") from None
    return record.model_copy(update={"parameters": parameters, "run": run_id(parameters)})


def _names_in(written: str) -> list[str]:
    """Return names of this account and this machine that are words of a text.

    The account "root" and names of a single character are not looked for.
    """
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} - {"root"}
    names |= {socket.gethostname(), socket.gethostname().partition(".")[0]}
    words = (rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in sorted(names) if len(name) > 1)
    matches = (re.search(word, written) for word in words)
    return list(dict.fromkeys(match[0] for match in matches if match))


def _members(folder: Path, record: RunRecord) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of a run's files in an archive."""
    run = RunFiles(folder)
    run.check(STEPS)
    run.check(EPOCHS)
    yield STEPS, _numbers(folder / STEPS, STEP_COLUMNS)
    yield EPOCHS, _numbers(folder / EPOCHS, EPOCH_COLUMNS)
    tables, reports = {}, NumberedNames("trace")
    for name in ARCHIVED_TABLES:
        table = _table(run, name, reports)
        absent = given(f"not recorded {UNSAID}")(run.why_absent(name))
        tables[name] = {"rows": table.num_rows, "absent": absent}
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        yield f"{ACTIVITY}/{name}.parquet", buffer.getvalue()
    # A notice begins with the trace's name, which the user may have chosen, so only the part from "process" on is kept.
    without_file = (line[max(line.rfind("process "), 0) :] for line in run.trace_notices())
    notices = [notice for notice in map(NOTICE, without_file) if notice]
    index = {"profiler": record.profiler.used, "tables": tables, "notices": notices}
    yield f"{ACTIVITY}/{ACTIVITY_INDEX}", _json(index)
    yield RUN, _json(record.as_json())


def _numbers(path: Path, columns: Iterable[str]) -> bytes:
    """Return the content of a CSV file.

    Raises `UserError` if it has other columns than `columns`, or text other than numbers and `WINDOWS`.
    """
    content = path.read_bytes()
    header, _, body = content.partition(b"\n")
    if set(header.decode("utf-8", "replace").strip().split(",")) == set(columns):
        for word in WINDOWS:
            body = body.replace(word, b"")
        if not body.translate(None, NUMBERS):
            return content
    raise UserError(f"{path}: found columns or text that multicard does not write, expected numbers")


def _table(run: RunFiles, name: str, reports: NumberedNames) -> pa.Table:
    """Return what leaves of an activity table: all numbers, and the texts that the rules `COLUMNS` let leave.

    `reports` gives numbered names to the traces in the column `report`.
    """
    schema = ACTIVITIES[name].schema
    table = run.activity(name, schema.names)
    columns = []
    for field_ in schema:
        column = table[field_.name]
        try:
            if pa.types.is_string(field_.type):
                rule = reports if field_.name == "report" else COLUMNS[field_.name]
                coded = pc.dictionary_encode(column.combine_chunks())
                words = pa.array([rule(word) for word in coded.dictionary.to_pylist()], pa.string())
                columns.append(pc.take(words, coded.indices))
            else:
                columns.append(column.cast(field_.type))
        except (pa.ArrowException, AttributeError) as error:
            raise UserError(
                f"{run.folder / ACTIVITY / name}.parquet: the column {field_.name} is of type {column.type}, "
                f"expected {field_.type}"
            ) from error
    return pa.table(columns, schema)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _write(target: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    """Write members to a .tar.gz. It holds no times and owners, so equal members give equal bytes."""
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
