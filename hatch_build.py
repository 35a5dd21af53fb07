"""What goes into a wheel beside the package, as `pyproject.toml` has hatchling ask."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PIPELINE = ("workflow", "profiles", "resources")


class PipelineHook(BuildHookInterface):
    """Puts the pipeline into wheels, so that `multicard run` and `multicard scale` work without a clone.

    An editable install gets none of it, which hatchling's table `force-include` would give it: it has the clone's
    (`multicard.core.pipeline`).
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel; `version` is `editable` of an editable install."""
        if version == "standard":
            build_data["force_include"].update({part: f"multicard/pipeline/{part}" for part in PIPELINE})
