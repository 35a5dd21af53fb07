"""The console command, called in the process of the tests."""

import io
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from multicard.cli import main


def multicard(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` and return its exit code and output.

    It runs in this process: a new one would take a second to start.
    """
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder or Path.cwd()), redirect_stdout(out), redirect_stderr(err):
        try:
            main([*map(str, arguments)])
            code = 0
        except SystemExit as ended:
            # Python prints a text that it exits with, and then returns 1.
            code = ended.code if isinstance(ended.code, int) else 1
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
