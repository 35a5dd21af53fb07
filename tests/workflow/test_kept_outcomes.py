"""An outcome survives Snakemake, which deletes the outputs of jobs that it believes to have failed."""

from pathlib import Path

import pytest

from factories import make_run
from multicard.config.read_run import read_run
from multicard.core.files import write_json
from multicard.core.reasons import Reason
from multicard.launch.attempts import scratch_in
from multicard.programs.script.parameters import ScriptParameters
from multicard.programs.vision.parameters import VisionParameters
from multicard.workflow.kept_outcomes import WITH_RECORD, drop_kept, keep, made_of, restore

OF = made_of(VisionParameters(device="cpu"), Path("data/digits-1"), None)


def finished(folder: Path, reason: Reason | None = None) -> Path:
    """A run directory whose outcome is kept, with 4000 MB, and whose record Snakemake has deleted."""
    for name in WITH_RECORD:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    record = make_run(outcome="failed" if reason else "completed", reason=reason)
    write_json(folder / "run.json", record.as_json())
    keep(folder, OF, 4000)
    (folder / "run.json").unlink()
    return folder


def test_a_record_that_snakemake_deleted_is_put_back(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert restore(run, OF, 8000)
    assert read_run(run).completed
    assert not list(run.rglob(".run-*"))
    # But not where the rest of the outcome is gone.
    (run / "steps.csv").unlink()
    assert not restore(run, OF, 8000)
    (run / "steps.csv").touch()
    # A new attempt begins without it.
    with scratch_in(run):
        pass
    assert not restore(run, OF, None)


def test_another_run_is_not_put_back(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert not restore(run, made_of(VisionParameters(device="cpu", seed=1), Path("data/digits-1"), None), None)
    assert not restore(run, made_of(VisionParameters(device="cpu"), Path("data/digits-2"), None), None)
    assert not (run / "run.json").exists()
    # A changed script makes another run, too.
    (tmp_path / "train.py").write_text("print(1)")
    parameters = ScriptParameters(command=["train.py"], folder=str(tmp_path))
    before = made_of(parameters, None, None)
    assert before["script"] and before == made_of(parameters, None, None)
    (tmp_path / "train.py").write_text("print(2)")
    assert before != made_of(parameters, None, None)


@pytest.mark.parametrize(("memory_mb", "put_back"), [(4000, True), (8000, False)])
def test_a_killed_run_is_repeated_only_with_more_memory(tmp_path: Path, memory_mb: int, put_back: bool) -> None:
    run = finished(tmp_path / "run", Reason("killed", signal="SIGKILL"))
    assert restore(run, OF, memory_mb) is put_back


def test_outcomes_that_the_user_deleted_or_asked_to_repeat_are_dropped(tmp_path: Path) -> None:
    deleted, stays, forced = (finished(tmp_path / name) for name in ("deleted", "stays", "forced"))
    for run in (stays, forced):
        (run / "run.json").write_text("{}")
    drop_kept(tmp_path, ["forced"])
    assert [restore(run, OF, None) for run in (deleted, stays, forced)] == [False, True, False]
