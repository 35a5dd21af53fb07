"""Replace functions of PyTorch, so that calls of them can be observed or changed."""

import functools
from collections.abc import Callable
from typing import Any

import torch

# True where torch.compile traces what follows: there a function must be as if nothing had replaced it.
is_compiling = torch.compiler.is_dynamo_compiling


def replace(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Have calls of a function go to `around(function, *arguments)`; return a function that undoes that."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def replaced(*arguments: Any, **options: Any) -> Any:
        return plain(*arguments, **options) if is_compiling() else around(plain, *arguments, **options)

    setattr(owner, name, replaced)
    return lambda: setattr(owner, name, plain)
