"""What of PyTorch is watched: its optimizers, loaders and backward pass."""

from collections.abc import Callable


def install(note_process: Callable[..., None]) -> None:
    """Watch this process from now on; `note_process` adds facts to its process.json."""
