"""An archive may come from anybody: what is cut, altered or hostile is refused in one line, and leaves nothing."""

import gzip
import hashlib
import io
import json
import random
import re
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest

from multicard.archive import unpack as module
from multicard.archive.manifest import FILES, FORMAT
from multicard.archive.unpack import place_runs, unpack
from multicard.core.errors import UserError

RUN, OTHER = "vision_x_r1", "vision_y_r1"
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


def sound(extra: dict[str, bytes] | None = None, run: str = RUN, **changed: bytes) -> dict[str, bytes]:
    """Members of a small archive; the content of a file can be given by the stem of its name."""
    given = {"run": json.dumps({"run": run, "parameters": {"repeat": 1}}).encode()} | changed
    return {f"runs/{run}/{name}": given.get(Path(name).stem, name.encode()) for name in FILES} | (extra or {})


def manifest(members: dict[str, bytes], **keys: Any) -> bytes:
    files = [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    ]
    names = [run for run in (RUN, OTHER) if f"runs/{run}/run.json" in members] or [RUN]
    runs = [{"run": run, "outcome": "completed", "parameters": {"repeat": 1}} for run in names]
    head = {"format": FORMAT, "multicard": "0", "experiment": {}, "runs": runs, "files": files}
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


def test_a_sound_archive_is_unpacked_and_its_record_names_it(tmp_path: Path) -> None:
    members = sound()
    path = whole(tmp_path / "x.tar.gz", members | sound(run=OTHER))
    stale = tmp_path / "runs" / RUN / "trace" / "old.sqlite"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a run that did not end")
    place_runs(path, tmp_path / "runs", [RUN])
    found = {str(file.relative_to(tmp_path)): file for file in (tmp_path / "runs").rglob("*") if file.is_file()}
    assert set(found) == set(members), "of the runs only the one that was asked for"
    record = json.loads(found.pop(f"runs/{RUN}/run.json").read_text())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["recorded"] == {"archive": "x.tar.gz", "sha256": digest}
    for name, file in found.items():
        assert file.read_bytes() == members[name]
    place_runs(path, tmp_path / "runs", [RUN])
    with pytest.raises(UserError, match="holds no run other"):
        place_runs(path, tmp_path / "runs", ["other"])


def test_a_run_of_this_machine_is_never_replaced(tmp_path: Path) -> None:
    path = whole(tmp_path / "x.tar.gz", sound())
    own = tmp_path / "runs" / RUN / "run.json"
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    with pytest.raises(UserError, match="holds a run of this machine, which is kept"):
        place_runs(path, tmp_path / "runs", [RUN])
    assert own.read_text() == "{}"


def test_an_archive_that_is_cut_or_altered_anywhere_is_refused(tmp_path: Path) -> None:
    members = sound(steps=random.Random(0).randbytes(50_000))
    path = whole(tmp_path / "x.tar.gz", members)
    content = path.read_bytes()
    for left in (0.99, 0.5, 0.1, 0.01, 0):
        path.write_bytes(content[: int(len(content) * left)])
        says = refused(path, tmp_path / "runs")
        assert "cut" in says
        if left == 0.5:
            assert f"runs/{RUN}/steps.csv" in says  # the member that is incomplete
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
        assert "which is no file of a run" in refused(whole(path, members), tmp_path / "runs")
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


def test_a_bomb_is_not_unpacked_beyond_what_the_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = 4 << 20
    path = whole(tmp_path / "x.tar.gz", sound(steps=bytes(large)), manifest(sound()))
    assert path.stat().st_size < 1 << 20
    assert f"steps.csv: found {large} bytes, expected 9" in refused(path, tmp_path / "runs")

    # Zeros after the end of the members, which a reader would skip one by one.
    whole(path, sound())
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(large)))
    assert refused(path, tmp_path / "runs") == "its end: larger than the manifest says"

    # A header that announces more text than there is memory for.
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 7 << 30
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(large)))
    monkeypatch.setattr(module, "MANIFEST_LIMIT_BYTES", 1 << 20)
    assert "larger than the manifest says" in refused(path, tmp_path / "runs")

    # A manifest that has no end.
    write(path, [("manifest.json", b" " * (3 << 20))])
    assert refused(path, tmp_path / "runs").startswith("manifest.json: found 3145728")

    # What is as the manifest says, and many times the size of the archive.
    monkeypatch.setattr(module, "SMALL_BYTES", 1 << 20)
    path = whole(tmp_path / "a.tar.gz", sound(steps=bytes(2 << 20)))
    assert re.search(r"^holds 2\.10 MB, expected at most 1\.\d\d MB$", refused(path, tmp_path / "runs"))


def test_an_archive_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    listed = json.loads(manifest(sound()))
    listed["files"][0]["bytes"] = 1 << 40
    path = write(tmp_path / "x.tar.gz", [("manifest.json", json.dumps(listed).encode())])
    assert refused(path, tmp_path / "runs").startswith("manifest.json: files.0.bytes: ")


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    assert "manifest.json: missing, expected the first member" in refused(
        write(path, [*sound().items()]), tmp_path / "runs"
    )
    for content, says in (
        (b"{", "manifest.json: does not parse as JSON"),
        (b"[" * 100_000, "manifest.json: does not parse as JSON"),
        (b"[]", "manifest.json: "),
        (b"{}", "manifest.json: format: Field required"),
        (manifest(sound(), format=2), "manifest.json: format: Input should be 3"),
        (manifest({}), f"manifest.json: Value error, it lists no runs/{RUN}/steps.csv"),
        (manifest(sound(), runs=[]), "which is no file of a run"),
        (manifest(sound(), runs=[{"run": "../x", "outcome": "", "parameters": {}}]), "manifest.json: runs.0.run: "),
    ):
        assert says in refused(whole(path, sound(), content), tmp_path / "runs")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "x.tar.gz", tmp_path / "runs") == "no such file"
    for content in (b"", b"no archive", gzip.compress(b"no tar file" * 999, mtime=0), b"PK\x03\x04" * 9):
        (tmp_path / "x.tar.gz").write_bytes(content)
        assert refused(tmp_path / "x.tar.gz", tmp_path / "runs").startswith("manifest.json: ")


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    for record in (b"{}", b"[", json.dumps({"run": RUN, "parameters": {"repeat": 2}}).encode()):
        path = whole(tmp_path / "x.tar.gz", sound(run=RUN) | {f"runs/{RUN}/run.json": record})
        assert refused(path, tmp_path / "runs") == (
            f"runs/{RUN}/run.json: not the record of the run that the manifest lists"
        )


def test_a_full_disk_is_not_the_archive_s_fault(tmp_path: Path) -> None:
    path = whole(tmp_path / "x.tar.gz", sound(steps=bytes(1000)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # then a write fails as on a full disk
    try:
        with pytest.raises(UserError) as stopped:
            place_runs(path, tmp_path / "runs", [RUN])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(stopped.value) == f"{tmp_path}/runs: cannot be written: File too large; free space and start again"
    assert list((tmp_path / "runs").iterdir()) == []
