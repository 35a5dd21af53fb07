"""Nsight Systems is judged by the files it leaves, not by its exit code."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import DEFAULT, patch

import pytest
import torch

from changed_traces import change
from machine.faked_programs import put
from multicard.core.errors import TraceError, UserError
from multicard.launch.profiler_choice import ProfilerChoice, choose_profiler
from multicard.launch.trace_files import keep_trace
from multicard.profilers import nsys
from multicard.profilers.nsys import CAPTURE_RANGE, PROFILER, cuda_of_torch
from multicard.profilers.nsys_export import check_database

RANGE = """
import torch
from multicard.profilers.nsys import PROFILER
push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
session = PROFILER.session(None, 0, torch.device("cpu"))
push("before")
with session.recording():
    with session.range("step"):
        pop()
        push("across")
    with session.range("step"):
        pop()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real report of a job with a secret in its environment, as has another process of the machine."""
    path = tmp_path_factory.mktemp("nsys") / "report.nsys-rep"
    keeper = subprocess.Popen(["sleep", "300"], env={"PLANTED_SECRET": "hunter2", "OTHER": "x"})
    try:
        subprocess.run(
            PROFILER.wrap([sys.executable, "-c", RANGE], path, "cpu"),
            env=os.environ | PROFILER.environment | {"OWN_SECRET": "correct-horse"},
            timeout=600,
            check=True,
            capture_output=True,
        )
    finally:
        keeper.kill()
        keeper.wait()
    PROFILER.check(path)
    return path


@pytest.mark.nsys
@pytest.mark.slow
def test_a_report_exports_to_a_database_with_its_ranges_and_without_environments(report: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.sqlite"
    subprocess.run(["nsys", "export", "--type=sqlite", f"--output={plain}", report], check=True, capture_output=True)
    secrets = (b"hunter2", b"correct-horse")
    assert all(secret in plain.read_bytes() for secret in secrets)
    (tmp_path / "out").mkdir()
    database = PROFILER.export(report, tmp_path / "out")
    assert [*(tmp_path / "out").iterdir()] == [database] == [tmp_path / "out" / "report.sqlite"]
    assert not [secret for secret in secrets if secret in database.read_bytes()]
    with closing(sqlite3.connect(database)) as connection:
        query = 'SELECT start, "end" FROM NVTX_EVENTS WHERE text = ? ORDER BY start'
        names = ("step", "across", "profiled_window")
        (first, second), [across], [window] = (connection.execute(query, (name,)).fetchall() for name in names)
    # Ranges of a script may cross ours.
    assert window[0] < first[0] < across[0] < first[1] < second[0] < across[1] < second[1] < window[1]


def test_a_report_is_readable_to_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    (tmp_path / "report.nsys-rep").chmod(0o664)
    one = SimpleNamespace(ranks=1, nodes=1)
    keep_trace(tmp_path, tmp_path / "trace", "nsys", "completed", one)
    assert (tmp_path / "trace" / "report.nsys-rep").stat().st_mode & 0o777 == 0o600


# Stands in for an nsys that exports payloads: as NCCL and another library left them, and wherever else they may come.
PYTHON = f'exec {sys.executable} - "$@" <<"END"\n{{}}END'
NEWER = """\
import sqlite3, sys
if "--help" in sys.argv:
    print("  --include-blobs=")
    sys.exit()
