"""What is installed holds the whole pipeline, which `multicard run` and `multicard scale` start."""

import subprocess
import tomllib
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest

from conftest import ROOT
from multicard.core.pipeline import pipeline_folder

PARTS = ["Snakefile", "workflow", "profiles", "resources"]


def tracked() -> set[str]:
    command = ["git", "ls-files", "-z", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    return set(listed.split("\0")[:-1])


def test_in_a_clone_the_pipeline_is_the_clone_s() -> None:
    assert pipeline_folder() == ROOT


def test_every_part_of_the_pipeline_has_its_place_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert settings["force-include"] == {part: f"multicard/pipeline/{part}" for part in PARTS}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_pipeline(tmp_path: Path) -> None:
    from hatchling.build import build_wheel

    with chdir(ROOT):
        wheel = build_wheel(str(tmp_path))
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        held = {name.removeprefix("multicard/pipeline/") for name in archive.namelist()}
        differ = [
            name
            for name in tracked() & held
            if archive.read(f"multicard/pipeline/{name}") != (ROOT / name).read_bytes()
        ]
    assert tracked() <= held
    assert not differ
