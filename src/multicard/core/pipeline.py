"""The folder of the pipeline, with its rules, scripts, profiles and shipped inputs; and multicard's full version."""

from pathlib import Path

from multicard import __version__
from multicard.core.system import ask, read_or_none

PACKAGE = Path(__file__).parents[1]
COMMIT = "commit.txt"  # hatch_build.py writes it into a wheel
# Environment variable that names a pipe by its file descriptor and inode. The process that started the pipeline holds
# the other end, which closes when that process ends, even by SIGKILL.
PARENT_PIPE = "MULTICARD_PARENT_PIPE"


def pipeline_folder() -> Path:
    """Return the folder with `workflow`, `profiles` and `resources`: of the installed package, else of the clone."""
    packaged = PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else PACKAGE.parents[1]


def full_version() -> str:
    """Return the version with the commit of the clone, or that the wheel was built from, as `1.0.0+g0123abc`.

    Without the commit where that is not known.
    """
    folder = pipeline_folder()
    commit = read_or_none((folder / COMMIT).read_text)
    if commit is None and (folder / ".git").exists():
        commit = ask(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]).output
    return f"{__version__}+g{commit.strip()}" if commit and commit.strip() else __version__
