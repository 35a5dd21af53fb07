"""Small files that are made to grow without end are refused in one line, before they do."""

import gzip
import random
import resource
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import ran, refusal
from multicard.config.experiment import MOST_RUNS
from multicard.config.load import check, read_yaml
from multicard.config.read_run import read_run
from multicard.core.errors import TraceError, UserError
from multicard.core.files import read_object
from multicard.results.run_files import read_parquet
from multicard.share.unpack import unpack
from multicard.trace.kineto import read


def test_a_gzip_bomb_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b" " * (80 << 20), 1))
    with pytest.raises(TraceError, match="unpacks to more than 40 times its size"):
        read(path)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: " + "[" * 1000 + "]" * 1000], ids=["itself", "deep"])
def test_yaml_that_is_nested_without_end_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as stopped:
        check(read_yaml(path), str(path))
    assert str(stopped.value).startswith(f"{path}: ")


def aliases(levels: int, most: str = "scenarios") -> str:
    """YAML in which a list of nine is nine times in one that is nine times in one, and so on."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        nine = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{nine}]")
    return "\n".join([*lines, f"{most}: *a{levels - 1}"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (aliases(4), "scenarios: found [[[[...], [...]"),  # 9^4 values, which may be written
        (aliases(7), "its aliases (*name) stand for more than 100000 values"),
        (aliases(40), "its aliases (*name) stand for more than 100000 values"),
        ("scenarios: {a: 7}\n" * 300_000, "more than 4 MB"),
        (f"order_seed: {'1' * 5000}", "found a number of 5000 digits"),
        (f"order_seed: {'1' * 900}.5\nscenarios: {{a: {{}}}}", "order_seed: found "),
        (f"scenarios: {{a: {'x' * 100_000}}}", "scenarios.a: found 'xxx"),
        (f"scenarios: {{{'x' * 300}: {{}}}}", "scenarios.xxxx"),
        (f"{'x' * 1000}: 1", "unknown key"),
        (
            f"scenarios: {{a: [{'{}, ' * 1000}]}}\n" + "".join(f"k{number}: 1\n" for number in range(1000)),
            "951 more errors",
        ),
        ("order_seed: 2026-13-41", "does not parse as YAML"),
    ],
    ids=["4", "7", "40", "large", "digits", "float", "text", "name", "key", "many", "date"],
)
def test_a_small_configuration_has_a_short_answer(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as stopped:
        check(read_yaml(path), str(path), outside=False)
    lines = str(stopped.value).splitlines()
    assert says in "\n".join(lines)
    assert len(lines) <= 51 and max(map(len, lines)) < 700 + len(str(path))
    assert all(line.startswith(str(path)) for line in lines)


@pytest.mark.parametrize("depth", [300, 100_000], ids=["parses", "does not parse"])
def test_a_record_that_is_nested_too_deeply_is_refused_wherever_it_is_read(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"parameters": {}, "run": ' + "[" * depth + "]" * depth + "}")
    for read_it in (read_object, lambda path: read_run(path.parent)):
        line = refusal(lambda read_it=read_it: read_it(path))
        assert line.startswith(f"{path}: ") and "nested too deeply" in line
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(path, "manifest.json")
    with pytest.raises(UserError, match=r"a\.tar\.gz: manifest\.json: .*nested too deeply"):
        unpack(archive, tmp_path / "unpacked")


def test_runs_are_counted_before_they_are_made() -> None:
    values = list(range(1, 201))
    vary = {"batch_size": values, "seed": values, "epochs": values}
    scenario = {"question": "?", "fixed": {"device": "cpu"}, "vary": vary, "repeats": 5, "figures": ["step_breakdown"]}
    with pytest.raises(UserError, match=f"scenarios.many: asks for 40000000 runs, expected {MOST_RUNS} at most"):
        check({"scenarios": {"many": scenario}}, "mine.yaml", outside=False)


TABLE = pa.schema([("report", pa.string()), ("rank", pa.int64()), ("start_s", pa.float64())])


def repeated(path: Path, rows: int, groups: int = 1, text: str = "x") -> Path:
    """A Parquet file of equal rows."""
    table = pa.table([[text] * rows, [1] * rows, [0.5] * rows], TABLE)
    with pq.ParquetWriter(path, TABLE) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"rows": 100_000, "groups": 20}, "holds 2000000 rows in "),
        ({"rows": 1000, "text": "y" * 1_000_000}, "1000 rows have texts of 1000000 bytes in the column report"),
    ],
    ids=["rows", "texts"],
)
def test_a_table_that_repeats_itself_is_refused_before_it_is_read(
    content: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = repeated(tmp_path / "phases.parquet", **content)
    assert path.stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refusal(lambda: read_parquet(path)).startswith(f"{path}: {says}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("rows", [0, 1, 100_000])
def test_a_table_of_measurements_is_read_as_it_was_written(rows: int, tmp_path: Path) -> None:
    report = [None if row % 3 else f"rank{row % 7}" for row in range(rows)]
    table = pa.table([report, list(range(rows)), [row / 7 for row in range(rows)]], TABLE)
    pq.write_table(table, tmp_path / "phases.parquet")
    found = read_parquet(tmp_path / "phases.parquet")
    assert found.equals(table) and found.schema.equals(table.schema)


def test_more_rows_than_are_free_take_a_byte_each(tmp_path: Path) -> None:
    chance = random.Random(0)
    times = pa.array([chance.random() for _ in range(200_000)])
    table = pa.table([times, pa.array([0] * len(times))], ["start_s", "rank"])
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd")
    assert read_parquet(tmp_path / "x.parquet").equals(table)


@pytest.mark.slow
def test_a_bomb_takes_no_more_memory_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (1 << 28), 9, mtime=0) * 32)  # 8 MB, for 8.6 GB
    assert path.stat().st_size < 10 << 20
    program = "import sys; from pathlib import Path; from multicard.trace.kineto import read; read(Path(sys.argv[1]))"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    ended = ran(sys.executable, "-c", program, path, preexec_fn=limit)
    assert "unpacks to more than 40 times its size" in ended.stderr.splitlines()[-1]
