"""Kernel names as libraries give them, old and new, and the class that a reader would give each."""

import pytest

from multicard.trace.kernel_classes import CLASSES, COLLECTIVES, collective, kernel_class

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >"
)
CK = "_ZN2ck16tensor_operation6device12_GLOBAL__N_1"
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
        # hipBLASLt (Tensile), MIOpen and Composable Kernel in public captures of MI210, MI300X and MI350X
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1", "matrix_multiply"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x16_wt16x16x4_ws1x1_wr2x2_ta1x1x4x1", "convolution"),
        ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x16_wt32x32x8_ws1x1_wr2x2_ta1x4x1x2", "convolution"),
        (f"{CK}39kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3EEEvv", "convolution"),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_4GemmEEEvv", "convolution"),
        ("SubTensorOpWithCastTensor1d", "elementwise"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_PT_", "normalization"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEEEEvv", "normalization"),
        ("__amd_rocclr_copyBuffer", "memory_layout"),
        ("__amd_rocclr_fillBufferAligned.kd", "elementwise"),
        # MIOpen, src/kernels/naive_conv.cpp and src/solver/conv_bin_winoRxS.cpp
        ("naive_conv_ab_nonpacked_fwd_nchw_half_double_half", "convolution"),
        ("miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1", "convolution"),
        # Inductor: torch/_inductor/select_algorithm.py and codegen/triton.py
        ("triton_mm", "matrix_multiply"),
        ("triton_tem_fused_mm_12", "matrix_multiply"),
        ("triton_tem_fused__to_copy_addmm_relu_3", "matrix_multiply"),
        ("triton_tem_fused_bmm_0", "matrix_multiply"),
        ("triton_tem_fused_convolution_1", "convolution"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_tem_fused_comm_free_add_0", "other"),
        ("triton__0d1d2d3de", "elementwise"),
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_poi_fused_all_reduce_wait_tensor_add_2", "elementwise"),
        ("triton_red_fused__scaled_dot_product_flash_attention_sum_1", "reduction"),
        ("triton_red_fused_native_layer_norm_0", "normalization"),
        # SageAttention: sageattention/triton/attn_qk_int8_per_block.py (as xDiT names it) and csrc/qattn
        ("sage_fwd", "attention"),
        ("void qk_int_sv_f8_attn_kernel<128, 64, 32, 64, 128>(signed char*, signed char*)", "attention"),
        ("void qk_int8_sv_f16_accum_f16_block_sparse_attn_kernel<128>(signed char*)", "attention"),
        # vLLM csrc/cache_kernels.cu and fused_moe.py, SGLang
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>()", "memory_layout"),
        ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, unsigned char>()", "memory_layout"),
        ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>()", "memory_layout"),
        ("fused_moe_kernel", "matrix_multiply"),
        # Intel: oneDNN and torch-xpu-ops
        ("gemm_kernel", "matrix_multiply"),
        ("gen9_conv_fwd", "convolution"),
        ("at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::AddFunctor<float>>", "elementwise"),
        # PyTorch: aten/src/ATen/native/cuda/layer_norm_kernel.cu
        ("void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long)", "normalization"),
        # The function's own name comes before namespaces, template arguments and parameters.
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "memory_layout"),
        ("void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::FixedDivisor)", "other"),
        ("void at::native::vectorized_elementwise_kernel<4, gelu_of_matmul>()", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::func_wrapper_t<pooled>>()", "reduction"),
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
        ("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE", "send_recv"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)", "all_reduce"),
        # RCCL with MSCCL, as in captures of MI300X
        ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", None),
        # PyTorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu and nvshmem_extension.cu
        ("void c10d::symmetric_memory::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>()", "all_reduce"),
        ("void multimem_all_gather_kernel<16>(char*, char*, unsigned long)", "all_gather"),
        ("allToAllV(void*, void*, long*, long, int)", "all_to_all"),
        ("all_gather_object_kernel_symm_mem", "all_gather"),
        # vLLM and SGLang csrc/custom_all_reduce.cuh, csrc/quickreduce
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void sglang::cross_device_reduce_2stage<half, 8>()", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>()", "all_reduce"),
        # aiter csrc/include/custom_all_reduce.cuh
        ("void aiter::reduce_scatter_cross_device_store<std::bfloat16_t, 8>()", "reduce_scatter"),
        ("void aiter::allgather_vec<std::bfloat16_t, 8>(aiter::RankData*)", "all_gather"),
        ("void aiter::allreduce_fusion_kernel_1stage<>()", "all_reduce"),
        ("void aiter::allReduceQuantFp8<__half, 64, 8, 8>()", "all_reduce"),
        # FlashInfer include/flashinfer/comm, TensorRT-LLM cpp/tensorrt_llm/kernels
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<2, __nv_bfloat16>()", "all_reduce"),
        ("void moereduce_allreduce_fusion_kernel_oneshot_lamport<__half, 8, true>()", "all_reduce"),
        ("void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<__half, 8>()", "all_reduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>()", "all_reduce"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>()", "all_to_all"),
        # DeepEP csrc/kernels, demangled and mangled
        ("void deep_ep::internode::dispatch<true, 8, false, 24064>(int4*, float*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*)", "all_to_all"),
        ("_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4Pf", "all_to_all"),
        ("_ZTSZZN7deep_ep9intranode7combineEDnPvPfPKvENKUlRN4sycl7handlerEE0_", "all_to_all"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", None),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", None),
        # mori src/ops/dispatch_combine, with a namespace and without
        ("void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>()", "all_to_all"),
        ("EpDispatchIntraNodeKernel_bf16", "all_to_all"),
        # NVSHMEM and Transformer Engine's common/comm_gemm_overlap/userbuffers
        ("nvshmemi_signal_wait_until_kernel", None),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", None),
        ("void alltoall_on_stream_kernel<char, (threadgroup_t)1>(int)", "all_to_all"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", "reduce_scatter"),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int, int)", "all_gather"),
        ("void userbuffers_fp16_sum_inplace_gpu_mc<8>(int)", "all_reduce"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
        # oneCCL under SYCL, MSCCL++
        ("oneapi::ccl::allreduce_large_read_write<float>", "all_reduce"),
        ("oneccl_allreduce_pcie<sycl::half, 2>", "all_reduce"),
        ("xccl::allgather", "all_gather"),
        ("void mscclpp::collective::allreduceNvls<__half>()", "all_reduce"),
    ],
)
def test_a_collective_is_told_from_the_name(name: str, expected: str | None) -> None:
    assert expected is None or expected in COLLECTIVES.values()
    assert (kernel_class(name), collective(name)) == ("communication", expected)
    assert collective(ELEMENTWISE) is None


@pytest.mark.parametrize(
    "name",
    [
        "void dispatch<float>(float*)",  # of somebody else
        "dispatch_kernel",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",  # counts tokens on its own GPU
        "void cub::DeviceReduceKernel<cub::BlockReduce<float>>(float*)",
        "void layer_norm<float, oneflow::WarpAllReduce<SumOp, float, 32>>(float*)",
        "void rms<float>(AllReduceParams)",
        "void warpAllReduceSum<float>(float*)",
        "block_all_reduce_sum_f32_kernel",
        "softmax_warp_allreduce_kernel",
        "void layerNormAllReduce<float>()",
        "softmax_allreduce_free",
        "gemm_allreduce_kernel",  # a matrix product in the first place
        "reduce_kernel",
        "void index_broadcast_kernel<float>()",
        "triton_red_fused_all_gather_into_tensor_sum_0",
        "void at::native::vectorized_elementwise_kernel<4, ncclRedOp>()",
    ],
)
def test_a_kernel_that_stays_on_its_gpu_does_not_communicate(name: str) -> None:
    assert kernel_class(name) != "communication"
    assert collective(name) is None
