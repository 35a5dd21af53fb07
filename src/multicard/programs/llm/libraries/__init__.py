"""The libraries that tune language models, a module each; `multicard.programs.llm.library` has the interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.programs.llm.libraries import torchtune, trl
from multicard.programs.llm.library import Library

LIBRARIES: Mapping[str, Library] = by_name(
    trl.LIBRARY,
    torchtune.LIBRARY,
)
