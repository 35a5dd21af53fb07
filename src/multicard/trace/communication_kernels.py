"""Kernels that communicate between GPUs, recognized by their names, and the collectives that they carry out.

Only the name of the function and its namespaces count: device code reduces within a warp or block too, and functions
that do so are template arguments of kernels that never leave their GPU.
"""

import re
from typing import NamedTuple

from multicard.trace.kernel_names import function_path

# The name of each collective, by how libraries write it without "_". Of words that begin alike the longer one comes
# first, since the search tries them in this order: "reduce" would else be found in "reducescatter".
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

# Patterns of a function's path, and its collective; None if the function's name may contain the collective. The first
# pattern that fits decides.
_LIBRARIES: tuple[tuple[re.Pattern[str], str | None], ...] = tuple(
    (re.compile(pattern), collective_of_library)
    for pattern, collective_of_library in (
        # vLLM, SGLang, aiter: custom all-reduce over peer memory, and aiter's first half of one with a normalization.
        (r"cross_device_reduce", "all_reduce"),
        (r"reduce_scatter_cross_device", "reduce_scatter"),
        # DeepEP and its copies: tokens go to their experts and back. What precedes that exchanges counts.
        (r"\b(?:deep_ep|uccl)::(?:\w+::)*(?:dispatch|combine)", "all_to_all"),
        (r"\b(?:deep_ep|uccl)::(?:\w+::)*(?:cached_notify|notify|barrier|clean_low_latency_buffer)", None),
        # mori, whose newer kernels have no namespace; pplx; TensorRT-LLM.
        (r"\bEp(?:Dispatch|Combine)|\ba2a_(?:dispatch|combine)|\bmoeA2A(?:Dispatch|Combine)", "all_to_all"),
        (r"\bmori::", None),
        # Userbuffers of Transformer Engine and TensorRT-LLM.
        (r"\bk?userbuffers_\w*?(?:_rs(?:_|$)|reducescatter)", "reduce_scatter"),
        (r"\bk?userbuffers_\w*?(?:_ag(?:_|$)|allgather)", "all_gather"),
        (r"\buserbuffers_fp16_sum_inplace", "all_reduce"),
        (r"\bk?userbuffers_", None),
        # NVSHMEM: every PE gets the result of its reductions; a fcollect gathers equal parts. exchangeSplitAndOffset
        # comes before PyTorch's all-to-all over it.
        (r"\bnvshmem\w*(?:reduce(?!_?scatter)|rdxn)|\brdxn_on_stream_kernel", "all_reduce"),
        (r"\bnvshmem\w*f?collect|\bf?collect_on_stream_kernel", "all_gather"),
        (r"\bnvshmem|\b(?:barrier|sync|alltoall|broadcast|reducescatter)\w*_on_stream_kernel", None),
        (r"\bexchangeSplitAndOffset", None),
        # oneCCL under its namespace or the name of PyTorch's back end, MSCCL++.
        (r"\boneapi::ccl::|\boneccl_|\bxccl\b|\bmscclpp::", None),
        # NCCL, and those whose kernels are called as its are: RCCL, MSCCL and others.
        (r"^nccl|\b[a-z]{0,4}ccl(?:Dev|Sym\w*)?Kernel", None),
    )
)

# Functions of other libraries contain their collective: `twoShotAllReduceKernel`, `allgather_vec`, `allToAllV`.
_COLLECTIVE_IN_NAME = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
# Before the collective, these words mean that the reduction is one within a GPU, as in `warpAllReduceSum` or a
# normalization that reduces its rows, or that the kernel is a matrix product in the first place.
_WITHIN_A_GPU = re.compile(
    r"warp|wave|block|cta|cluster|thread|lane|simd|subgroup|quad|shfl|smem|local|segment|norm|softmax|welford|gemm|"
    r"matmul",
    re.IGNORECASE,
)
# Kernels that Inductor writes are called after all operators whose results they use, communication among them.
_INDUCTOR = "triton_"


def communicates(name: str) -> bool:
    """Return True if a kernel of this name communicates between GPUs.

    >>> communicates("void vllm::cross_device_reduce_1stage<half, 8>()"), communicates("void f<WarpAllReduce>()")
    (True, False)
    """
    return _communication(name) is not None


def collective(name: str) -> str | None:
    """Return the collective that a communication kernel carries out, a value of `COLLECTIVES`.

    None if the kernel does not communicate, or communicates without its name saying how (see `communicates`).

    >>> collective("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm *, unsigned long, ncclWork *)")
    'reduce_scatter'
    >>> collective("ncclDevKernel_Generic()"), communicates("ncclDevKernel_Generic()")
    (None, True)
    """
    communication = _communication(name)
    return None if communication is None else communication.collective


def collective_of_call(name: str) -> str | None:
    """Return the collective that a call of a communication library starts, by the call's name; None for another call.

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
