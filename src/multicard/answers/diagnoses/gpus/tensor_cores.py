"""Diagnosis of matrix products and convolutions in 32 bits that do not use the GPU's tensor cores."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity
from multicard.core.units import percent
from multicard.trace.fp32_products import Arithmetic
from multicard.trace.kernel_names import function_path

LONGEST_NAME = 60  # characters of a name

_HIGH = '`torch.set_float32_matmul_precision("high")`'
_ALLOW_TF32 = f"TF32 ({_HIGH} and `torch.backends.cudnn.allow_tf32 = True`), or `torch.autocast` to bfloat16"
# Other products use TF32, so it may be allowed, and these have sizes for which the libraries choose other kernels.
_SOME_TF32 = (
    f"`torch.autocast` to bfloat16, and sizes that are multiples of 8; or TF32 for these, too ({_HIGH}), unless it is "
    "allowed"
)
_16_BITS = "`torch.autocast` to 16 bits, if the GPU has tensor cores"


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that kernels take long which multiply 32-bit numbers without tensor cores.

    By how much tensor cores are faster is not known, so the gain is not. Sums of times of kernels count those twice
    that run beside one another.
    """
    kernels = activity.sum_of("kernel_classes")
    without = activity.sum_of("fp32_products", arithmetic=(Arithmetic.FP32, Arithmetic.FP32_BESIDE_TF32))
    if not activity.whole_s or not kernels.seconds or without.seconds < LEAST * activity.whole_s:
        return
    beside_tf32 = activity.sum_of("fp32_products", arithmetic=Arithmetic.FP32_BESIDE_TF32)
    has_tf32 = activity.sum_of("fp32_products", arithmetic=Arithmetic.TF32).calls > 0
    evidence = (
        f"matrix products or convolutions in fp32 that use no tensor cores take "
        f"{activity.takes(without.seconds / activity.whole_s)}, {percent(without.seconds / kernels.seconds)} of the "
        f"time of all kernels{_longest(activity)}"
    )
    if has_tf32:
        remedy = _SOME_TF32
    else:
        remedy = _ALLOW_TF32 if beside_tf32.calls else _16_BITS
    yield Diagnosis(evidence, remedy, None)


def _longest(activity: GpuActivity) -> str:
    """Return the kernel that takes longest, in words; empty if its name is not known."""
    rows = activity.tables["fp32_products"]
    rows = rows[(rows["arithmetic"] != Arithmetic.TF32) & rows["kernel"].notna()]
    if rows.empty:
        return ""
    kernel = str(rows.loc[rows["total_s"].idxmax(), "kernel"])
    return f"; the longest is `{_short(kernel)}`"


def _short(kernel: str) -> str:
    """Return the beginning of the name of a kernel, without what is the same for all of its kind.

    >>> _short("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)")
    'cutlass_80_simt_sgemm_128x32_8x5_nn_align1'
    """
    _, is_template, arguments = kernel.partition("Kernel<")
    name = arguments.partition(">")[0] if is_template else function_path(kernel)
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
