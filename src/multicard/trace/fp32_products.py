"""Judge by the name of a kernel whether it multiplies matrices of 32-bit numbers, and on which units of an NVIDIA GPU.

NVIDIA's libraries name the instruction that a kernel multiplies with. Names that match no rule show nothing, such as
those of other vendors' GPUs, of Triton and of cuBLAS's `nvjet` kernels. The rules and where they come from:

- `sgemm` and `scudnn` behind the name of an architecture are cuBLAS's and cuDNN's kernels of single precision. Those on
  tensor cores have the shape of the instruction in between, such as `s884gemm` and `s1688cudnn`: by these shapes
  NVIDIA's PyProf recognizes tensor cores (NVIDIA/PyProf, pyprof/prof/tc.py).
- `ffma` in a name with `xmma` is the GPU's ordinary multiplication and addition. Names of such kernels on tensor cores
  have the shape instead, such as `tensor16x8x8`. PyProf counts all `xmma_gemm` as kernels on tensor cores, which these
  are not.
- `simt` in a name of CUTLASS means ordinary cores, `tensorop` tensor cores (CUTLASS documentation, "Functionality").
- `tensorop_s1688` is TF32 if no other type is named before or behind it: on Ampere TF32 has this shape, 16-bit numbers
  have 16816 (NVIDIA/cutlass, issue 1341).

A kernel compiled for an architecture runs on that or a later one: a GPU that runs `ampere_`, `sm80_` or `cutlass_80_`
kernels has tensor cores with TF32.
"""

import re
from enum import StrEnum


class Arithmetic(StrEnum):
    """How a kernel multiplies matrices of 32-bit numbers."""

    # On tensor cores, with the products rounded to TF32.
    TF32 = "tf32"
    # In single precision without tensor cores, on a GPU whose tensor cores have TF32.
    FP32_BESIDE_TF32 = "fp32 beside tf32"
    # In single precision without tensor cores, on a GPU of the Volta generation or a later one.
    FP32 = "fp32"


# The first rule that matches a part of a name decides.
_RULES = (
    (Arithmetic.TF32, re.compile(r"tf32|tensorop_s1688[a-z]+_\d+x\d+")),
    (
        Arithmetic.FP32_BESIDE_TF32,
        re.compile(
            r"ampere_s(?:gemm|cudnn)_|sm(?:8|9|1\d)\d_xmma_\w+_ffma|cutlass_80_simt_s(?:gemm|fprop|dgrad|wgrad)"
        ),
    ),
    (Arithmetic.FP32, re.compile(r"(?:volta|turing)_s(?:gemm|cudnn)_|sm7\d_xmma_\w+_ffma")),
)


def arithmetic(name: str) -> Arithmetic | None:
    """Return how the kernel of this name multiplies matrices of 32-bit numbers; None if the name does not show it.

    >>> arithmetic("volta_sgemm_128x32_nt"), arithmetic("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1")
    (<Arithmetic.FP32: 'fp32'>, <Arithmetic.FP32_BESIDE_TF32: 'fp32 beside tf32'>)
    >>> arithmetic("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"), arithmetic("nvjet_tst_192x192_64x4_2x1_v_bz_TNN")
    (None, None)
    """
    return next((kind for kind, rule in _RULES if rule.search(name)), None)
