"""Write the runs of an experiment to one archive that can be given away."""

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from multicard import __version__
from multicard.analysis.machine_limits import read_machine
from multicard.archive.configuration import configuration_of
from multicard.archive.manifest import FILES, FORMAT, MANIFEST, check_suffix
from multicard.archive.scrub import Scrubber
from multicard.core.errors import UserError
from multicard.core.files import atomic_write, read_json, unwritable
from multicard.core.layout import (
    ACTIVITY,
    ACTIVITY_INDEX,
    ACTIVITY_TABLES,
    EPOCH_COLUMNS,
    EPOCHS,
    MACHINES,
    RUN,
    STEP_COLUMNS,
    STEPS,
    machine_records,
)
from multicard.experiment.config import Experiment
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import distinct, expand
from multicard.experiment.workload import WORKLOADS, parameters_of

# Names of kernels and functions are made by compilers: long words of letters and digits are no keys there.
COMPILED = ("kernel", "function", "class", "operation", "collective", "api", "grid", "block")
WINDOWS = (b"warmup", b"measured", b"profiled")
NUMBERS = b"0123456789+-.,einfa\r\n"  # of CSV, with those that are not finite
EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file can say
SPOOLED_BYTES = 64 << 20


@dataclass
class Packed:
    """What went into an archive: its runs, and those that were skipped: begun, and incomplete."""

    runs: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


