"""The report of another configuration is replaced with a word, in the dry run and at the start of the pipeline."""

from pathlib import Path

import pytest
import yaml

from conftest import TINY, ran
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.workflow.report_source import note_source, refuse_own_files, replacement, stated_path
from workflow.project_copy import CONFIG, environment, project, snakemake

OTHER = "config/other.yaml"
EXPERIMENT = {
    "scenarios": {
        "formats": {
            "question": "Which format is fastest?",
            "fixed": TINY | {"profiler": "none"},
            "vary": {"precision": ["fp32"]},
            "figures": ["step_times"],
        }
    }
}


def test_a_report_is_replaced_by_that_of_another_configuration_only(tmp_path: Path) -> None:
    assert replacement(tmp_path, "mine.yaml") is None, "there is no report"
    (tmp_path / "report.html").touch()
    assert replacement(tmp_path, "mine.yaml") is None, "it is not known what it is of"
    note_source(tmp_path, "mine.yaml")
    assert replacement(tmp_path, "mine.yaml") is None
    line = replacement(tmp_path, "other file.yaml")
    assert line is not None
    assert line.startswith(f"{tmp_path}/report.html is of mine.yaml, and that of other file.yaml replaces it")
    (tmp_path / "report.html").unlink()
    assert replacement(tmp_path, "other.yaml") is None


@pytest.mark.parametrize("name", ["report.html", "recommendations.md", "claims.csv", "claims_tests.csv"])
def test_a_file_of_the_users_own_is_not_replaced(name: str, tmp_path: Path) -> None:
    refuse_own_files(tmp_path, "mine.yaml")
    (tmp_path / name).write_text("<!DOCTYPE html>\n<html><head><title>Our results</title></head></html>\n")
    with pytest.raises(UserError) as error:
        refuse_own_files(tmp_path, "mine.yaml")
    assert str(error.value) == (
        f"{tmp_path}/{name}: not written by multicard, which would replace it; rename it, or state another folder as "
        "results in mine.yaml"
    )


def test_a_command_refuses_to_replace_a_report_of_the_users_own_before_it_runs_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(EXPERIMENT | {"results": "shared"}))
    Path("shared").mkdir()
    Path("shared/report.html").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["run", "mine.yaml"])
    message = f"{end.value}{capsys.readouterr().err}"
    assert "shared/report.html: not written by multicard" in message
    assert [path.name for path in Path("shared").iterdir()] == ["report.html"]


def test_a_configuration_is_the_same_by_each_of_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Path("/elsewhere/mine.yaml")
    stated = {stated_path(path, tmp_path) for path in (Path("./a/mine.yaml"), tmp_path / "a" / "mine.yaml")}
    assert stated == {"a/mine.yaml"}
    assert stated_path(elsewhere, tmp_path) == str(elsewhere)


def test_the_dry_run_says_that_a_report_would_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "other.yaml"):
        Path(name).write_text(yaml.safe_dump(EXPERIMENT | {"results": "shared"}))
    note_source(Path("shared"), "mine.yaml")
    Path("shared/report.html").touch()
    main(["run", "mine.yaml", "--dry-run"])
    assert "shared/report.html" not in capsys.readouterr().out
    main(["run", str(tmp_path / "other.yaml"), "--dry-run"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("shared/report.html is of mine.yaml, and that of other.yaml replaces it")


@pytest.mark.slow
def test_the_pipeline_says_so_before_it_starts(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", EXPERIMENT)
    command = [folder / "bin/multicard", "run"]
    first = ran(*command, CONFIG, cwd=folder, env=environment())
    assert first.returncode == 0, first.stdout + first.stderr
    assert "replaces it" not in first.stderr
    refuse_own_files(folder / "results", CONFIG)  # all that the pipeline wrote may be written again
    renamed = EXPERIMENT["scenarios"]["formats"] | {"question": "Which one?"}
    other = {"results": "results", "scenarios": {"formats": renamed}}
    (folder / OTHER).write_text(yaml.safe_dump(other))
    second = ran(*command, OTHER, cwd=folder, env=environment())
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"results/report.html is of {CONFIG}, and that of {OTHER} replaces it" in second.stderr
    assert "no run is missing" in second.stdout.splitlines()[0], "runs are kept"
    third = ran(*command, f"./{OTHER}", cwd=folder, env=environment())
    assert (third.stderr, third.stdout.splitlines()[0]) == ("", "Nothing to be done: the results are there")
    # Snakemake by itself does not pass the check of the command.
    (folder / "results/report.html").write_text("mine")
    fourth = snakemake(folder, "--forcerun", "write_report")
    assert fourth.returncode != 0
    assert "results/report.html: not written by multicard" in fourth.stdout + fourth.stderr
    assert (folder / "results/report.html").read_text() == "mine"
