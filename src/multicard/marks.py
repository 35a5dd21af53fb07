"""Mark steps, phases and values in a training program, for what `multicard` would else infer, or could not see.

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
    """End a step here; from the first mark on, nothing but marks ends steps.

    Parameters
    ----------
    samples, tokens, padded_tokens
        Numbers of this rank in the step; `padded_tokens` includes padding. Without any of them, multicard counts the
        batches of its loaders.

    >>> step()
    """
    observer = _observer()
    if observer is not None:
        observer.mark_step(samples=samples, tokens=tokens, padded_tokens=padded_tokens)


def phase(name: str) -> AbstractContextManager[None]:
    """Time a block as a phase of the step, one of `PHASES`; from the first mark on, no phase is inferred.

    >>> with phase("forward"):
    ...     pass
    """
    if name not in PHASES:
        raise ValueError(f"phase: found {name!r}, expected one of {', '.join(PHASES)}")
    observer = _observer()
    return nullcontext() if observer is None else observer.mark_phase(name)


def log(weight: float = 1.0, **values: Any) -> None:
    """Record values of the step, or of the one that has just ended: `loss`, a tensor or a number.

    Tensors are read after the measured steps, and a function in place of one is called then. Values that are no
    columns of steps.csv or epochs.csv are dropped. Values of epochs.csv become a row of it.

    Parameters
    ----------
    weight
        Weight of these values in the mean of the step, if it logs several times.

    >>> log(loss=0.3)
    """
    observer = _observer()
    if observer is not None:
        observer.mark_values(values, weight)


def wrap_loader(loader: Iterable[Any], ahead: int = 0) -> Iterable[Any]:
    """Return a loader whose batches multicard observes: PyTorch's as it is, any other wrapped.

    Parameters
    ----------
    ahead
        Number of batches that the loader prepares before they are asked for.

    >>> wrap_loader([1, 2])
    [1, 2]
    """
    observer = _observer()
    return loader if observer is None else observer.wrap_loader(loader, ahead)


def training(steps: int | None = None, epoch: int = 1) -> bool:
    """Mark the begin of training; return True if it is observed, and so ends when it is measured and profiled.

    The first step begins here, and only marks end steps (`step`). If a single process has several GPUs, all of them
    count as used. From then on, multicard resets PyTorch's counters of peak memory.

    Parameters
    ----------
    steps
        Number of steps of the whole training. All are measured after the warm-up; the profiled steps follow, in a pass
        of their own. None: the run's configuration decides.
    epoch
        Epoch in which training begins.

    >>> training(steps=1000)
    False
    """
    observer = _observer()
    if observer is not None:
        observer.mark_training(steps, epoch)
    return observer is not None


def _observer() -> Any:
    """Return the observer of this process, None if there is none; without an import of it, which needs torch."""
    module = sys.modules.get("multicard.observe.observer")
    return None if module is None else module.observer_of_process()
