"""What is recorded of the folder of a user's script."""

import hashlib
from pathlib import Path

import pytest

from multicard.launch import folder as folder_module
from multicard.launch.folder import ScriptFolder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    for name in ("train.py", "old.txt", "data/part.bin", ".git/HEAD", "__pycache__/a.pyc", "results/runs/a/run.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("before")
    return folder


def test_files_that_appear_change_or_disappear_are_named(own: Path) -> None:
    watched = ScriptFolder(own, own / "train.py", own / "results" / "runs" / "b")
    assert watched.record()["folder_changes"] == {"count": 0, "names": []}
    (own / "new").mkdir()
    (own / "new" / "model.pt").write_text("weights")
    (own / "old.txt").write_text("after it")
    (own / "data" / "part.bin").unlink()
    for name in ("__pycache__/a.pyc", ".git/index", "results/report.html"):  # Python's, git's and multicard's own
        (own / name).write_text("other")
    assert watched.record()["folder_changes"] == {"count": 3, "names": ["data/part.bin", "new/model.pt", "old.txt"]}
    # The script is known by its bytes before the run.
    (own / "train.py").write_text("edited meanwhile")
    found = watched.record()
    assert (found["script"]["file"], found["script"]["sha256"]) == ("train.py", hashlib.sha256(b"before").hexdigest())
    assert found["folder_changes"]["count"] == 4


def test_only_the_results_are_left_out_of_the_folder_that_they_lie_in(own: Path) -> None:
    watched = ScriptFolder(own, None, own / "out" / "results" / "runs" / "b")
    for name in ("out/results/report.html", "out/model.pt", "runs/events"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).touch()
    assert watched.record()["folder_changes"]["names"] == ["out/model.pt", "runs/events"]


def test_many_changes_are_counted_and_few_of_them_named(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = ScriptFolder(own, None, own / "results" / "runs" / "b")
    for number in range(25):
        (own / f"{number:02}.txt").touch()
    found = watched.record()["folder_changes"]
    assert (found["count"], found["names"][0], len(found["names"])) == (25, "00.txt", 20)
    monkeypatch.setattr(folder_module, "MOST_FILES", 10)
    assert watched.record()["folder_changes"] is None  # too many to look at
