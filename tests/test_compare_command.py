"""`multicard compare` tells results from traces, and says what it finds in words."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from multicard.api.results import holds_results
from multicard.archive.pack import pack
from multicard.cli import main
from recorded_runs import add_run, experiment
from synthetic import kineto_trace

pytestmark = pytest.mark.slow


def printed(a: Path, b: Path, *options: str) -> str:
    output = StringIO()
    with redirect_stdout(output):
        main(["compare", str(a), str(b), *options])
    return output.getvalue()


def test_results_and_archives_are_told_from_traces(
    recorded_results: Path, recorded_archive: Path, extracted_run: Path, tmp_path: Path
) -> None:
    assert holds_results(recorded_results)
    assert holds_results(recorded_archive)
    for trace in (extracted_run, extracted_run / "trace", kineto_trace(tmp_path / "a.json.gz"), tmp_path / "none"):
        assert not holds_results(trace)


def test_a_folder_is_compared_with_an_archive(recorded_results: Path, extracted_run: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    for repeat in (1, 2, 3):
        add_run(extracted_run, slow, 2, repeat=repeat)
    pack(experiment(slow, 3), tmp_path / "slow.tar.gz")
    shown = printed(recorded_results, tmp_path / "slow.tar.gz")
    assert shown.splitlines()[0] == "iteration time: 1 worse of 1 configuration"
    assert "100.0% slower (95%" in " ".join(shown.split())
    assert "no difference shown: memory" in shown and "undecided" not in shown
    assert "may differ by more than repeats do" in " ".join(shown.split()), "an archive does not tell when runs were"
    assert "machine" not in shown, "an archive holds no names of machines"


def test_text_in_results_stays_text(extracted_run: Path, recorded_results: Path, tmp_path: Path) -> None:
    evil = "[red]x\x1b[31m"
    for repeat in (1, 2):
        add_run(extracted_run, tmp_path, repeat=repeat, change=lambda record: record["versions"].update(torch=evil))
    shown = printed(recorded_results, tmp_path)
    assert "[red]x�[31m" in shown
    assert "\x1b" not in shown


def test_what_cannot_be_compared_is_one_line(recorded_results: Path, tmp_path: Path) -> None:
    for a, b in ((recorded_results, tmp_path / "none"), (tmp_path, recorded_results)):
        with pytest.raises(SystemExit, match="expected results as in") as stopped:
            printed(a, b)
        assert len(str(stopped.value).splitlines()) == 1
    (tmp_path / "x.tar.gz").write_bytes(b"no")
    with pytest.raises(SystemExit, match=r"x\.tar\.gz: manifest\.json: cut, damaged or no archive"):
        printed(recorded_results, tmp_path / "x.tar.gz")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("steps.csv", None, "missing"),
        ("steps.csv", "\xff\xfe,\n", "does not parse as CSV"),
        ("steps.csv", "rank,epoch\n0,1\n", "found no column step"),
        ("epochs.csv", "epoch,train_loss,test_loss,test_accuracy,epoch_time_s\n", "found no epoch"),
        (
            "epochs.csv",
            "epoch,train_loss,test_loss,test_accuracy,epoch_time_s\n1,x,x,x,x\n",
            "found text in the column",
        ),
        ("activity/phases.parquet", "PAR1", "not a Parquet file that can be read"),
        ("run.json", '{"run": "a', "does not parse as JSON"),
        ("run.json", "{}", "not the record of a run: run: Field required"),
        ("run.json", "[]", "found list, expected an object"),
        ("run.json", "ranks", "not a complete record of a completed run: found no 'ranks'"),  # without this key
    ],
)
def test_a_damaged_file_is_named_in_one_line(
    file: str, content: str | None, says: str, extracted_run: Path, tmp_path: Path
) -> None:
    def without_checksums(record: dict[str, Any]) -> None:  # so that the content of a table is looked into
        del record["files"]

    whole = add_run(extracted_run, tmp_path / "whole", change=without_checksums)
    path = Path(shutil.copytree(tmp_path / "whole", tmp_path / "bad")) / "runs" / whole.name / file
    if content == "ranks":
        content = json.dumps({key: each for key, each in json.loads(path.read_text()).items() if key != content})
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="latin-1")
    for sides in (("whole", "bad"), ("bad", "whole")):
        with pytest.raises(SystemExit) as stopped:
            printed(*(tmp_path / side for side in sides))
        [line] = str(stopped.value).splitlines()
        assert line.startswith(f"{path}: ") and says in line


def test_a_measure_of_one_side_has_a_line_and_nothing_in_common_is_said(
    recorded_results: Path, extracted_run: Path, tmp_path: Path
) -> None:
    def metered(record: dict[str, Any]) -> None:
        for rank in record["ranks"]:
            rank["energy"] = [{"energy_j": 5.0}]

    add_run(extracted_run, tmp_path / "a", change=metered)
    shown = " ".join(printed(recorded_results, tmp_path / "a", "--verbose").split())
    assert "no difference shown: " in shown and "energy was not measured in a" in shown
    add_run(extracted_run, tmp_path / "b", seed=3)
    assert "cannot tell: no configuration completed in both" in printed(recorded_results, tmp_path / "b")


def test_the_command_compares_folders_and_archives(
    recorded_results: Path, recorded_archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(recorded_archive), str(recorded_results)])
    assert "no difference shown: iteration time" in capsys.readouterr().out
