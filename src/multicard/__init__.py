"""How a multi-GPU training or tuning job scales, and where its time goes."""

from importlib.metadata import version

__version__ = version("multicard")
