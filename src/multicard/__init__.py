"""How a multi-GPU training or tuning job scales, and where its time goes."""

__version__ = "0.1.0"
