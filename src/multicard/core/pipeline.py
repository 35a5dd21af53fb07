"""Where the pipeline lies: its rules and scripts, the profiles and what is shipped with them."""

from pathlib import Path

from multicard import __version__
from multicard.core.system import ask, read_or_none

PACKAGE = Path(__file__).parents[1]
COMMIT = "commit.txt"  # in a wheel: hatch_build.py
# Variable that names a pipe by its file descriptor and inode: its other end is held by the process that started the
# pipeline, so that it closes when that ends, even by SIGKILL.
PARENT_PIPE = "MULTICARD_PARENT_PIPE"


def pipeline_folder() -> Path:
    """Folder with `workflow`, `profiles` and `resources`: in an installed package, else the clone's."""
    packaged = PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else PACKAGE.parents[1]


def full_version() -> str:
    """The version with the Git commit, such as `1.0.0+g0123abc`: of the clone, or that the wheel was built from."""
    folder = pipeline_folder()
    commit = read_or_none((folder / COMMIT).read_text)
    if commit is None and (folder / ".git").exists():
        commit = ask(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]).output
    return f"{__version__}+g{commit.strip()}" if commit and commit.strip() else __version__
