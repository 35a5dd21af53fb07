"""Find the folder of the pipeline (rules, scripts, profiles and shipped inputs), and multicard's full version."""

from pathlib import Path

from multicard import __version__
from multicard.core.system import ask, read_or_none

PACKAGE = Path(__file__).parents[1]
COMMIT = "commit.txt"  # hatch_build.py writes it into a wheel
# Environment variable that names a pipe, by its file descriptor and its inode. The process that started the pipeline
# holds the pipe's other end. That end closes when the process ends, even by SIGKILL.
PARENT_PIPE = "MULTICARD_PARENT_PIPE"


def pipeline_folder() -> Path:
    """Return the folder with `workflow`, `profiles` and `resources`.

    It is a folder of the installed package, or if the package has none, the root of the git clone.
    """
    packaged = PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else PACKAGE.parents[1]


def full_version() -> str:
    """Return the version and the git commit, such as `1.0.0+g0123abc`; the version alone if the commit is not known.

    The commit is the one that the wheel was built from, or the one that is checked out in the clone.
    """
    folder = pipeline_folder()
    commit = read_or_none((folder / COMMIT).read_text)
    if commit is None and (folder / ".git").exists():
        commit = ask(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]).output
    return f"{__version__}+g{commit.strip()}" if commit and commit.strip() else __version__
