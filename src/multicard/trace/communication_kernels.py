"""Recognize kernels that communicate between GPUs, and the collectives that they carry out, by the kernels' names.

Only the function's name and its namespaces are examined, not its template arguments and parameters. A kernel that works
on one GPU only may have a function that reduces within a warp or block as its template argument.
"""

import re
from typing import NamedTuple

from multicard.trace.kernel_names import function_path

# The name of each collective, by its spelling in libraries in small letters and without "_". The search tries the
# spellings in this order, so "reducescatter" and "sendrecv" stand before "reduce" and "send", with which they begin.
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
_COLLECTIVE = re.compile("|".join(COLLECTIVES), re.IGNORECASE)

# Patterns that show that a function communicates, each with the collective of such functions. None means that the
# collective is looked for in the function's name, which need not contain one. The patterns are searched in the
# function's path, as `function_path` returns it, and the first one that is found decides.
_LIBRARIES: tuple[tuple[re.Pattern[str], str | None], ...] = tuple(
    (re.compile(pattern), collective_of_library)
    for pattern, collective_of_library in (
        # The all-reduce of vLLM, SGLang and aiter over peer memory. In aiter, an all-reduce that is fused with a
        # normalization begins with a reduce-scatter.
        (r"cross_device_reduce", "all_reduce"),
        (r"reduce_scatter_cross_device", "reduce_scatter"),
        # DeepEP and its copies send tokens to their experts and back. Before that, the kernels of the second pattern
        # exchange the numbers of tokens, wait for all ranks, or clear buffers.
        (r"\b(?:deep_ep|uccl)::(?:\w+::)*(?:dispatch|combine)", "all_to_all"),
        (r"\b(?:deep_ep|uccl)::(?:\w+::)*(?:cached_notify|notify|barrier|clean_low_latency_buffer)", None),
        # The same exchange by mori, by pplx and by TensorRT-LLM. Newer kernels of mori have no namespace.
        (r"\bEp(?:Dispatch|Combine)|\ba2a_(?:dispatch|combine)|\bmoeA2A(?:Dispatch|Combine)", "all_to_all"),
        (r"\bmori::", None),
        # Userbuffers of Transformer Engine and TensorRT-LLM.
        (r"\bk?userbuffers_\w*?(?:_rs(?:_|$)|reducescatter)", "reduce_scatter"),
        (r"\bk?userbuffers_\w*?(?:_ag(?:_|$)|allgather)", "all_gather"),
        (r"\buserbuffers_fp16_sum_inplace", "all_reduce"),
        (r"\bk?userbuffers_", None),
        # NVSHMEM. Every rank gets the result of a reduction, so this is an all-reduce. A fcollect is an all-gather of
        # parts of equal size. PyTorch runs exchangeSplitAndOffset before its all-to-all over NVSHMEM.
        (r"\bnvshmem\w*(?:reduce(?!_?scatter)|rdxn)|\brdxn_on_stream_kernel", "all_reduce"),
        (r"\bnvshmem\w*f?collect|\bf?collect_on_stream_kernel", "all_gather"),
        (r"\bnvshmem|\b(?:barrier|sync|alltoall|broadcast|reducescatter)\w*_on_stream_kernel", None),
        (r"\bexchangeSplitAndOffset", None),
        # oneCCL, by its namespace or by the name of PyTorch's back end (xccl), and MSCCL++.
        (r"\boneapi::ccl::|\boneccl_|\bxccl\b|\bmscclpp::", None),
        # NCCL, and libraries that name their kernels as NCCL does: RCCL, MSCCL and others.
        (r"^nccl|\b[a-z]{0,4}ccl(?:Dev|Sym\w*)?Kernel", None),
    )
)

# A function of any other library communicates if its name contains a collective, as `twoShotAllReduceKernel`,
# `allgather_vec` and `allToAllV` do, with the exceptions below.
_COLLECTIVE_IN_NAME = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
# A function does not count as communication if one of these words stands before the collective in its name. Then it
# reduces within a GPU, such as `warpAllReduceSum` or a normalization that reduces its rows, or it is mainly a matrix
# product.
_WITHIN_A_GPU = re.compile(
    r"warp|wave|block|cta|cluster|thread|lane|simd|subgroup|quad|shfl|smem|local|segment|norm|softmax|welford|gemm|"
    r"matmul",
    re.IGNORECASE,
)
# The names of kernels that PyTorch's Inductor writes begin so. They list all operators whose results the kernel uses,
# so a collective in such a name does not mean that the kernel communicates.
_INDUCTOR = "triton_"


def communicates(name: str) -> bool:
    """Return True if a kernel of this name communicates between GPUs.

    >>> communicates("void vllm::cross_device_reduce_1stage<half, 8>()"), communicates("void f<WarpAllReduce>()")
    (True, False)
    """
    return _communication(name) is not None


def collective(name: str) -> str | None:
    """Return the collective that a communication kernel carries out, a value of `COLLECTIVES`.

    None if the kernel does not communicate (see `communicates`), or if its name does not show the collective.

    >>> collective("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm *, unsigned long, ncclWork *)")
    'reduce_scatter'
    >>> collective("ncclDevKernel_Generic()"), communicates("ncclDevKernel_Generic()")
    (None, True)
    """
    communication = _communication(name)
    return None if communication is None else communication.collective


def collective_of_call(name: str) -> str | None:
    """Return the collective that a function of a communication library starts; None if its name contains none.

    >>> collective_of_call("ncclAllReduce"), collective_of_call("_allgather_base"), collective_of_call("ncclGroupEnd")
    ('all_reduce', 'all_gather', None)
    """
    match = _COLLECTIVE.search(name.replace("_", ""))
    return COLLECTIVES[match.group().lower()] if match else None


class _Communication(NamedTuple):
    """A kernel that communicates; its collective is None if the name does not contain it."""

    collective: str | None


def _communication(name: str) -> _Communication | None:
    """Return the communication of a kernel of this name; None if the kernel does not communicate."""
    path = function_path(name)
    function = path.rpartition("::")[2]
    for pattern, collective_of_library in _LIBRARIES:
        if pattern.search(path):
            return _Communication(collective_of_library or collective_of_call(function))
    match = _COLLECTIVE_IN_NAME.search(function)
    if match is None or name.startswith(_INDUCTOR):
        return None
    if _WITHIN_A_GPU.search(function[: match.start()]):
        return None
    return _Communication(collective_of_call(match.group()))
