"""What vendors state that a GPU computes at most, in dense matrix products: operations per second by precision.

By the whole name that NVIDIA's driver gives a GPU, so that none is taken for another. fp64 is by tensor cores where
these have it, fp32 without TF32. What is not here is to be measured, with `multicard doctor --measure`.

Sources: for the V100 https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
and for the A100 https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf;
for the H100 "NVIDIA H100 Tensor Core GPU Architecture", table 2
(https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper); for the H200, which has the same processor,
https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446, whose numbers with sparsity are twice.
"""

_V100 = {"fp64": 7.8e12, "fp32": 15.7e12, "fp16": 125e12}
_A100 = {"fp64": 19.5e12, "fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
_H100_SXM = {"fp64": 66.9e12, "fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12}
_H100_PCIE = {"fp64": 51.2e12, "fp32": 51.2e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12}

PEAKS: dict[str, dict[str, float]] = {
    "Tesla V100-SXM2-16GB": _V100,
    "Tesla V100-SXM2-32GB": _V100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H200": _H100_SXM,
}
