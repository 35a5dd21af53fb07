"""`make clean` removes what the pipeline made, and leaves what a user put beside it."""

import re
import shutil
from pathlib import Path

from conftest import ROOT, ran
from multicard.core import layout
from multicard.core.prepared import PROVENANCE, folder_name
from multicard.programs.datasets import ImageFolder
from multicard.programs.models import Model


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("content\n")


def made_in_results() -> set[str]:
    """First parts of the paths below the results folder that a rule or a command writes."""
    rules = [*(ROOT / "workflow/rules").glob("*.smk"), ROOT / "workflow/Snakefile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in rules)
    names = set(re.findall(r"\{(?:RESULTS|results)\}/([a-z_]+(?:\.[a-z]+)?)", text))
    return names | {layout.LAUNCHES.partition("/")[0], layout.MACHINES, layout.SEARCHES}


def test_clean_leaves_what_the_user_made(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    prepared = folder_name("birds", ImageFolder(source="imagefolder", folder="data/raw/birds"))
    model = folder_name("tiny", Model(architecture="tiny"))
    pipelines = [
        tmp_path / "data" / prepared / PROVENANCE,
        tmp_path / "data" / prepared / "images/1.jpg",
        tmp_path / "data/digits-0123abcd/log.txt",  # prepared in part
        tmp_path / "data/models" / model / PROVENANCE,
        *(tmp_path / name for name in ("site/index.html", ".snakemake/log/1.log", "bundle/x", ".emulated/x")),
    ]
    for name in made_in_results():
        pipelines.append(tmp_path / "results" / (name if "." in name else f"{name}/file"))
    users = [
        tmp_path / "data/raw/birds/crow/1.png",
        tmp_path / "data/birds-of-2024/crow/1.png",
        tmp_path / "data/holiday-20240607/1.png",
        tmp_path / "data/questions.jsonl",
        tmp_path / "data/models/llama/weights.safetensors",
        tmp_path / "results/notes.md",
        tmp_path / "results-mine/report.html",
    ]
    for path in (*pipelines, *users):
        write(path)
    assert ran("make", "--no-print-directory", "clean", cwd=tmp_path).returncode == 0
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*users, tmp_path / "Makefile"}
    assert ran("make", "--no-print-directory", "clean", cwd=tmp_path).returncode == 0


def test_clean_removes_folders_that_are_empty_then(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").symlink_to("elsewhere")
    write(tmp_path / "results/report.html")
    write(tmp_path / "data/digits-0123abcd" / PROVENANCE)
    assert ran("make", "--no-print-directory", "clean", cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["Makefile", "elsewhere", "results"]
