"""What kind of work a kernel does, told from its name.

Names are all that a trace has, so this is a judgement, not a measurement. The first rule that fits decides: special
work comes before the general engines that carry it out, a convolution before the matrix multiply inside it, a copy
before the elementwise kernel that copies.
"""

import re

CLASSES = (
    "communication",
    "attention",
    "convolution",
    "matrix_multiply",
    "normalization",
    "pooling",
    "optimizer",
    "reduction",
    "memory_layout",
    "elementwise",
    "other",
)

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}

# ncclKernel_…, ncclDevKernel_… and what may come after them, some behind a return type; and the kernels of PyTorch
# and vLLM that reduce over peer memory without NCCL.
_COMMUNICATION = re.compile(r"^(?:void\s+)?nccl|multimem_all_|(?:one|two)_shot_all_|cross_device_reduce", re.IGNORECASE)
_COLLECTIVE = re.compile("|".join(COLLECTIVES), re.IGNORECASE)

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("attention", r"fmha|flash_?(?:fwd|bwd|attn|attention)|attention|attn_(?:fwd|bwd)|pagedkv"),
        (
            "convolution",
            r"convolution|conv[123]d|depthwise|implicit_?gemm|winograd|[wd]grad(?:_|2d|$)|fprop|scudnn|hcudnn|"
            r"cudnn.*conv|convolve|computeOffsetsKernel",
        ),
        ("matrix_multiply", r"gemm|gemv|nvjet|cublas|cutlass|matmul|\bbmm_|splitk?reduce|dot_kernel"),
        (
            "normalization",
            r"(?:batch|layer|group|instance|rms)_?norm|\bbn_(?:fw|bw)|batchnorm|norm_(?:fwd|bwd|forward|backward)",
        ),
        ("pooling", r"pool"),
        ("optimizer", r"multi_tensor_apply|fused_?(?:adam|sgd|lamb|adagrad|optimizer)|adamw?_|sgd_"),
        (
            "reduction",
            r"reduce_kernel|softmax|triton_(?:red|per)_|cub::.*reduce|\breduce|logsumexp|argm(?:ax|in)|"
            r"cross_entropy|nll_loss",
        ),
        (
            "memory_layout",
            r"transpose|permute|nchwToNhwc|nhwcToNchw|CatArray|copy_kernel|tensorTransform|indexSelect|index_select|"
            r"(?:^|\W|_)(?:gather|scatter)|index_elementwise|im2col|col2im|copy_page",
        ),
        ("elementwise", r"elementwise|pointwise|triton_poi_|unrolled|Functor|fill|dropout|activation|upsample|rotary"),
    )
)


def kernel_class(name: str) -> str:
    """Class of a kernel, one of `CLASSES`, from its demangled (or mangled) name.

    >>> kernel_class("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel")
    'convolution'
    """
    if _COMMUNICATION.search(name):
        return "communication"
    return next((kind for kind, rule in _RULES if rule.search(name)), "other")


def collective(name: str) -> str | None:
    """Collective that a communication kernel carries out, a value of `COLLECTIVES`; None when the name does not tell.

    >>> collective("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm *, unsigned long, ncclWork *)")
    'reduce_scatter'
    """
    if not _COMMUNICATION.search(name):
        return None
    return collective_call(name)


def collective_call(name: str) -> str | None:
    """Collective that a call of a communication library starts, by the call's name; None for any other call.

    >>> collective_call("ncclAllReduce"), collective_call("_allgather_base"), collective_call("ncclGroupEnd")
    ('all_reduce', 'all_gather', None)
    """
    found = _COLLECTIVE.search(name.replace("_", ""))
    return COLLECTIVES[found.group().lower()] if found else None
