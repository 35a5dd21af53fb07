"""In every Python of the emulated environment: load the emulated libraries before PyTorch asks for the real ones.

The dynamic linker takes a library that is already loaded wherever one of its name (SONAME) is asked for, so nothing of
PyTorch is replaced. The operators follow when torch has been imported. NVIDIA_EMU_OFF=1: nothing of this.
"""

import ctypes
import functools
import importlib.abc
import importlib.machinery
import json
import os
import site
import sys
from pathlib import Path

PATHS = json.loads(Path(__file__).with_suffix(".json").read_text())
# Each refers to those before it.
LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libcupti.so.13")


def add_packages():
    """After what PYTHONPATH names, the checkout's own sources, then the packages of the base environment."""
    sys.path.append(PATHS["sources"])
    for folder in PATHS["packages"]:
        site.addsitedir(folder)


def add_programs():
    """`nvidia-smi` and the stand-in for nsys come before the machine's own."""
    stated = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys(PATHS["programs"] + stated))


def _setting(name):
    return os.environ.get(f"NVIDIA_EMU_{name}", "")


def load_libraries():
    for name in LIBRARIES:
        ctypes.CDLL(str(Path(PATHS["libraries"], name)), mode=ctypes.RTLD_GLOBAL)
    os.environ.setdefault("TRITON_LIBCUDA_PATH", PATHS["libraries"])  # it links with the driver by its path


def torch_imported(torch):
    """Register the operators; choose how torch.compile compiles, as Triton's kernels cannot be computed."""
    torch.ops.load_library(str(Path(PATHS["libraries"], "libemulated_operators.so")))
    torch._C._set_sdp_use_cudnn(False)
    backend, compile_with = _setting("COMPILE"), torch.compile
    if not backend:
        return

    @functools.wraps(compile_with)
    def compute(model=None, **options):
        # CUDA graphs are those of PyTorch's own backend for them.
        graphs = options.pop("mode", None) == "reduce-overhead"
        return compile_with(model, **(options | {"backend": "cudagraphs" if graphs else backend}))

    torch.compile = compute


def dali_imported(pipeline):
    """DALI has its own CUDA inside: its pipelines run on the CPU, and what they give is copied to the device."""
    from nvidia.dali import data_node, fn, types

    class OnDevice:
        """One output of an iteration, as PyTorch's loop takes it."""

        def __init__(self, made, device):
            self.made, self.device = made, device

        def as_tensor(self):
            import torch

            return torch.from_dlpack(self.made.as_tensor()).clone().to(f"cuda:{self.device}")

    plain, outputs = pipeline.Pipeline.__init__, pipeline.Pipeline._outputs

    @functools.cache
    def decode_on_host():  # operators are there when the first pipeline is made
        decode = fn.decoders.image
        fn.decoders.image = lambda *inputs, device="cpu", **options: decode(*inputs, device="cpu", **options)

    def init(self, batch_size=None, num_threads=None, device_id=None, *others, **options):
        decode_on_host()
        self.emulated_device = device_id
        plain(self, batch_size, num_threads, None, *others, **options)

    def given(self, stream=None):
        made = outputs(self, None)
        if self.emulated_device is None:
            return made
        types._raw_cuda_stream_ptr(stream)  # refuses what is no stream
        return tuple(OnDevice(one, self.emulated_device) for one in made)

    pipeline.Pipeline.__init__, pipeline.Pipeline._outputs = init, given
    data_node.DataNode.gpu = lambda node: node


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as that has been imported."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        """Find the module as always, and add the call to its loader."""
        if name not in self.hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                hook = self.hooks.pop(name)  # only now: to ask whether a module is there is not to import it
                execute(module)
                hook(module)

            spec.loader.exec_module = exec_module
        return spec


add_packages()
if _setting("OFF") != "1":
    add_programs()
    load_libraries()
    sys.meta_path.insert(0, AfterImport({"torch": torch_imported, "nvidia.dali.pipeline": dali_imported}))
