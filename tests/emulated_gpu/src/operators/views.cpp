#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>

#include "operators.h"

namespace emu {

Tensor on_cpu(const Tensor &tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto *impl = tensor.unsafeGetTensorImpl();
  at::DataPtr borrowed(const_cast<void *>(tensor.storage().data()), c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(borrowed), nullptr, false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sym_sizes(), impl->sym_strides(), impl->sym_storage_offset());
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

std::optional<Tensor> on_cpu(const std::optional<Tensor> &tensor) {
  return tensor ? std::optional<Tensor>(on_cpu(*tensor)) : std::nullopt;
}

Tensor to_device(const Tensor &tensor, int device) {
  auto options = tensor.options().device(c10::Device(c10::kCUDA, device)).pinned_memory(false);
  Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (!tensor.numel()) return made;
  CpuKernels cpu;
  Tensor view = on_cpu(made);
  // The memory may be that of an input which is freed while it is captured, and read when the graph is launched.
  preserve(c10::cuda::getCurrentCUDAStream(device).stream(), view);
  view.copy_(tensor);
  return made;
}

bool is_narrow(const Tensor &tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

Tensor widened(const Tensor &tensor) { return is_narrow(tensor) ? tensor.to(at::kFloat) : tensor; }

void preserve(cudaStream_t stream, const Tensor &view) {
  if (!view.defined() || !view.numel() || !is_capturing(stream)) return;
  int64_t last = 0; // element, from the first
  for (int64_t dimension = 0; dimension < view.dim(); dimension++)
    last += (view.size(dimension) - 1) * view.stride(dimension);
  preserve((void *)stream, view.data_ptr(), (last + 1) * view.element_size());
}

std::vector<Tensor> compute_on_cpu(const std::string &kernel, int device, std::function<std::vector<Tensor>()> compute,
                                   const std::vector<Tensor> &written) {
  c10::cuda::CUDAGuard guard(device);
  auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
  CpuKernels cpu;
  for (auto &view : written) preserve(stream, view);
  int64_t start = now();
  std::vector<Tensor> outputs, targets;
  for (auto &result : compute()) outputs.push_back(result.defined() ? to_device(result, device) : Tensor());
  if (!is_capturing(stream)) {
    report_kernel(kernel, device, stream, start, now());
    return outputs;
  }
  for (auto &output : outputs) targets.push_back(on_cpu(output));
  capture({KERNEL, kernel, device, stream}, [compute, targets] {
    CpuKernels cpu;
    auto results = compute();
    for (size_t i = 0; i < results.size(); i++)
      if (results[i].defined()) targets[i].copy_(results[i]);
  });
  return outputs;
}

} // namespace emu
