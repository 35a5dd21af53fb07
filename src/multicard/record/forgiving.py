"""A profiler's part in a training that continues where the profiler fails."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from multicard.core.errors import UserError
from multicard.profilers.interface import Session

LONGEST_PROBLEM = 300  # characters


class Forgiving(Session):
    """Does what another session does until that fails, and nothing from then on but to end what it has begun.

    A full disk (`UserError`) stays an error: other files need the space too.

    Attributes
    ----------
    problem
        The first error in one line; None where there was none.
    """

    def __init__(self, session: Session):
        self.problem: str | None = None
        self._session = session

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a range, if it can be."""
        return nullcontext() if self.problem else self._around(lambda: self._session.range(name))

    def mark(self, name: str) -> None:
        """Put a name into the trace, if it can be."""
        if self.problem is None:
            self._attempt(lambda: self._session.mark(name))

    def recording(self) -> AbstractContextManager[object]:
        """Record while the block runs, if it can be."""
        return self._around(self._session.recording)

    @contextmanager
    def _around(self, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Run the block in a context, or without it where it cannot be entered; an error of the block stays one."""
        entered: list[AbstractContextManager[object]] = []

        def enter() -> None:
            context = make()
            context.__enter__()
            entered.append(context)

        self._attempt(enter)
        try:
            yield
        except BaseException as error:
            for context in entered:
                with contextlib.suppress(Exception):
                    context.__exit__(type(error), error, error.__traceback__)
            raise
        for context in entered:
            self._attempt(lambda context=context: context.__exit__(None, None, None))

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.problem = self.problem or text[:LONGEST_PROBLEM]
