"""Names and texts that would run something if a shell, Snakemake or a browser took them as more than text."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_pipeline import CONFIG, LIMIT_S, make, project, snakemake

from conftest import TINY

pytestmark = pytest.mark.slow

PLANTED = "planted"
HOSTILE = (
    f'it\'s; touch {PLANTED}1 $(touch {PLANTED}2) `touch {PLANTED}3` "{{run}}" {{{{x}}}} & | > {PLANTED}4 * $HOME %s'
)
QUESTION = f"{HOSTILE} <script>document.title='{PLANTED}'</script>"


def test_hostile_names_pass_through_the_whole_street_as_text(tmp_path: Path) -> None:
    folder = project(tmp_path / "my $(touch planted5) project", {})
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
        "datasets": {
            "pictures": {"source": "imagefolder", "folder": str(pictures)},
            "texts": {"source": "text-file", "path": str(texts), "samples": "completion"},
        },
        "fixed": TINY | {"dataset": "pictures"},
        "scenarios": {"hostile": {"question": QUESTION, "vary": {"devices": [1]}, "figures": ["step_breakdown"]}},
    }
    (folder / "config/tiny.yaml").write_text(json.dumps(experiment))

    done = make(folder, "demo")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    prepared = snakemake(folder, "--force", "data/texts/provenance.json")
    assert prepared.returncode == 0, prepared.stderr[-3000:]

    assert [path for path in tmp_path.rglob(f"{PLANTED}*") if path.parent != pictures] == []
    facts = json.loads((folder / "data/pictures/provenance.json").read_text())
    assert facts["classes"] == sorted(classes)
    assert json.loads((folder / "data/texts/train.jsonl").read_text().splitlines()[0])["text"].startswith(HOSTILE)
    assert (pd.read_csv(folder / "results/scenarios/hostile/measures.csv")["outcome"] == "completed").all()
    page = (folder / "results/report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;document.title" in page
    assert "<script>document.title" not in page
    # A second start neither trips over the names nor does anything.
    again = snakemake(folder, "--dry-run")
    assert "Nothing to be done" in again.stdout + again.stderr


# A Slurm that runs each job at once: what it is asked is text that has been through a shell of the login node.
SBATCH = """\
[ "$(eval echo \\${$#})" = /dev/stdin ] || exit 3
cat > "$0".$$
SLURM_JOB_ID=$$ sh "$0".$$ > "$0".$$.log 2>&1 && state=COMPLETED || state=FAILED
echo "$$|$state" >> "$0".states
echo $$
"""
SLURM = {
    "sbatch": SBATCH,
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
    "squeue": 'cat "${0%squeue}sbatch.states"',
    "scontrol": "echo MinJobAge = 300 sec",
    "sinfo": "exit 0",
    "sacct": "exit 1",
    "sacctmgr": "exit 1",
}
ONE_RUN: dict[str, Any] = {
    "fixed": TINY | {"steps_per_epoch": 4, "profiler": "none"},
    "scenarios": {"one": {"question": QUESTION, "vary": {"devices": [1]}, "figures": ["step_breakdown"]}},
}


def to_slurm(folder: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """Start the pipeline of a project with that Slurm, up to the runs."""
    tools.mkdir()
    for name, script in SLURM.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    here = str(Path(sys.prefix) / "bin" / "snakemake")
    return subprocess.run(
        [here, "--profile", "slurm", "--configfile", CONFIG, "--until", "launch_run"],
        cwd=folder, env=os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_a_project_folder_with_a_hostile_name_reaches_slurm_as_text(tmp_path: Path) -> None:
    folder = project(tmp_path / 'my $(touch planted1) `touch planted2` "; touch planted3; project', ONE_RUN)
    done = to_slurm(folder, tmp_path / "tools")
    logs = [log.read_text()[-2000:] for log in (tmp_path / "tools").glob("*.log")]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:] + "\n".join(logs)
    assert len(logs) == 1
    assert list(tmp_path.rglob(f"{PLANTED}*")) == []
    [run] = (folder / "results/runs").iterdir()
    assert json.loads((run / "run.json").read_text())["outcome"] == "completed"


def test_a_project_folder_that_snakemake_cannot_name_to_a_cluster_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / "it's $(touch planted)", ONE_RUN)
    done = to_slurm(folder, tmp_path / "tools")
    assert done.returncode != 0
    [line] = [line for line in done.stderr.splitlines() if "Snakemake cannot hand this path" in line]
    assert line.strip().startswith(ascii(str(folder)))
    assert list(tmp_path.rglob(f"{PLANTED}*")) == []


@pytest.mark.parametrize("name", ["x;id>planted", "$(touch planted)", "a b", "{run}", "`id`", "x\ny"])
def test_a_results_folder_that_commands_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path / "project", {"results": name, "scenarios": {}})
    done = make(folder, "demo")
    assert done.returncode != 0
    assert "results: the name" in done.stderr
    assert list(tmp_path.rglob(f"{PLANTED}*")) == []


def test_make_hands_on_the_name_of_a_configuration_as_it_is(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", {})
    name = f"config/it's my $(touch {PLANTED}).yaml"
    (folder / name).write_text("scenarios: [1")
    command = ["make", "-o", ".venv/ready", "demo", f"CONFIG={name.replace('$', '$$')}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith(f"{name}, line 1, column 14: does not parse as YAML")
    assert list(tmp_path.rglob(PLANTED)) == []