def pack(experiment: Experiment, out: Path) -> Packed:
    """Write the runs of an experiment that are there, and the limits of machines in its results, to `out`.

    That is a .tar.gz or a .zip. Left out are traces, logs and saved weights; replaced is what names people, machines
    and places. Equal runs give equal bytes.

    Raises
    ------
    UserError
        If there is no complete run, a record cannot be read, a name that cannot be replaced names somebody, or `out`
        cannot be written to.
    """
    check_suffix(out)
    problem = unwritable(out.parent)
    if problem or out.is_dir():
        raise UserError(f"{out}: cannot be written: {problem or 'it is a folder'}")
    runs, packed = Path(experiment.results) / "runs", Packed()
    for run in sorted(distinct(expand(experiment))):
        if (runs / run / RUN).exists():
            complete = all((runs / run / name).exists() for name in FILES)
            (packed.runs if complete else packed.incomplete).append(run)
    if not packed.runs:
        raise UserError(f"{runs}: found no complete run of the experiment, expected one or more to archive")
    records = [_read_record(runs / run) for run in packed.runs]
    machines = [read_machine(path).model_dump(mode="json") for path in machine_records(Path(experiment.results))]
    scrubber = Scrubber.of([*records, *machines])
    renamed = [_without_names(record, scrubber) for record in records]
    ids = [record["run"] for record in renamed]
    if twice := [old for old, new in zip(packed.runs, ids, strict=True) if ids.count(new) > 1]:
        raise UserError(f"{runs}: {twice[0]} and {twice[1]} differ only in what an archive leaves out, such as paths")
    for section, names in (("datasets", experiment.datasets), ("models", experiment.models)):
        for name in names:
            word = scrubber.holds(name)
            if word:
                raise UserError(f"{section}.{name}: holds the name {word!r}, and so do the names of its runs")

    with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as spool:
        files, known = [], {}

        def add(name: str, content: bytes) -> None:
            spool.write(content)
            files.append({"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})

        for number, limits in enumerate(machines, start=1):
            add(f"{MACHINES}/{number}-{limits['device']}.json", _json(scrubber.machine(limits)))
        for folder, record in zip((runs / run for run in packed.runs), renamed, strict=True):
            for name, content in _members(folder, record, scrubber, known):
                add(f"runs/{record['run']}/{name}", content)
        manifest = {
            "format": FORMAT,
            "multicard": __version__,
            "experiment": scrubber.value(configuration_of(experiment)),
            "runs": [{key: record[key] for key in ("run", "outcome", "parameters")} for record in renamed],
            "files": files,
        }
        spool.seek(0)
        members = ((file["name"], spool.read(file["bytes"])) for file in files)
        with atomic_write(out) as temporary, temporary.open("wb") as target:
            (_write_zip if out.suffix == ".zip" else _write_tar)(target, _first(manifest, members))
    return packed


def _read_record(folder: Path) -> dict[str, Any]:
    """Read run.json of a run whose name is made of its parameters."""
    try:
        record = read_json(folder / RUN)
        made = run_id(parameters_of(record["parameters"]))
        found = record["run"]
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{folder / RUN}: parameters.{fault['loc'][0]}: {fault['msg']}") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{folder / RUN}: not the record of a run: {error}") from error
    if not made == found == folder.name:
        raise UserError(f"{folder / RUN}: found the run {found}, expected {folder.name}, which its parameters make")
    return record


def _without_names(record: dict[str, Any], scrubber: Scrubber) -> dict[str, Any]:
    """The record with scrubbed parameters, and the name that they make, where they hold text of the user's."""
    parameters = record["parameters"]
    if not WORKLOADS[parameters["workload"]].has_free_text:
        return record
    scrubbed = scrubber.value(parameters)
    try:
        return record | {"parameters": scrubbed, "run": run_id(parameters_of(scrubbed))}
    except ValidationError as error:
        fault = error.errors()[0]["msg"]
        raise UserError(
            f"{record['run']}: its parameters cannot be archived: without what it must not say, {fault}"
        ) from None


def _members(
    folder: Path, record: dict[str, Any], scrubber: Scrubber, known: dict[bytes, bytes]
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what the archive takes of a run; `known` holds what tables became, by their content."""
    yield STEPS, _numbers(folder / STEPS, STEP_COLUMNS)
    yield EPOCHS, _numbers(folder / EPOCHS, EPOCH_COLUMNS)
    for name in ACTIVITY_TABLES:
        path = folder / ACTIVITY / f"{name}.parquet"
        content = path.read_bytes()
        # Many runs leave the same tables empty.
        digest = hashlib.sha256(content).digest()
        if digest not in known:
            table, scrubbed = _table(path, content, scrubber)
            if table.num_rows == 0:
                known[digest] = scrubbed
        yield f"{ACTIVITY}/{path.name}", known.get(digest) or scrubbed
    index = scrubber.value(read_json(folder / ACTIVITY / ACTIVITY_INDEX))
    yield f"{ACTIVITY}/{ACTIVITY_INDEX}", _json(index)
    yield RUN, _json(scrubber.record(record))


def _numbers(path: Path, columns: Iterable[str]) -> bytes:
    """The content of a table of numbers, which is all that it may hold."""
    content = path.read_bytes()
    header, _, body = content.partition(b"\n")
    if set(header.decode("utf-8", "replace").strip().split(",")) <= set(columns):
        for word in WINDOWS:
            body = body.replace(word, b"")
        if not body.translate(None, NUMBERS):
            return content
    raise UserError(f"{path}: found a column or text that multicard does not write, expected numbers")


def _table(path: Path, content: bytes, scrubber: Scrubber) -> tuple[pa.Table, bytes]:
    """An activity table with its texts scrubbed; of what the file says of itself multicard's own words are kept."""
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {' '.join(str(error).split())[:200]}") from error
    arrays, fields = [], []
    for field_, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_string(field_.type) or pa.types.is_large_string(field_.type):
            scrub = scrubber.name if field_.name in COMPILED else scrubber.text
            coded = pc.dictionary_encode(column.combine_chunks())
            words = pa.array([scrub(word) for word in coded.dictionary.to_pylist()], pa.string())
            column = pc.take(words, coded.indices)
        elif not (pa.types.is_integer(field_.type) or pa.types.is_floating(field_.type)):
            raise UserError(f"{path}: the column {field_.name} is of type {field_.type}, expected numbers or text")
        arrays.append(column)
        fields.append(pa.field(field_.name, column.type))
    says = {key: value for key, value in (table.schema.metadata or {}).items() if key == b"multicard"}
    own = {key: scrubber.text(value.decode("utf-8", "replace")).encode() for key, value in says.items()}
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, pa.schema(fields, own)), buffer, compression="zstd")
    return table, buffer.getvalue()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _first(manifest: dict[str, Any], members: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    yield MANIFEST, _json(manifest)
    yield from members


def _write_tar(target: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in members:
            info = tarfile.TarInfo(name)  # time, owner and group stay zero
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))


def _write_zip(target: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name, EARLIEST)
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
            archive.writestr(info, content)
