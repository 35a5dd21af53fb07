"""The workflows on GitHub run what the repository has, with no more rights than they need."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from conftest import ROOT, ran
from multicard import __version__

GITHUB = ROOT / ".github"


def read(pattern: str) -> dict[str, Any]:
    """Return the contents of the YAML files that match, by the path in `.github`."""
    paths = sorted(GITHUB.glob(pattern))
    return {path.relative_to(GITHUB).as_posix(): yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths}


WORKFLOWS, ACTIONS = read("workflows/*.yml"), read("actions/*/action.yml")
JOBS = {name: job for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items()}
STEPS = [step for part in (*JOBS.values(), *(action["runs"] for action in ACTIONS.values())) for step in part["steps"]]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_each_job_of_ci_runs_its_tier() -> None:
    assert set(WORKFLOWS["workflows/ci.yml"]["jobs"]) == {"lint", "unit", "base", "full"}
    last = {job: commands(job)[-1] for job in ("lint", "unit", "full")}
    assert last == {"lint": "make lint", "unit": "make test-fast", "full": ".ci/run"}


def test_targets_programs_actions_and_files_that_workflows_name_are_there() -> None:
    text = "\n".join(step.get("run", "") for step in STEPS)
    targets = re.findall(r"^make (\S+)$", text, re.M)
    assert {"lint", "test-fast", ".venv/dev-ready"} <= set(targets)
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, check=True)
    assert os.access(ROOT / ".ci/run", os.X_OK)

    used = [step["uses"] for step in STEPS if step.get("uses", "").startswith("./")]
    assert used and [action for action in used if not (ROOT / action / "action.yml").is_file()] == []
    keys = [str(step.get("with", {})) for step in STEPS]
    hashed = [file for key in keys for files in re.findall(r"hashFiles\((.+?)\)", key) for file in files.split(", ")]
    cached = {file.strip("'") for file in hashed} | {
        step["with"]["cache-dependency-path"] for step in STEPS if "cache-dependency-path" in step.get("with", {})
    }
    assert {"envs/requirements.lock", "envs/dev.lock"} <= cached and [
        file for file in cached if not (ROOT / file).is_file()
    ] == []


def test_jobs_may_only_read_but_for_the_one_that_publishes() -> None:
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    assert {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_what_was_checked_is_published() -> None:
    publish = JOBS["publish"]
    assert set(publish["needs"]) == {"build", "wheel"} and publish["environment"] == "pypi"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_a_release_is_refused_unless_tag_version_changelog_and_citation_agree(tmp_path: Path) -> None:
    [compare] = [text for text in commands("build") if "CITATION.cff" in text]
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    (tmp_path / "dist").mkdir()
    for version in (__version__, "0.9"):
        for name in (f"multicard-{version}.tar.gz", f"multicard-{version}-py3-none-any.whl"):
            (tmp_path / "dist" / name).touch()

    def accepted(tag: str) -> bool:
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        return ran("bash", "-e", "-c", compare, cwd=tmp_path, env=environment).returncode == 0

    assert accepted(f"v{__version__}")
    assert not accepted("v0.9")  # neither the changelog nor the citation has it
    (tmp_path / "dist" / f"multicard-{__version__}.tar.gz").unlink()
    assert not accepted(f"v{__version__}")


def test_dependabot_looks_wherever_an_action_of_others_is_used() -> None:
    [updates] = read("dependabot.yml")["dependabot.yml"]["updates"]
    where = {path.rpartition("/")[0] for path, action in ACTIONS.items() if "uses: " in yaml.safe_dump(action)}
    assert set(updates["directories"]) == {"/", *(f"/.github/{folder}" for folder in where)}
