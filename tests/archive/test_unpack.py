"""An archive may come from anybody: what is cut, altered or hostile is refused in one line, and leaves nothing."""

import gzip
import hashlib
import io
import json
import re
import resource
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicard.archive import unpack as module
from multicard.archive.manifest import FILES, FORMAT
from multicard.archive.unpack import place_runs, read_manifest, unpack
from multicard.core.errors import UserError

RUN = "vision_x_r1"
Members = list[tuple[Any, bytes]]


def refused(path: Path, folder: Path) -> str:
    """The one line that names the archive; afterwards the folder of runs is as it was."""
    folder.mkdir(exist_ok=True)
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError) as stopped:
        place_runs(path, folder, [RUN])
    [line] = str(stopped.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert sorted(folder.rglob("*")) == before
    assert line.isprintable()
    return line.removeprefix(f"{path}: ")


def sound(extra: dict[str, bytes] | None = None, **changed: bytes) -> dict[str, bytes]:
    """Members of a small archive; the content of a file can be given by the stem of its name."""
    record = json.dumps({"run": RUN, "parameters": {"repeat": 1}}).encode()
    given = {"run": record} | changed
    return {f"runs/{RUN}/{name}": given.get(Path(name).stem, name.encode()) for name in FILES} | (extra or {})


def manifest(members: dict[str, bytes], **keys: Any) -> bytes:
    files = [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    ]
    runs = [{"run": RUN, "outcome": "completed", "parameters": {"repeat": 1}}]
    return json.dumps(
        {"format": FORMAT, "multicard": "0", "experiment": {}, "runs": runs, "files": files} | keys
    ).encode()


def write_tar(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in members:
            archive.writestr(info, content)
    return path


FORMATS = pytest.mark.parametrize(("write", "suffix"), [(write_tar, ".tar.gz"), (write_zip, ".zip")])


@FORMATS
def test_a_sound_archive_is_unpacked_and_its_record_names_it(write: Callable, suffix: str, tmp_path: Path) -> None:
    members = sound()
    path = write(tmp_path / f"x{suffix}", [("manifest.json", manifest(members)), *members.items()])
    stale = tmp_path / "runs" / RUN / "trace" / "old.sqlite"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a run that did not end")
    place_runs(path, tmp_path / "runs", [RUN])
    found = {str(file.relative_to(tmp_path)): file for file in (tmp_path / "runs").rglob("*") if file.is_file()}
    assert set(found) == set(members)
    record = json.loads(found.pop(f"runs/{RUN}/run.json").read_text())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["recorded"] == {"archive": f"x{suffix}", "sha256": digest}
    for name, file in found.items():
        assert file.read_bytes() == members[name]
    place_runs(path, tmp_path / "runs", [RUN])


def test_a_run_of_this_machine_is_never_replaced(tmp_path: Path) -> None:
    members = sound()
    path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", manifest(members)), *members.items()])
    own = tmp_path / "runs" / RUN / "run.json"
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    with pytest.raises(UserError, match="holds a run of this machine, which is kept"):
        place_runs(path, tmp_path / "runs", [RUN])
    assert own.read_text() == "{}"


@pytest.mark.parametrize("left", [0.98, 0.5, 0.1, 0.01, 0])
def test_a_cut_archive_is_refused(recorded_archive: Path, left: float, tmp_path: Path) -> None:
    content = recorded_archive.read_bytes()
    path = tmp_path / recorded_archive.name
    path.write_bytes(content[: int(len(content) * left)])
    says = refused(path, tmp_path / "runs")
    assert "cut" in says
    if recorded_archive.suffix == ".gz" and left == 0.5:
        assert "runs/vision_digits_" in says  # the member that is incomplete


def test_a_tar_file_without_its_last_members_is_refused(tmp_path: Path) -> None:
    members = sound()
    path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", manifest(members)), *list(members.items())[:-2]])
    assert refused(path, tmp_path / "runs") == (
        f"runs/{RUN}/activity/tables.json: missing, the archive was cut or altered"
    )


@pytest.mark.parametrize("at", [0.001, 0.2, 0.4, 0.6, 0.8, 0.99])
def test_a_flipped_bit_is_noticed_wherever_it_is(recorded_archive: Path, at: float, tmp_path: Path) -> None:
    content = bytearray(recorded_archive.read_bytes())
    content[int(len(content) * at)] ^= 0x10
    path = tmp_path / recorded_archive.name
    path.write_bytes(content)
    try:
        unpack(path, tmp_path)
    except UserError as error:
        assert str(error).startswith(str(path))
        assert len(str(error).splitlines()) == 1
    else:  # it was in what no reader looks at, such as the time in a header: all members were as they should be
        assert recorded_archive.suffix == ".zip" or at < 0.01


@FORMATS
def test_an_altered_member_is_named(write: Callable, suffix: str, tmp_path: Path) -> None:
    says = manifest(sound())
    altered = sound(steps=b"STEPS.csv")
    path = write(tmp_path / f"x{suffix}", [("manifest.json", says), *altered.items()])
    assert refused(path, tmp_path / "runs") == (
        f"runs/{RUN}/steps.csv: the checksum is not the manifest's, it was cut or altered"
    )
    longer = sound(steps=b"steps.csv and more")
    path = write(tmp_path / f"y{suffix}", [("manifest.json", says), *longer.items()])
    assert refused(path, tmp_path / "runs") == f"runs/{RUN}/steps.csv: found 18 bytes, expected 9 by the manifest"


@FORMATS
@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../x", f"runs/{RUN}/../../x", f"runs/{RUN}/activity/../steps.csv", f"runs/{RUN}/log.txt",
        f"runs\\{RUN}\\steps.csv", f"runs/{RUN}/steps.csv\x1b[31m", "runs/../steps.csv", f"./runs/{RUN}/steps.csv",
        "machine/../1-cuda.json", "machine/node07-cuda.json",
    ],
)  # fmt: skip
def test_no_other_names_than_those_of_runs_are_read(write: Callable, suffix: str, name: str, tmp_path: Path) -> None:
    members = sound(extra={name: b"evil"})
    path = write(tmp_path / f"x{suffix}", [("manifest.json", manifest(members)), *members.items()])
    assert "which is no file of a run" in refused(path, tmp_path / "runs")
    path = write(tmp_path / f"y{suffix}", [("manifest.json", manifest(sound())), *members.items()])
    assert "not in the manifest, or there twice" in refused(path, tmp_path / "runs")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    members = sound(steps=b"")
    info = tarfile.TarInfo(f"runs/{RUN}/steps.csv")
    info.type, info.linkname = kind, "/etc/passwd"
    listed = [(info if name == info.name else name, content) for name, content in members.items()]
    path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", manifest(members)), *listed])
    assert refused(path, tmp_path / "runs") == (
        f"runs/{RUN}/steps.csv: a link, a device or encrypted, expected a plain file"
    )


