"""Names and texts that would run something if a shell, Snakemake or a browser took them as more than text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from project_copy import make, planned, project, snakemake
from replayed_rank import replaying

from conftest import TINY
from multicard.config.load import check, read_experiment
from multicard.core.errors import UserError
from multicard.core.prepared import folder_name

pytestmark = pytest.mark.slow

PLANTED = "planted"
HOSTILE = (
    f'it\'s; touch {PLANTED}1 $(touch {PLANTED}2) `touch {PLANTED}3` "{{run}}" {{{{x}}}} & | > {PLANTED}4 * $HOME %s'
)
QUESTION = f"{HOSTILE} <script>document.title='{PLANTED}'</script>"


def test_hostile_names_pass_through_the_whole_pipeline_as_text(extracted_run: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "my project", {})
    pictures = tmp_path / HOSTILE
    classes = ["one; touch planted6", "--out=planted7"]
    for index, name in enumerate(classes):
        (pictures / name).mkdir(parents=True)
        for number in range(40):
            pixels = np.full((16, 16, 3), 40 * index + number, dtype=np.uint8)
            Image.fromarray(pixels).save(pictures / name / f"{number} $(touch planted8).png")
    texts = tmp_path / f"{HOSTILE}.jsonl"
    texts.write_text("".join(json.dumps({"text": f"{HOSTILE} {number} " * 3}) + "\n" for number in range(40)))
    experiment: dict[str, Any] = {
        "results": "my results",
        "datasets": {
            "pictures": {"source": "imagefolder", "folder": str(pictures)},
            "texts": {"source": "text-file", "path": str(texts), "samples": "completion"},
        },
        "fixed": TINY | {"dataset": "pictures", "profiler": "none"},
        "scenarios": {"hostile": {"question": QUESTION, "vary": {"devices": [1]}, "figures": ["step_times"]}},
    }
    (folder / "config/tiny.yaml").write_text(json.dumps(experiment))

    done = snakemake(folder, variables=replaying(tmp_path / "replayed", extracted_run))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pictures_data, texts_data = (
        Path("data", folder_name(name, definition))
        for name, definition in read_experiment(folder / "config/tiny.yaml").datasets.items()
    )
    prepared = snakemake(folder, "--force", str(texts_data / "provenance.json"))
    assert prepared.returncode == 0, prepared.stderr[-3000:]

    assert [path for path in tmp_path.rglob(f"{PLANTED}*") if path.parent != pictures] == []
    facts = json.loads((folder / pictures_data / "provenance.json").read_text())
    assert facts["classes"] == sorted(classes)
    assert json.loads((folder / texts_data / "train.jsonl").read_text().splitlines()[0])["text"].startswith(HOSTILE)
    assert (pd.read_csv(folder / "my results/scenarios/hostile/measures.csv")["outcome"] == "completed").all()
    page = (folder / "my results/report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;document.title" in page
    assert "<script>document.title" not in page
    # A second start neither trips over the names nor does anything.
    assert planned(folder) == []


def test_a_results_folder_that_commands_cannot_name_is_refused_before_one_does(tmp_path: Path) -> None:
    for name in ("x;id>planted", "$(touch planted)", " a", "{run}", "`id`", "x\ny"):
        with pytest.raises(UserError, match="results: found"):
            check({"results": name, "scenarios": {}}, "test.yaml")
    folder = project(tmp_path / "project", {"results": "$(touch planted)", "scenarios": {}})
    done = make(folder)
    assert done.returncode != 0
    assert "results: found" in done.stderr
    assert list(tmp_path.rglob(f"{PLANTED}*")) == []
