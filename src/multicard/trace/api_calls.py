"""Infer what the host does in a call of the CUDA, HIP or SYCL API from the name of the called function.

The names are those of the public API references (CUDA Runtime and Driver API, HIP, Level Zero, Unified Runtime). HIP's
functions are CUDA's with another prefix, so one rule fits both: `cudaLaunchKernel`, `cuLaunchKernel`,
`hipLaunchKernel`.
"""

import re
from enum import IntEnum


class HostActivity(IntEnum):
    """What a thread of the host does in a call.

    - LOADING_CODE: loads, links or unloads the code of kernels (modules, libraries), or looks up a kernel in it.
    - ALLOCATING: allocates, frees, registers or maps memory.
    - WAITING: waits in a synchronization, or in a copy that returns only when it is done.
    - LAUNCHING: hands kernels, graphs, asynchronous copies, fills or functions of the host to a stream of the device.
    - OTHER: anything else.

    The numbers have no meaning. Where calls overlap, `host` decides which one counts.
    """

    LOADING_CODE = 0
    ALLOCATING = 1
    WAITING = 2
    LAUNCHING = 3
    OTHER = 4


_PREFIX = r"(?:__)?(?:cuda|cu|hip)"
# The first rule that matches the start of a function's name decides. So copies with "Async" in their name launch, and
# all other copies wait. Fills (Memset) always launch. `cudaStreamWaitEvent` and `cuStreamWaitValue32` make a stream
# wait, but not the host, so no rule matches them.
_RULES: tuple[tuple[HostActivity, re.Pattern[str]], ...] = (
    (
        HostActivity.LOADING_CODE,
        re.compile(
            rf"{_PREFIX}(?:Module(?:Load|Unload)|Library(?:Load|Unload|Get)|Link|Kernel(?:Load|GetFunction)"
            r"|RegisterFatBinary|FuncLoad)|zeModuleCreate|urProgram"
        ),
    ),
    (HostActivity.WAITING, re.compile(r".*Synchronize|.*(?:EventWait|QueueFinish)$")),
    (
        HostActivity.LAUNCHING,
        re.compile(
            rf"{_PREFIX}(?:Graph|Module|Ext|ExtModule|Hcc|HccModule)?Launch|{_PREFIX}MemPrefetch"
            rf"|{_PREFIX}(?:Memcpy|Memset).*Async|{_PREFIX}Memset|zeCommandListAppend|zeCommandQueueExecute|urEnqueue"
        ),
    ),
    (HostActivity.WAITING, re.compile(rf"{_PREFIX}Memcpy")),
    (
        HostActivity.ALLOCATING,
        re.compile(
            rf"{_PREFIX}(?:Ext)?(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister)|Array(?:3D)?(?:Create|Destroy)"
            r"|Mem(?:Alloc|Free|Host|Create|Release|Map|Unmap|Address|SetAccess|Pool|Register)|IpcOpenMem|IpcCloseMem)"
            r"|zeMem(?:Alloc|Free)|zeVirtualMem|urUSM"
        ),
    ),
)

# These match the start of a function's name. `LAUNCH` matches functions that launch a kernel or a graph, but not
# `cudaLaunchHostFunc`, which hands a function of the host to a stream. `KERNEL_LAUNCH` matches only functions that
# launch a kernel, `GRAPH_LAUNCH` only those that launch a graph. They know CUDA and HIP only, so no function of SYCL
# matches.
LAUNCH = re.compile(rf"{_PREFIX}(?:Graph|Module|Ext|ExtModule)?Launch(?!HostFunc)")
KERNEL_LAUNCH = re.compile(rf"{_PREFIX}(?:Module|Ext|ExtModule)?Launch(?:Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(rf"{_PREFIX}GraphLaunch")


def host_activity(function: str) -> HostActivity:
    """Return what the host does in a call of a function of this name; `OTHER` if no rule matches the name.

    >>> host_activity("cudaLaunchKernel").name, host_activity("cuMemHostRegister_v2").name
    ('LAUNCHING', 'ALLOCATING')
    >>> host_activity("cudaMemcpy").name, host_activity("hipMemcpyAsync").name, host_activity("cuLibraryLoadData").name
    ('WAITING', 'LAUNCHING', 'LOADING_CODE')
    """
    return next((activity for activity, rule in _RULES if rule.match(function)), HostActivity.OTHER)