def test_a_link_in_a_zip_file_is_refused(tmp_path: Path) -> None:
    members = sound(steps=b"/etc/passwd")
    info = zipfile.ZipInfo(f"runs/{RUN}/steps.csv")
    info.external_attr = 0o120777 << 16
    listed = [(info if name == info.filename else name, content) for name, content in members.items()]
    path = write_zip(tmp_path / "x.zip", [("manifest.json", manifest(members)), *listed])
    assert "expected a plain file" in refused(path, tmp_path / "runs")


def test_a_member_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    members = sound()
    twice = [("manifest.json", manifest(members)), *members.items(), (f"runs/{RUN}/steps.csv", b"other")]
    path = write_tar(tmp_path / "x.tar.gz", twice)
    assert refused(path, tmp_path / "runs") == f"runs/{RUN}/steps.csv: not in the manifest, or there twice"


def test_a_bomb_is_not_unpacked_beyond_what_the_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = manifest(sound())
    zeros = sound(steps=bytes(200 << 20))
    path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", says), *zeros.items()])
    assert path.stat().st_size < 1 << 20
    assert "steps.csv: found 209715200 bytes, expected 9" in refused(path, tmp_path / "runs")

    # Zeros after the end of the members, which a reader would skip one by one.
    members = sound()
    path = write_tar(tmp_path / "y.tar.gz", [("manifest.json", manifest(members)), *members.items()])
    with gzip.open(path) as packed:
        content = packed.read()
    path.write_bytes(gzip.compress(content + bytes(200 << 20)))
    assert refused(path, tmp_path / "runs") == "its end: larger than the manifest says"

    # A header that announces more text than there is memory for.
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 7 << 30
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(100 << 20)))
    monkeypatch.setattr(module, "MANIFEST_LIMIT_BYTES", 1 << 20)
    assert "larger than the manifest says" in refused(path, tmp_path / "runs")

    # A manifest that has no end, in either format.
    endless = [("manifest.json", b" " * (3 << 20))]
    for write, name in ((write_tar, "z.tar.gz"), (write_zip, "z.zip")):
        assert refused(write(tmp_path / name, endless), tmp_path / "runs").startswith("manifest.json: found 3145728")


