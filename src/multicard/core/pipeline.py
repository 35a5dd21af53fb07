"""Where the pipeline lies: its rules and scripts, the profiles and what is shipped with them."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def pipeline_folder() -> Path:
    """Folder with `workflow`, `profiles` and `resources`: in an installed package, else the clone's."""
    packaged = PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else PACKAGE.parents[1]
