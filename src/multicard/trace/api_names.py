"""Names of functions of the APIs that start work on a GPU: CUDA's, HIP's, and those under SYCL."""

import re
from collections.abc import Iterable

# CUPTI adds the version in which a function of CUDA's runtime got its parameters, such as 7000 for 7.0. A version of
# the driver's own, as in cuMemAlloc_v2, is part of the name.
_RUNTIME_VERSION = re.compile(r"_v\d{4,5}$")

# SYCL calls Level Zero (ze…), through the Unified Runtime (ur…) or its predecessor (pi…).
_APIS = {
    "CUDA": re.compile(r"cuda[A-Z_]|cu[A-Z]|__cuda"),
    "HIP": re.compile(r"hip[A-Z]|__hip"),
    "SYCL": re.compile(r"ze[A-Z]|ur[A-Z]|pi[A-Z]|sycl"),
}


def call_name(name: str) -> str:
    """Return the name of a function as programs call it, as `nsys stats` gives it.

    >>> call_name("cudaLaunchKernel_v7000"), call_name("cudaGraphLaunch_ptsz_v10000"), call_name("cuMemAlloc_v2")
    ('cudaLaunchKernel', 'cudaGraphLaunch_ptsz', 'cuMemAlloc_v2')
    """
    return _RUNTIME_VERSION.sub("", name)


def api_name(functions: Iterable[str]) -> str:
    """Return the API that has these functions: "CUDA", "HIP" or "SYCL"; "CUDA or HIP" if it is none or several.

    >>> api_name(["cudaLaunchKernel", "cuLaunchKernel"]), api_name(["hipLaunchKernel"]), api_name(["urEnqueueKernel"])
    ('CUDA', 'HIP', 'SYCL')
    >>> api_name([])
    'CUDA or HIP'
    """
    names = list(functions)
    apis = [api for api, pattern in _APIS.items() if any(map(pattern.match, names))]
    return apis[0] if len(apis) == 1 else "CUDA or HIP"
