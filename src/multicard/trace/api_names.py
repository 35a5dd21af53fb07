"""Names of the functions that start work on a GPU: those of CUDA, of HIP, and of the APIs that SYCL is built on."""

import re
from collections.abc import Iterable

# CUPTI appends to the name of a function of CUDA's runtime the version of CUDA that introduced its present parameters,
# such as 7000 for CUDA 7.0. The suffix of cuMemAlloc_v2 is not such a version: it is part of the name that the driver
# gives the function, so it stays.
_RUNTIME_VERSION = re.compile(r"_v\d{4,5}$")

# Patterns of the start of a function's name. SYCL calls Level Zero (ze…), through the Unified Runtime (ur…) or its
# predecessor, the Plugin Interface (pi…).
_APIS = {
    "CUDA": re.compile(r"cuda[A-Z_]|cu[A-Z]|__cuda"),
    "HIP": re.compile(r"hip[A-Z]|__hip"),
    "SYCL": re.compile(r"ze[A-Z]|ur[A-Z]|pi[A-Z]|sycl"),
}


def call_name(name: str) -> str:
    """Return the name of a function without the version that CUPTI appended: as programs and `nsys stats` write it.

    >>> call_name("cudaLaunchKernel_v7000"), call_name("cudaGraphLaunch_ptsz_v10000"), call_name("cuMemAlloc_v2")
    ('cudaLaunchKernel', 'cudaGraphLaunch_ptsz', 'cuMemAlloc_v2')
    """
    return _RUNTIME_VERSION.sub("", name)


def api_name(functions: Iterable[str]) -> str:
    """Return the API to which these functions belong: "CUDA", "HIP" or "SYCL".

    Functions of no known API are ignored. The result is "CUDA or HIP" if no function belongs to a known API, or if the
    functions belong to several.

    >>> api_name(["cudaLaunchKernel", "cuLaunchKernel"]), api_name(["hipLaunchKernel"]), api_name(["urEnqueueKernel"])
    ('CUDA', 'HIP', 'SYCL')
    >>> api_name([])
    'CUDA or HIP'
    """
    names = list(functions)
    apis = [api for api, pattern in _APIS.items() if any(map(pattern.match, names))]
    return apis[0] if len(apis) == 1 else "CUDA or HIP"
