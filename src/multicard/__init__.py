"""How a multi-GPU training or tuning job scales, and where its time goes.

In a notebook, `read_trace` and `read_results` give tables and figures; they are imported when first asked for.
"""

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multicard.api.results import read_results
    from multicard.api.traces import read_trace

__all__ = ["__version__", "read_results", "read_trace"]

__version__ = "1.0.0"

# In the processes of a job, this file is a copy beside the few sub-packages that the observer needs
# (`multicard.observe`). The others are found where multicard is installed.
__path__ = extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    if name == "read_trace":
        from multicard.api.traces import read_trace

        return read_trace
    if name == "read_results":
        from multicard.api.results import read_results

        return read_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
