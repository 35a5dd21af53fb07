"""An archive may come from anybody: what is cut, altered or hostile is refused in one line, and leaves nothing."""

import gzip
import hashlib
import io
import json
import random
import resource
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from conftest import refusal
from factories import make_run
from multicard.core.compressed import UnpackLimit
from multicard.core.errors import UserError
from multicard.share.manifest import FILES, FORMAT
from multicard.share.unpack import LIMIT, unpack

RECORDS = {record.run: record for record in (make_run(repeat=1), make_run(repeat=2))}
RUN, OTHER = RECORDS
Members = list[tuple[Any, bytes]]


def refused(path: Path, folder: Path, limit: UnpackLimit = LIMIT) -> str:
    """The one line that names the archive; nothing is written outside of the folder of runs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before = sorted(path.parent.iterdir())
    line = refusal(lambda: unpack(path, folder, folder / "machine", limit))
    assert line.startswith(f"{path}: ")
    assert line.isprintable()
    assert sorted(path.parent.iterdir()) == before
    return line.removeprefix(f"{path}: ")


def sound(extra: dict[str, bytes] | None = None, run: str = RUN, **changed: bytes) -> dict[str, bytes]:
    """Members of a small archive; the content of a file can be given by the stem of its name."""
    given = {"run": json.dumps(RECORDS[run].as_json()).encode()} | changed
    return {f"runs/{run}/{name}": given.get(Path(name).stem, name.encode()) for name in FILES} | (extra or {})


def manifest(members: dict[str, bytes], **keys: Any) -> bytes:
    files = [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    ]
    head = {"format": FORMAT, "multicard": "0", "experiment": {}, "files": files}
    return json.dumps(head | keys).encode()


def write(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def whole(path: Path, members: dict[str, bytes], said: bytes | None = None) -> Path:
    """Write an archive of members, or of others than its manifest says."""
    return write(path, [("manifest.json", said or manifest(members)), *members.items()])


def test_a_sound_archive_is_unpacked(tmp_path: Path) -> None:
    members = sound() | sound(run=OTHER) | {"machine/1-cuda.json": b"{}"}
    path = whole(tmp_path / "x.tar.gz", members)
    assert unpack(path, tmp_path / "runs", tmp_path / "machine").runs == [RUN, OTHER]
    found = {str(file.relative_to(tmp_path)): file for file in tmp_path.rglob("*/*") if file.is_file()}
    assert {name: file.read_bytes() for name, file in found.items()} == members


def test_an_archive_that_is_cut_or_altered_anywhere_is_refused(tmp_path: Path) -> None:
    members = sound(steps=random.Random(0).randbytes(50_000))
    path = whole(tmp_path / "x.tar.gz", members)
    content = path.read_bytes()
    for left in (0.99, 0.5, 0.1, 0.01, 0):
        path.write_bytes(content[: int(len(content) * left)])
        assert "cut" in refused(path, tmp_path / "runs")
    for at in range(0, len(content), len(content) // 50):
        altered = bytearray(content)
        altered[at] ^= 0x10
        path.write_bytes(altered)
        folder = tmp_path / f"{at}"
        folder.mkdir()
        try:
            unpack(path, folder)
        except UserError as error:
            assert str(error).startswith(str(path)) and len(str(error).splitlines()) == 1
        else:  # it was in what no reader looks at, such as the time in a header
            assert at < 10
            assert {f"runs/{file.relative_to(folder)}": file.read_bytes() for file in folder.rglob("*.*")} == members
    path = write(tmp_path / "y.tar.gz", [("manifest.json", manifest(members)), *list(members.items())[:-2]])
    missing = f"runs/{RUN}/activity/tables.json: missing, the archive was cut or altered"
    assert refused(path, tmp_path / "runs") == missing


def test_an_altered_member_is_named(tmp_path: Path) -> None:
    says, path = manifest(sound()), tmp_path / "x.tar.gz"
    whole(path, sound(steps=b"STEPS.csv"), says)
    assert refused(path, tmp_path / "runs") == (
        f"runs/{RUN}/steps.csv: the checksum is not the manifest's, it was cut or altered"
    )
    whole(path, sound(steps=b"steps.csv and more"), says)
    assert refused(path, tmp_path / "runs") == f"runs/{RUN}/steps.csv: found 18 bytes, expected 9 by the manifest"


def test_no_other_names_than_those_of_runs_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(
        (
            "/etc/passwd", "../x", f"runs/{RUN}/../../x", f"runs/{RUN}/activity/../steps.csv", f"runs/{RUN}/log.txt",
            f"runs\\{RUN}\\steps.csv", f"runs/{RUN}/steps.csv\x1b[31m", "runs/../steps.csv", f"./runs/{RUN}/steps.csv",
            "machine/../1-cuda.json", "machine/node07-cuda.json",
        )
    ):  # fmt: skip
        members, path = sound(extra={name: b"evil"}), tmp_path / f"{number}.tar.gz"
        assert "which is not a file of a run" in refused(whole(path, members), tmp_path / "runs")
        path = whole(path, members, manifest(sound()))
        assert "not in the manifest, or there twice" in refused(path, tmp_path / "runs")


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    members, name = sound(steps=b""), f"runs/{RUN}/steps.csv"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        listed = [(info if each == name else each, content) for each, content in members.items()]
        path = write(tmp_path / "x.tar.gz", [("manifest.json", manifest(members)), *listed])
        assert refused(path, tmp_path / "runs") == f"{name}: a link or a device, expected a plain file"


def test_a_member_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    members = sound()
    twice = [("manifest.json", manifest(members)), *members.items(), (f"runs/{RUN}/steps.csv", b"other")]
    path = write(tmp_path / "x.tar.gz", twice)
    assert refused(path, tmp_path / "runs") == f"runs/{RUN}/steps.csv: not in the manifest, or there twice"


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    limit = UnpackLimit(times=20, always_bytes=1 << 20)
    large, says = bytes(4 << 20), "unpacks to more than 20 times its size"
    path = whole(tmp_path / "x.tar.gz", sound(steps=large))
    assert says in refused(path, tmp_path / "runs", limit)
    # What its manifest does not say.
    whole(path, sound(steps=large), manifest(sound()))
    assert f"steps.csv: found {len(large)} bytes, expected 9" in refused(path, tmp_path / "runs", limit)
    # Zeros after the end of the members, which a reader would skip one by one.
    whole(path, sound())
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + large))
    assert says in refused(path, tmp_path / "runs", limit)
    # A header that announces more text than there is memory for.
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 7 << 30
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + large))
    assert says in refused(path, tmp_path / "runs", limit)
    # A manifest that has no end, or that says so and has one.
    endless = tarfile.TarInfo("manifest.json")
    endless.size = 7 << 30
    path.write_bytes(gzip.compress(endless.tobuf() + large))
    assert f"manifest.json: found {7 << 30} bytes, expected at most 1048576" in refused(path, tmp_path / "runs", limit)


@pytest.mark.parametrize(
    ("entry", "count", "says"),
    [
        ({"name": f"runs/{RUN}/run.json", "bytes": 3, "sha256": "0" * 64}, 500_000, "bytes, expected at most 1"),
        ({}, 5_000_000, "bytes, expected at most 1048576"),
        # As many as fit.
        ({"name": f"runs/{RUN}/run.json", "bytes": 3, "sha256": "0" * 64}, 5_000, "it lists a file twice"),
        ({}, 200_000, "files.0.name: missing"),
    ],
)
def test_a_manifest_of_very_many_entries_is_refused_before_it_takes_memory(
    entry: dict[str, Any], count: int, says: str, tmp_path: Path
) -> None:
    entries = ",".join([json.dumps(entry)] * count)
    content = f'{{"format": {FORMAT}, "multicard": "0", "experiment": {{}}, "files": [{entries}]}}'.encode()
    path = write(tmp_path / "x.tar.gz", [("manifest.json", content)])
    del entries, content
    tracemalloc.start()
    try:
        said = refused(path, tmp_path / "runs")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert says in said
    assert most_bytes < 100 << 20


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    assert "manifest.json: missing, expected the first member" in refused(
        write(path, [*sound().items()]), tmp_path / "runs"
    )
    for content, says in (
        (b"{", "manifest.json: does not parse as JSON"),
        (b"[" * 100_000, "manifest.json: does not parse as JSON"),
        (b"[]", "manifest.json: "),
        (b"{}", "manifest.json: format: missing"),
        (manifest(sound(), format=2), "manifest.json: format: found 2, expected 4"),
        (manifest({f"runs/{RUN}/run.json": b""}), f"manifest.json: it does not list runs/{RUN}/steps.csv"),
    ):
        assert says in refused(whole(path, sound(), content), tmp_path / "runs")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "x.tar.gz", tmp_path / "runs") == "no such file"
    for content in (b"", b"no archive", gzip.compress(b"no tar file" * 999, mtime=0), b"PK\x03\x04" * 9):
        (tmp_path / "x.tar.gz").write_bytes(content)
        said = refused(tmp_path / "x.tar.gz", tmp_path / "runs")
        if content.startswith((b"no", b"PK")):
            assert said == "not an archive of multicard: found no gzipped file"
        else:
            assert said.startswith(("manifest.json: missing", "not an archive, or cut or damaged: "))


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    for record, fault in (
        (b"{}", "not the record of a run: parameters: missing"),
        (b"[", "does not parse as JSON"),
        (json.dumps(RECORDS[OTHER].as_json()).encode(), f"run: found {OTHER!r}, expected {RUN!r}"),
    ):
        path = whole(tmp_path / "x.tar.gz", sound(run=RUN) | {f"runs/{RUN}/run.json": record})
        assert refused(path, tmp_path / "runs").startswith(f"runs/{RUN}/run.json: {fault}")


def test_a_full_disk_is_not_the_archive_s_fault(tmp_path: Path) -> None:
    path = whole(tmp_path / "x.tar.gz", sound(steps=bytes(1000)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # then a write fails as on a full disk
    try:
        said = refusal(lambda: unpack(path, tmp_path / "runs"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said == f"{tmp_path}/runs: cannot be written: File too large; free space and start again"
