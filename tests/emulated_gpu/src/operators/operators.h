// PyTorch's operators on "cuda" tensors, computed by the kernels of the CPU on the same memory: a device's memory is
// memory of the host, so a tensor of the device can be viewed as one of the CPU.
//
// Views, empty tensors, copies between host and device, the caching allocator, streams, events, graphs, collectives and
// all of Python stay PyTorch's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../emulation.h"

namespace emu {

using at::Tensor;

// The same memory as a tensor of the CPU; other tensors as they are.
Tensor on_cpu(const Tensor &tensor);
std::optional<Tensor> on_cpu(const std::optional<Tensor> &tensor);

// A new tensor of the device with the sizes, strides and values of one of the CPU.
Tensor to_device(const Tensor &tensor, int device);

// fp16 or bf16: the CPU computes some operators only in fp32.
bool is_narrow(const Tensor &tensor);
Tensor widened(const Tensor &tensor);

// Guards for calling operators of the CPU from inside one of the device.
struct CpuKernels {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// An operator that is not a CPU operator of the same name. `compute` works on views made by on_cpu(), and what it
// returns gets memory of the device; it runs again, into the same memory, whenever a graph that captured it is
// launched. `kernel` is the name that a profiler sees.
// `written` are the views that it writes besides.
std::vector<Tensor> compute_on_cpu(const std::string &kernel, int device, std::function<std::vector<Tensor>()> compute,
                                   const std::vector<Tensor> &written = {});

// While the stream captures: what this view of the device holds is there again when the capture ends.
void preserve(cudaStream_t stream, const Tensor &view);

// Every aten operator that has a kernel for the CPU.
void register_boxed(torch::Library &library);
// Those that need more than that.
void register_attention(torch::Library &library);
void register_normalization(torch::Library &library);

} // namespace emu
