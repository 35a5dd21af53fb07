"""Ranks that wait in the middle of their work, so that no test hurries to meet them there."""

import os
from pathlib import Path

GO = "go"  # a file, once they may go on
OF_RANKS = "multicard.programs.vision.checkpoint"  # a module
# Found by every interpreter of a job; only ranks have imported what makes them ranks.
SITE = """
import builtins, os, sys, time

def print_and_wait(*words, print=print, **options):
    print(*words, **options)
    while {line!r} in str(words) and {module!r} in sys.modules and not os.path.exists({go!r}):
        time.sleep(0.05)

builtins.print = print_and_wait
"""


def waiting_at(line: str, folder: Path) -> dict[str, str]:
    """Variables with which a rank that has printed a line waits until there is the file `GO` in the folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(line=line, module=OF_RANKS, go=str(folder / GO)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