def test_a_zip_file_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    says = manifest(sound())
    path = write_zip(tmp_path / "x.zip", [("manifest.json", says), *sound(steps=bytes(5000)).items()])
    content = path.read_bytes()
    assert content.count(struct.pack("<I", 5000)) == 2
    path.write_bytes(content.replace(struct.pack("<I", 5000), struct.pack("<I", 9)))
    assert f"runs/{RUN}/steps.csv" in refused(path, tmp_path / "runs")


def test_a_manifest_that_promises_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    listed = json.loads(manifest(sound()))
    listed["files"][0]["bytes"] = 1 << 40
    path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", json.dumps(listed).encode())])
    assert refused(path, tmp_path / "runs").startswith("manifest.json: files.0.bytes: ")


@FORMATS
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "manifest.json: missing, expected the first member"),
        (b"{", "manifest.json: does not parse as JSON"),
        (b"[" * 100_000, "manifest.json: does not parse as JSON"),
        (b"[]", "manifest.json: "),
        (b"{}", "manifest.json: format: Field required"),
        (manifest(sound(), format=2), "manifest.json: format: Input should be 3"),
        (manifest({}), f"manifest.json: Value error, it lists no runs/{RUN}/steps.csv"),
        (manifest(sound(), runs=[]), "which is no file of a run"),
        (manifest(sound(), runs=[{"run": "../x", "outcome": "", "parameters": {}}]), "manifest.json: runs.0.run: "),
    ],
)
def test_what_is_no_manifest_is_refused(
    write: Callable, suffix: str, content: bytes | None, says: str, tmp_path: Path
) -> None:
    first = [] if content is None else [("manifest.json", content)]
    assert says in refused(write(tmp_path / f"x{suffix}", [*first, *sound().items()]), tmp_path / "runs")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no tar file" * 999, mtime=0), b"PK\x03\x04" * 9],
    ids=["empty", "text", "gzip of text", "zip header"],
)
def test_what_is_no_archive_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert refused(tmp_path / name, tmp_path / "runs").startswith("manifest.json: ")
    assert refused(tmp_path / f"none-{name}", tmp_path / "runs") == "no such file"


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    for record in (b"{}", b"[", json.dumps({"run": RUN, "parameters": {"repeat": 2}}).encode()):
        members = sound(run=record)
        path = write_tar(tmp_path / "x.tar.gz", [("manifest.json", manifest(members)), *members.items()])
        assert refused(path, tmp_path / "runs") == (
            f"runs/{RUN}/run.json: not the record of the run that the manifest lists"
        )


def test_only_the_runs_that_are_asked_for_are_written(recorded_archive: Path, tmp_path: Path) -> None:
    first, second = (run.run for run in read_manifest(recorded_archive).runs)
    place_runs(recorded_archive, tmp_path, [second])
    assert [folder.name for folder in tmp_path.iterdir()] == [second]
    with pytest.raises(UserError, match="holds no run other"):
        place_runs(recorded_archive, tmp_path, ["other"])
    assert not (tmp_path / first).exists()


def test_a_full_disk_is_not_the_archive_s_fault(recorded_archive: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # then a write fails as on a full disk
    try:
        with pytest.raises(UserError) as stopped:
            place_runs(recorded_archive, tmp_path / "runs", [read_manifest(recorded_archive).runs[0].run])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(stopped.value) == f"{tmp_path}/runs: cannot be written: File too large; free space and start again"
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_archive_that_unpacks_to_many_times_its_size_is_refused(tmp_path: Path) -> None:
    members = sound(steps=bytes(65 << 20))
    path = write_zip(tmp_path / "x.zip", [("manifest.json", manifest(members)), *members.items()])
    assert re.search(r"^holds 68\.2 MB, expected at most 67\.1 MB$", refused(path, tmp_path / "runs"))
