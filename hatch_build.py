"""What goes into a wheel beside the package, as `pyproject.toml` has hatchling ask."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GIT = shutil.which("git")
PIPELINE = ("workflow", "profiles", "resources")


class PipelineHook(BuildHookInterface):
    """Puts the pipeline into wheels, so that `multicard run` and `multicard scale` work without a clone.

    An editable install gets none of it, which hatchling's table `force-include` would give it: it has the clone's
    (`multicard.core.pipeline`).
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel; `version` is `editable` of an editable install."""
        if version != "standard":
            return
        build_data["force_include"].update({part: f"multicard/pipeline/{part}" for part in PIPELINE})
        asked = ["git", "-C", self.root, "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout if GIT else ""
        if commit:
            file = Path(self.directory, "commit.txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(commit, encoding="utf-8")
            build_data["force_include"][str(file)] = "multicard/pipeline/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the file beside the wheel."""
        Path(self.directory, "commit.txt").unlink(missing_ok=True)
