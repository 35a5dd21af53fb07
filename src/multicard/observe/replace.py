"""Replace functions of PyTorch, so that calls of them can be observed or changed."""

import functools
from collections.abc import Callable
from typing import Any

import torch

# Returns True while torch.compile traces the caller. A replaced function must then do what the original does.
is_compiling = torch.compiler.is_dynamo_compiling


def replace(owner: Any, name: str, around: Callable[..., Any], *others: Any) -> Callable[[], None]:
    """Replace the function `owner.name`; return a function that puts the original back.

    A call then calls `around(original, *arguments, **options)`. While torch.compile traces the call, it calls the
    original.

    `others`: modules that have the same function by the same name. They get the same replacement, because PyTorch,
    Dynamo and pickle compare functions by identity.
    """

    def make(plain: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*arguments: Any, **options: Any) -> Any:
            return plain(*arguments, **options) if is_compiling() else around(plain, *arguments, **options)

        return replaced

    return substitute(owner, name, make, *others)


def substitute(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]], *others: Any
) -> Callable[[], None]:
    """Replace the function `owner.name` by `make(original)`; otherwise as `replace`.

    For functions that are called in every batch, because a call then is one call of Python and not two. The function
    that `make` returns must itself do what the original does if `is_compiling` returns True.
    """
    plain = getattr(owner, name)
    replacement = functools.wraps(plain)(make(plain))
    owners = [owner, *(other for other in others if getattr(other, name, None) is plain)]

    def put(function: Callable[..., Any]) -> None:
        for module in owners:
            setattr(module, name, function)

    put(replacement)
    return lambda: put(plain)
