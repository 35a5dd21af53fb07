"""Kernel names as libraries give them, old and new, and the class that a reader would give each."""

import pytest

from multicard.trace.kernel_classes import CLASSES, COLLECTIVES, collective, kernel_class

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>", "attention"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", "attention"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel", "convolution"),
        ("void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64>", "convolution"),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>", "convolution"),
        ("ampere_sgemm_32x128_nt", "matrix_multiply"),
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", "matrix_multiply"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn>", "matrix_multiply"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "normalization"),
        ("void at::native::vectorized_layer_norm_kernel<float, float>", "normalization"),
        ("void at::native::max_pool_forward_nchw<float, float>", "pooling"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>", "reduction"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", "memory_layout"),
        ("void at::native::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", "memory_layout"),
        (COPY, "memory_layout"),
        (ELEMENTWISE, "elementwise"),
        ("triton_poi_fused_add_bitwise_and_0", "elementwise"),
        ("saxpy(double *, double *, double *, double, int)", "other"),
        ("", "other"),
    ],
)  # fmt: skip
def test_a_kernel_is_of_the_class_that_its_name_tells(name: str, expected: str) -> None:
    assert expected in CLASSES
    assert kernel_class(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *)", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm *)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "send_recv"),
        ("void ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("ncclDevKernel_Generic(ncclDevComm *)", None),
    ],
)
def test_a_collective_is_told_from_the_name(name: str, expected: str | None) -> None:
    assert expected is None or expected in COLLECTIVES.values()
    assert (kernel_class(name), collective(name)) == ("communication", expected)
    assert collective(ELEMENTWISE) is None
