"""Marks in a training program, for what `multicard` would else have to infer, or could not see.

They do nothing unless the program is observed.

>>> for images, labels in wrap_loader(loader):                        # doctest: +SKIP
...     with phase("forward"):
...         loss = loss_of(model(images), labels)
...     with phase("backward"):
...         loss.backward()
...     with phase("optimizer"):
...         optimizer.step()
...     log(loss=loss)
...     step(samples=len(labels))
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "evaluation")


def step(samples: int | None = None, tokens: int | None = None, padded_tokens: int | None = None) -> None:
    """End a step here; from the first mark on, these and nothing else are the ends of steps.

    Parameters
    ----------
    samples, tokens, padded_tokens
        Of this rank in the step, the latter with padding; without them, what its loaders gave is counted.

    >>> step()
    """
    if (observer := _observer()) is not None:
        observer.mark_step(samples=samples, tokens=tokens, padded_tokens=padded_tokens)


def phase(name: str) -> AbstractContextManager[None]:
    """Time a block as a phase of the step, one of `PHASES`; from the first one on, none is inferred.

    >>> with phase("forward"):
    ...     pass
    """
    if name not in PHASES:
        raise ValueError(f"phase: found {name!r}, expected one of {', '.join(PHASES)}")
    observer = _observer()
    return nullcontext() if observer is None else observer.mark_phase(name)


def log(weight: float = 1.0, **values: Any) -> None:
    """Record values of the step, or of the one that has just ended: `loss`, a tensor or a number.

    Tensors are read after the measured steps, and a function in place of one is called then. Of values that are no
    columns of steps.csv or epochs.csv nothing is kept; those of epochs.csv are a row of it.

    Parameters
    ----------
    weight
        Of these values in the step's mean, where it has several.

    >>> log(loss=0.3)
    """
    if (observer := _observer()) is not None:
        observer.mark_values(values, weight)


def wrap_loader(loader: Iterable[Any], ahead: int = 0) -> Iterable[Any]:
    """Have a loader's batches seen: one that is not PyTorch's is wrapped, any other is given back.

    Parameters
    ----------
    ahead
        Batches that it prepares before they are asked for.

    >>> wrap_loader([1, 2])
    [1, 2]
    """
    observer = _observer()
    return loader if observer is None else observer.wrap_loader(loader, ahead)


def training(steps: int | None = None, epoch: int = 1) -> bool:
    """Say that training begins; return whether it is observed, and will be ended when it is measured and profiled.

    Parameters
    ----------
    steps
        Of the whole training, which are all measured after the warm-up; those that follow are profiled, in a pass of
        their own. None: as many as are asked for.
    epoch
        In which it begins.

    >>> training(steps=1000)
    False
    """
    if (observer := _observer()) is not None:
        observer.mark_training(steps, epoch)
    return observer is not None


def _observer() -> Any:
    module = sys.modules.get("multicard.record.observe.observer")
    return None if module is None else module.marked()
