"""Choose whether a GPU computes fp32 in TF32."""

import warnings

import torch


def choose_fp32(tf32: str) -> None:
    """Let the GPU compute fp32 in TF32 ("on") or not ("off"); "default" leaves PyTorch's setting unchanged.

    PyTorch has an older and a newer setting. This sets the older one, because Inductor reads it, and reading it raises
    an error after the newer one was set (https://github.com/pytorch/pytorch/issues/166387). The newer setting can
    always be read.
    """
    if tf32 != "default":
        allow_tf32(matmul=tf32 == "on", cudnn=tf32 == "on")


def allow_tf32(matmul: bool, cudnn: bool) -> None:
    """Set whether matrix products (`matmul`) and the operations of cuDNN (`cudnn`) are computed in TF32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*new API settings to control TF32", category=UserWarning)
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn
