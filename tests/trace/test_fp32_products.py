"""Which units multiply 32-bit numbers, by names of kernels that were recorded on GPUs of a known kind."""

from pathlib import Path

import pytest

from captures import Process, make_trace
from multicard.trace.files import open_capture
from multicard.trace.fp32_products import Arithmetic, arithmetic
from multicard.trace.tables import activity_tables


@pytest.mark.parametrize(
    "name",
    [
        # An A100 (HolisticTraceAnalysis), and an H100 (nsys-ai).
        "ampere_sgemm_32x32_sliced1x4_tn",
        "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn::Params)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_"
        "kernel__5x_cublas",
    ],
)
def test_kernels_of_ampere_on_ordinary_cores_run_beside_tensor_cores_with_tf32(name: str) -> None:
    assert arithmetic(name) == Arithmetic.FP32_BESIDE_TF32


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(cutlass_80_tensorop::Params)",
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>(Params)",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_"
        "g1_tensor16x8x8_execute_kernel_cudnn_train",
    ],
)
def test_tf32_is_on_tensor_cores(name: str) -> None:
    assert arithmetic(name) == Arithmetic.TF32


@pytest.mark.parametrize(
    "name",
    [
        # In 16 bits, or of other vendors, or of a GPU that may have no tensor cores.
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
        "cutlass_tensorop_s1688gemm_f16_256x128_32x2_tn_align8",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0",
        "maxwell_scudnn_128x128_relu_interior_nn_v1",
        "volta_dgemm_64x64_nn",
        "triton_tem_fused_mm_0",
    ],
)
def test_names_that_show_nothing_are_not_judged(name: str) -> None:
    assert arithmetic(name) is None


def test_times_are_summed_by_arithmetic_with_the_longest_kernel(tmp_path: Path) -> None:
    kernels = [
        (0.0, 1.0, 4.0, "volta_sgemm_128x32_nt"),
        (0.0, 5.0, 7.0, "volta_sgemm_64x32_nt"),
        (0.0, 8.0, 10.0, "volta_sgemm_64x32_nt"),
        (0.0, 11.0, 12.0, "relu"),
    ]
    path = make_trace(tmp_path / "t.json", Process(kernels=kernels))
    [row] = activity_tables(open_capture([path], tmp_path), only=["fp32_products"]).rows["fp32_products"]
    assert (row["arithmetic"], row["calls"], row["kernel"]) == ("fp32", 3, "volta_sgemm_64x32_nt")
    assert row["total_s"] == pytest.approx(7e-3)
