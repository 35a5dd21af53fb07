"""Tell code of the user from that of libraries and of multicard, by the file that it is in."""

import functools
import os
import sys
import sysconfig
from enum import Enum
from pathlib import Path
from types import FrameType

import torch

_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"
_MULTICARD = f"{Path(__file__).parents[1]}/"
_OWN_PROGRAMS = "/multicard/programs/"  # part of the path of the programs that come with multicard
# Files below these folders are not the user's. The last is where multicard is installed.
_LIBRARIES = (_STANDARD_LIBRARY, f"{Path(torch.__file__).parents[1]}/", f"{Path(__file__).parents[2]}/")
# Parts of the paths of code that torch.compile and Triton generate.
_GENERATED = ("/torchinductor_", "/.triton/")
# Variables with other folders for it.
_GENERATED_IN = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
# Names of the folders in which packages are installed; they may lie in that of the standard library.
_PACKAGES = ("/site-packages/", "/dist-packages/")


class Owner(Enum):
    """Whose a file of code is."""

    USER = "user"
    MULTICARD = "multicard"
    STANDARD_LIBRARY = "standard library"
    LIBRARY = "library"


@functools.cache
def owner_of(path: str) -> Owner:
    """Return whose the code is that was compiled from `path`; code that is in no file is a library's.

    The program itself is the user's wherever it lies.

    >>> owner_of("/data/train.py").value, owner_of(functools.__file__).value, owner_of("<frozen runpy>").value
    ('user', 'standard library', 'library')
    >>> owner_of("/tmp/torchinductor_me/ab/cab.py").value
    'library'
    """
    if _OWN_PROGRAMS in path or path == getattr(sys.modules.get("__main__"), "__file__", None):
        return Owner.USER
    if path.startswith(_MULTICARD):
        return Owner.MULTICARD
    if path.startswith(_STANDARD_LIBRARY) and not any(folder in path for folder in _PACKAGES):
        return Owner.STANDARD_LIBRARY
    if path.startswith((*_LIBRARIES, "<")) or any(folder in path for folder in _PACKAGES):
        return Owner.LIBRARY
    if any(part in path for part in _GENERATED) or path.startswith(_generated_folders()):
        return Owner.LIBRARY
    return Owner.USER


def _generated_folders() -> tuple[str, ...]:
    """Return the folders that the environment names for generated code."""
    return tuple(f"{os.environ[name]}/" for name in _GENERATED_IN if os.environ.get(name))


def site_of(path: str, line: int | None) -> str:
    """Return a line of code as records have it.

    >>> site_of("/data/train.py", 12)
    'train.py:12'
    """
    return f"{Path(path).name}:{line}"


def calling_site() -> str | None:
    """Return the innermost line on the stack of this thread that is the user's: "train.py:12"; None if none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if owner_of(frame.f_code.co_filename) is Owner.USER:
            return site_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