assert "--include-blobs=true" in sys.argv
[out] = [part.partition("=")[2] for part in sys.argv if part.startswith("--output=")]
connection = sqlite3.connect(out)
connection.executescript('''
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    INSERT INTO StringIds VALUES (1, 'NCCL'), (2, 'ncclAllReduce'), (3, CAST('PATH=hunter2' AS BLOB));
    CREATE TABLE NVTX_EVENTS (eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER,
        binaryData TEXT);
    INSERT INTO NVTX_EVENTS VALUES
        (75, NULL, 10 << 24, 1, 1, NULL), (75, 'other', 11 << 24, NULL, 1, NULL),
        (59, NULL, (10 << 24) + 3, 2, 1, x'0102'), (59, 'a', 11 << 24, NULL, 1, CAST('hunter2' AS BLOB)),
        (59, 'b', 10 << 24, NULL, 2, CAST('hunter2' AS BLOB)), (59, 'c', 10 << 24, NULL, NULL, x'03');
    CREATE TABLE META (name TEXT, value TEXT);
    INSERT INTO META VALUES ('PROCESS_ENVIRONMENT', 'PATH=hunter2');
    CREATE TABLE PAYLOADS (id INTEGER, content BLOB);
    INSERT INTO PAYLOADS VALUES (7, CAST('TOKEN=hunter2' AS BLOB)), (8, zeroblob(100000));
''')
connection.commit()
"""


def stands_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program before all others that answers to the name nsys."""
    folder.mkdir(exist_ok=True)
    put(folder, "nsys", script)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def of_version(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nsys be of a version."""
    stands_in(folder, f"echo 'NVIDIA Nsight Systems version {version}'", monkeypatch)


def test_of_payloads_only_those_of_nccl_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in(tmp_path / "bin", PYTHON.format(NEWER), monkeypatch)
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    database = PROFILER.export(tmp_path / "report.nsys-rep", tmp_path)
    assert b"hunter2" not in database.read_bytes()
    with closing(sqlite3.connect(database)) as connection:
        kept = connection.execute("SELECT textId, binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL").fetchall()
        assert kept == [(2, b"\x01\x02")]
        assert connection.execute("SELECT count(*) FROM NVTX_EVENTS").fetchone() == (6,)
        assert connection.execute("SELECT id, content FROM PAYLOADS").fetchall() == [(7, None), (8, None)]
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)  # pages in which it would live on


def test_an_older_nsys_is_not_asked_for_payloads_and_meets_no_temporary_files_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = NEWER.replace("  --include-blobs=", "").replace('=true" in', '=true" not in')
    strict = '[ "$2" = --help ] || mkdir "$TMPDIR/nvidia" || exit 1\n'
    stands_in(tmp_path / "bin", strict + PYTHON.format(older), monkeypatch)
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    (tmp_path / "nvidia").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert PROFILER.export(tmp_path / "report.nsys-rep", tmp_path).name == "report.sqlite"
    assert not list(tmp_path.glob("multicard-*"))


@pytest.mark.nsys
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["garbage", "half", "empty"])
def test_a_damaged_report_leaves_no_database(report: Path, tmp_path: Path, damage: str) -> None:
    whole = report.read_bytes()
    bad = tmp_path / "bad.nsys-rep"
    bad.write_bytes({"garbage": b"x" * 5000, "half": whole[: len(whole) // 2], "empty": b""}[damage])
    with pytest.raises(TraceError, match=r"nsys export of bad\.nsys-rep ended with"):
        PROFILER.export(bad, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.nsys-rep"]


def test_without_nsys_an_export_says_so(tmp_path: Path, without_nsys: None) -> None:
    with pytest.raises(TraceError, match="nsys is not on the PATH"):
        PROFILER.export(tmp_path / "x.nsys-rep", tmp_path)
    assert PROFILER.version() is None


# How two public reports begin, of nsys 2025.1.3 and 2025.5.1; their bytes after the first line are left out.
HEADERS = {
    "2025.1.3": b"NVIDIA Tegra Profiler Report 2025@1@3@140-251335620677v0.\n",
    "2025.5.1": b"NVIDIA Tegra Profiler Report 2025@5@1@121-255136380782v0.\n",
}


@pytest.mark.parametrize(("release", "header"), HEADERS.items())
def test_without_nsys_a_report_says_which_release_reads_it(
    release: str, header: bytes, tmp_path: Path, without_nsys: None
) -> None:
    (tmp_path / "x.nsys-rep").write_bytes(header)
    says = rf"nsys is not on the PATH: install nsys {release} or later, since nsys {release}\.\d+ wrote it"
    with pytest.raises(TraceError, match=says):
        PROFILER.export(tmp_path / "x.nsys-rep", tmp_path)


def test_a_failed_export_says_which_nsys_wrote_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in(tmp_path / "bin", "echo 'Importer error'; exit 1", monkeypatch)
    (tmp_path / "x.nsys-rep").write_bytes(HEADERS["2025.5.1"])
    with pytest.raises(TraceError) as failed:
        PROFILER.export(tmp_path / "x.nsys-rep", tmp_path)
    assert str(failed.value) == (
        "nsys export of x.nsys-rep ended with 1, saying: Importer error; the report was written by nsys 2025.5.1.121"
    )


def test_a_report_that_was_not_imported_is_no_report(tmp_path: Path) -> None:
    for says in ("left no report", "importer"):
        with pytest.raises(TraceError, match=says):
            PROFILER.check(tmp_path / "report.nsys-rep")
        (tmp_path / "report.qdstrm").write_bytes(b"x")


def database(path: Path, *statements: str) -> bytes:
    path.unlink(missing_ok=True)
    return change(path, *statements).read_bytes()


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    sound = database(
        path, "CREATE TABLE StringIds (id INTEGER, value TEXT)",
        *(f"INSERT INTO StringIds VALUES ({number}, '{'name' * 2000}')" for number in range(9)),
    )  # fmt: skip
    check_database(path)
    miscounted = bytearray(sound)
    miscounted[39] ^= 1  # the number of unused pages, in the header of SQLite's file format
    for content, says in (
        (b"not a database at all" * 100, "is not the SQLite export of a trace"),
        (sound[: len(sound) // 2], "t.sqlite"),
        (bytes(miscounted), "is damaged: "),
        (b"", "is not the SQLite export of a trace"),
        (database(path, "CREATE TABLE birds (name TEXT)"), "is not the SQLite export of a trace"),
        (database(path, "CREATE TABLE StringIds (id INTEGER, value TEXT)"), "holds no strings, so no trace"),
    ):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=says) as caught:
            check_database(path)
        assert str(caught.value).startswith("t.sqlite ")


def test_the_window_is_traced_and_nothing_that_hangs_nsys_or_slows_the_job() -> None:
    # Neither a capture that a script begins which starts a CUDA profiler itself, as Megatron and NeMo do.
    window = {"--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}", "--capture-range-end=stop"}
    for device in ("cpu", "cuda"):
        command = PROFILER.wrap(["app"], Path("r.nsys-rep"), device)
        assert window | {"--sample=none", "--cpuctxsw=none"} <= set(command)
        assert not any(part in " ".join(command) for part in ("cudaProfilerApi", "memory"))
        assert any("graph" in part for part in command) == (device == "cuda")
    # No table is made of calls of cuBLAS and cuDNN; of a CUDA graph every kernel is recorded.
    assert {"--trace=cuda,nvtx", "--cuda-graph-trace=node"} <= set(command)


def test_the_window_is_the_range_that_nsys_waits_for_on_gpus_too(tmp_path: Path) -> None:
    session = PROFILER.session(tmp_path, 0, torch.device("cuda"))
    with patch.multiple("torch.cuda.nvtx", range_start=DEFAULT, range_end=DEFAULT) as called:
        with session.recording():
            called["range_start"].assert_called_once_with(CAPTURE_RANGE)
            called["range_end"].assert_not_called()
        called["range_end"].assert_called_once_with(called["range_start"].return_value)


NEWER_OPTIONS = ("--cuda-event-trace=false", "--discard-environment=true")


@pytest.mark.parametrize("option", NEWER_OPTIONS)
def test_events_and_the_environment_stay_out_of_the_report_where_nsys_can_leave_them_out(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = option.partition("=")[0]
    helps = {f"{name}=": ["cuda"] if "event" in name else ["cuda", "cpu"], f"{name}-of=": [], "--other": []}
    for listed, given in helps.items():
        also = "   see also --cuda-event-trace, --discard-environment"
        stands_in(tmp_path / "bin", f"printf '%s\\n' ' {listed}' '{also}'", monkeypatch)
        devices = [each for each in ("cuda", "cpu") if option in PROFILER.wrap(["app"], Path("r.nsys-rep"), each)]
        assert devices == given


@pytest.mark.nsys
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nsys_knows_every_option_that_it_is_given(tmp_path: Path, device: str) -> None:
    # It refuses an option before it starts the job. Without a GPU the job just runs, and nothing is captured.
    command = PROFILER.wrap([sys.executable, "-c", "print('ran')"], tmp_path / "r.nsys-rep", device)
    ended = subprocess.run(command, timeout=600, check=False, capture_output=True, text=True)
    assert "ran" in ended.stdout.splitlines(), ended.stderr


@pytest.mark.parametrize(
    ("version", "cuda", "too_old"),
    [
        ("2023.4.4.54-234433681190v0", "13.0", "nsys 2023.4.4.54 is older than 2025.3.2, which came with CUDA 13.0"),
        ("2025.3.2.474-253236389321v0", "13.0", None),
        ("2023.4.4.54-234433681190v0", "12.4", None),
        ("2023.4.4.54-234433681190v0", None, None),  # that is not known
        # A CUDA version newer than those whose nsys is known
        ("2026.1.3.243-1", "14.0", "nsys 2026.1.3.243 is older than 2026.3.2, which came with CUDA 13.4"),
        ("2026.3.2.476-263238834031v0", "14.0", "nsys 2026.3.2.476 came with CUDA 13.4"),
        ("2026.5.1.161-3889610", "14.0", None),
    ],
)
def test_on_gpus_auto_takes_no_nsys_that_is_older_than_the_cuda_of_torch(
    version: str, cuda: str | None, too_old: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_version(tmp_path, version, monkeypatch)
    monkeypatch.setattr(nsys, "cuda_of_torch", lambda _: cuda)
    found = f"nsys {version} is on the PATH"
    auto, stated = choose_profiler("auto", "cuda"), choose_profiler("nsys", "cuda")
    if too_old is None:
        assert auto == ProfilerChoice("nsys", found)
        assert stated == ProfilerChoice("nsys", f"as configured; {found}")
    else:
        why = f"{too_old}; torch uses {cuda}"
        assert auto == ProfilerChoice("kineto", why)
        assert stated == ProfilerChoice("nsys", f"as configured; {found}; {why}", why)
    # What CPUs do, every version of it records.
    assert choose_profiler("auto", "cpu") == ProfilerChoice("nsys", found)


def test_the_cuda_of_torch_is_found_without_importing_it() -> None:
    program = "import sys; from multicard.profilers import nsys; print(nsys.cuda_of_torch(), 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert answer.split() == [torch.version.cuda or nsys.BUILT_WITHOUT_CUDA, "False"]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter whose torch lies in the folder `torch` of this test."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "python").write_text(f"#!/bin/sh\necho a greeting\necho {tmp_path}/torch/__init__.py\n")
    (tmp_path / "python").chmod(0o755)
    return str(tmp_path / "python")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("written", ["cuda: Optional[str] = None", "cuda = None"])
def test_a_torch_without_nvtx_is_not_recorded_by_nsys(
    written: str, device: str, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built without CUDA, of this interpreter or of another: its functions for NVTX raise an error."""
    of_version(tmp_path, "2025.3.2.474-253236389321v0", monkeypatch)
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.5.0+cpu'\n{written}\nhip = None\n")
    assert choose_profiler("auto", device, None, python) == ProfilerChoice("kineto", nsys.NO_NVTX)
    with pytest.raises(UserError, match=rf"^profiler: nsys cannot be used: {nsys.NO_NVTX}$"):
        choose_profiler("nsys", device, None, python)
    monkeypatch.setattr(nsys.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=tmp_path / "torch" / "x"))
    assert choose_profiler("auto", device) == ProfilerChoice("kineto", nsys.NO_NVTX)


@pytest.mark.parametrize(("cuda", "found"), [("11.8", "nsys"), ("99.0", "kineto")])
def test_the_torch_of_another_interpreter_counts_where_that_runs_the_job(
    cuda: str, found: str, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_version(tmp_path, "2023.4.4.54-234433681190v0", monkeypatch)
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.5.0'\ncuda: Optional[str] = '{cuda}'\n")
    assert choose_profiler("auto", "cuda", None, python).name == found
    assert cuda_of_torch(str(tmp_path / "none")) is None
