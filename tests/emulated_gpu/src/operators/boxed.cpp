// The generic case: an operator of CUDA is the CPU's operator of the same name on views of the same memory, and what it
// returns gets memory of the device from PyTorch's caching allocator.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "operators.h"

// Of ATen/cuda/CUDAContextLight.h, which needs headers of libraries of CUDA that are not always there.
namespace at::cuda {
// As it is where PyTorch lacks the function below; elsewhere its members are others, and nothing here reads it.
struct WorkspaceMapWithMutex {
  std::map<std::tuple<void *, void *>, at::DataPtr> map;
  std::shared_mutex mutex;
};
TORCH_CUDA_CPP_API WorkspaceMapWithMutex &cublas_handle_stream_to_workspace();
TORCH_CUDA_CPP_API size_t getChosenWorkspaceSize();
// Null in a PyTorch that always keeps the workspaces of cuBLAS.
bool isCUDABlasWorkspaceCachingEnabled() __attribute__((weak));
} // namespace at::cuda

namespace emu {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- what is known of an operator before it is called

struct Traits {
  std::string name;                     // with its namespace
  std::vector<bool> is_written, is_out; // of each argument
  std::vector<bool> is_generator;
  bool is_convolution, is_convolution_backward;
  bool is_product;     // takes a workspace of cuBLAS
  bool is_slow_narrow; // the CPU takes minutes for it in fp16
  bool mixes_devices;  // takes tensors of the CPU beside those of a device
};

bool is_one_of(const std::string &name, const std::set<std::string> &names) { return names.count(name); }

Traits describe(const c10::FunctionSchema &schema) {
  static const std::set<std::string> products{
      "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::dot", "aten::_addmm_activation"};
  static const std::set<std::string> mixing{
      "aten::index",         "aten::index_put",         "aten::index_put_",    "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_foreach_copy_"};
  Traits traits;
  auto &name = traits.name = schema.name();
  auto has = [&](const char *part) { return name.find(part) != std::string::npos; };
  for (auto &argument : schema.arguments()) {
    traits.is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
    traits.is_out.push_back(traits.is_written.back() && argument.is_out());
    traits.is_generator.push_back(argument.type()->str() == "Generator?");
  }
  traits.is_convolution = name == "aten::convolution";
  traits.is_convolution_backward = name == "aten::convolution_backward";
  traits.is_product = is_one_of(name, products);
  traits.is_slow_narrow = has("conv") || has("mm") || has("batch_norm");
  traits.mixes_devices = is_one_of(name, mixing);
  return traits;
}

const Traits &traits_of(const c10::OperatorHandle &op) {
  static std::shared_mutex lock;
  static auto *known = new std::map<const c10::FunctionSchema *, Traits>;
  auto *schema = &op.schema();
  {
    std::shared_lock<std::shared_mutex> reading(lock);
    auto found = known->find(schema);
    if (found != known->end()) return found->second;
  }
  std::unique_lock<std::shared_mutex> writing(lock);
  return known->emplace(schema, describe(*schema)).first->second;
}

// ---- random numbers

// The CPU's generator in the state of the device's: seeds, saved states and offsets mean what they mean on a GPU (equal
// seeds give equal numbers), though the numbers are others. Inside a capture the state is out of reach.
at::Generator random_numbers(const IValue &stated, int device, bool capturing) {
  static auto *while_capturing = new at::Generator(at::detail::createCPUGenerator(4321));
  if (capturing) return *while_capturing;
  at::Generator state = stated.isGenerator() ? stated.toGenerator() : at::Generator();
  if (!state.defined() || !state.device().is_cuda())
    state = at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, device));
  std::lock_guard<std::mutex> lock(state.mutex());
  uint64_t offset = state.get_offset();
  state.set_offset(offset + 4); // a multiple of 4, as CUDA's generator demands
  return at::detail::createCPUGenerator(state.current_seed() + offset * 0x9e3779b97f4a7c15ull);
}

// ---- memory that libraries of CUDA take

// PyTorch takes a workspace for cuBLAS with a matrix product and counts it as its own. It used to keep one for each thread
// and stream, by a handle of cuBLAS and the stream, and to free all of them before it captured compiled graphs. Where
// keeping them is a choice, it is not made by default: the caller holds what is returned until the product is computed.
at::DataPtr take_cublas_workspace(cudaStream_t stream) {
  auto allocate = [] { return c10::cuda::CUDACachingAllocator::get()->allocate(at::cuda::getChosenWorkspaceSize()); };
  if (at::cuda::isCUDABlasWorkspaceCachingEnabled) return allocate();
  static thread_local char handle;
  auto &workspaces = at::cuda::cublas_handle_stream_to_workspace();
  auto key = std::make_tuple((void *)&handle, (void *)stream);
  {
    std::shared_lock<std::shared_mutex> reading(workspaces.mutex);
    if (workspaces.map.count(key)) return {};
  }
  auto memory = allocate();
  std::unique_lock<std::shared_mutex> writing(workspaces.mutex);
  workspaces.map.emplace(key, std::move(memory));
  return {};
}

// ---- the call

struct Call {
  c10::OperatorHandle op;
  const Traits *traits;
  Stack arguments; // as the CPU is to see them
  bool wide = false;
};

// The CPU has no fp16 for some operators: they are computed in fp32 and rounded.
Stack run_wide(const Call &call) {
  Stack stack = call.arguments;
  std::vector<std::pair<Tensor, Tensor>> replaced; // narrow, wide
  std::vector<std::pair<Tensor, Tensor>> written;
  at::ScalarType narrow = at::kHalf;
  bool has_float = false;
  auto widen = [&](const Tensor &tensor, bool is_written) {
    if (!is_narrow(tensor)) {
      has_float |= tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.dim() > 0;
      return tensor;
    }
    narrow = tensor.scalar_type();
    Tensor wide = tensor.to(at::kFloat);
    replaced.emplace_back(tensor, wide);
    if (is_written) written.emplace_back(tensor, wide);
    return wide;
  };
  for (size_t i = 0; i < stack.size(); i++) {
    bool is_written = call.traits->is_written[i];
    if (stack[i].isTensor()) {
      stack[i] = widen(stack[i].toTensor(), is_written);
    } else if (stack[i].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &tensor : stack[i].toTensorVector()) list.push_back(widen(tensor, is_written));
      stack[i] = list;
    }
  }
  call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (auto &[tensor, wide] : written) tensor.copy_(wide);
  auto narrowed = [&](const Tensor &result) -> Tensor {
    for (auto &[tensor, wide] : replaced)
      if (result.is_same(wide)) return tensor;
    bool was_widened = result.defined() && result.scalar_type() == at::kFloat && !has_float;
    return was_widened ? result.to(narrow) : result;
  };
  for (auto &value : stack) {
    if (value.isTensor()) {
      value = narrowed(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &tensor : value.toTensorVector()) list.push_back(narrowed(tensor));
      value = list;
    }
  }
  return stack;
}

Stack run(Call &call) {
  CpuKernels cpu;
  if (!call.wide) {
    Stack stack = call.arguments;
    try {
      call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      return stack;
    } catch (const c10::Error &error) {
      // "… not implemented for 'Half'" and its like
      std::string message = error.what();
      if (message.find("Half") == std::string::npos && message.find("BFloat16") == std::string::npos) throw;
      call.wide = true;
    }
  }
  return run_wide(call);
}

// cuDNN's results lie in memory as its inputs and weights do.
void lay_out_as_cudnn(const Call &call, Stack &results) {
  auto is_channels_last = [&](size_t argument) {
    return call.arguments[argument].toTensor().suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  };
  size_t input = call.traits->is_convolution ? 0 : 1, weight = input + 1;
  auto format = is_channels_last(input) || is_channels_last(weight) ? at::MemoryFormat::ChannelsLast
                                                                    : at::MemoryFormat::Contiguous;
  for (size_t i = 0; i < 2 && i < results.size(); i++) {
    if (!results[i].isTensor()) continue;
    Tensor result = results[i].toTensor();
    if (result.defined() && result.dim() == 4) results[i] = result.contiguous(format);
  }
}

// Where a result goes when a captured call is repeated.
struct Target {
  size_t result;
  std::optional<size_t> element; // of a list
  Tensor tensor;                 // a view of the device's memory
};

const Tensor element_of(const Stack &results, const Target &target) {
  auto &value = results[target.result];
  return target.element ? value.toTensorVector()[*target.element] : value.toTensor();
}

void boxed(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  auto &traits = traits_of(op);
  size_t count = traits.is_written.size(), first = stack->size() - count;
  Call call{op, &traits, {}};
  int device = -1;
  bool has_cpu_tensor = false;
  auto refuse_mixture = [&](const std::string &other) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:", device,
                " and ", other, "! (emulated GPU, in ", traits.name, ")");
  };

  // The tensors of the device, each with its view for the CPU.
  struct Seen {
    Tensor view, tensor;
  };
  std::vector<Seen> seen;
  auto view_of = [&](const Tensor &tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_cpu_tensor |= tensor.dim() > 0; // numbers may be tensors of the CPU
      return tensor;
    }
    if (device >= 0 && device != tensor.get_device()) refuse_mixture(tensor.device().str());
    device = tensor.get_device();
    for (auto &one : seen)
      if (one.tensor.is_same(tensor)) return one.view;
    seen.push_back({on_cpu(tensor), tensor});
    return seen.back().view;
  };

  std::vector<size_t> generators;
  for (size_t i = 0; i < count; i++) {
    const IValue &value = (*stack)[first + i];
    if (value.isTensor()) {
      Tensor tensor = value.toTensor(), view = view_of(tensor);
      if (traits.is_out[i] && tensor.defined() && tensor.is_cuda())
        // The CPU may resize it, which borrowed memory cannot be.
        for (auto &one : seen)
          if (one.tensor.is_same(tensor)) view = one.view = view.clone();
      call.arguments.emplace_back(view);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &tensor : value.toTensorVector()) list.push_back(view_of(tensor));
      call.arguments.emplace_back(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor> &tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional<Tensor>(view_of(*tensor)) : std::nullopt);
      call.arguments.emplace_back(list);
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      auto stated = value.toDevice();
      if (device < 0) device = stated.has_index() ? stated.index() : c10::cuda::current_device();
      call.arguments.emplace_back(c10::Device(c10::kCPU));
    } else {
      if (traits.is_generator[i]) generators.push_back(i);
      call.arguments.push_back(value);
    }
  }
  if (device >= 0 && has_cpu_tensor && !traits.mixes_devices) refuse_mixture("cpu");
  if (device < 0) device = c10::cuda::current_device();

  c10::cuda::CUDAGuard guard(device);
  auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
  bool capturing = is_capturing(stream);
  for (size_t i : generators) call.arguments[i] = random_numbers(call.arguments[i], device, capturing);
  for (auto &one : seen)
    call.wide |= traits.is_slow_narrow && one.view.scalar_type() == at::kHalf && one.view.dim() >= 2;
  at::DataPtr workspace;
  if (traits.is_product && !capturing) workspace = take_cublas_workspace(stream);

  if (capturing) {
    for (size_t i = 0; i < count; i++) {
      auto &value = call.arguments[i];
      if (!traits.is_written[i] || traits.is_out[i]) continue;
      if (value.isTensor()) preserve(stream, value.toTensor());
      if (value.isTensorList())
        for (const Tensor &view : value.toTensorVector()) preserve(stream, view);
    }
  }
  int64_t start = now();
  Stack results = run(call);
  if (traits.is_convolution || traits.is_convolution_backward) lay_out_as_cudnn(call, results);

  // Results that are arguments are those tensors; the others get memory of the device.
  std::vector<Target> targets;
  auto returned = [&](const Tensor &result, size_t i, std::optional<size_t> element) -> Tensor {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (auto &one : seen) {
      if (!one.view.is_same(result)) continue;
      if (result.data_ptr() != one.tensor.data_ptr() || result.sizes() != one.tensor.sizes()) { // an "out" argument
        CpuKernels cpu;
        if (one.tensor.sizes() != result.sizes()) one.tensor.resize_(result.sizes());
        Tensor target = on_cpu(one.tensor);
        preserve(stream, target);
        target.copy_(result);
        targets.push_back({i, element, target});
      }
      return one.tensor;
    }
    Tensor made = to_device(result, device);
    targets.push_back({i, element, on_cpu(made)});
    return made;
  };
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < results.size(); i++) {
    const IValue &value = results[i];
    if (value.isTensor()) {
      stack->emplace_back(returned(value.toTensor(), i, std::nullopt));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      auto tensors = value.toTensorVector();
      for (size_t element = 0; element < tensors.size(); element++)
        list.push_back(returned(tensors[element], i, element));
      stack->emplace_back(list);
    } else {
      stack->push_back(value);
    }
  }
  if (!capturing) {
    report_kernel(traits.name, device, stream, start, now());
    return;
  }
  capture({KERNEL, traits.name, device, stream}, [call, targets]() mutable {
    Stack results = run(call);
    CpuKernels cpu;
    for (auto &target : targets) target.tensor.copy_(element_of(results, target));
  });
}

// ---- which operators

// Left to PyTorch: what makes memory, views or strides, and copies between host and device.
bool is_left(const std::string &name) {
  static const std::set<std::string> left{"aten::empty",
                                          "aten::empty_strided",
                                          "aten::empty_like",
                                          "aten::new_empty",
                                          "aten::new_empty_strided",
                                          "aten::empty_quantized",
                                          "aten::resize_",
                                          "aten::resize_as_",
                                          "aten::_resize_output_",
                                          "aten::set_",
                                          "aten::set_data",
                                          "aten::data",
                                          "aten::is_set_to",
                                          "aten::as_strided",
                                          "aten::_reshape_alias",
                                          "aten::unfold",
                                          "aten::view",
                                          "aten::alias",
                                          "aten::detach",
                                          "aten::lift",
                                          "aten::lift_fresh",
                                          "aten::contiguous",
                                          "aten::clone",
                                          "aten::copy_",
                                          "aten::_copy_from",
                                          "aten::_copy_from_and_resize",
                                          "aten::_to_copy",
                                          "aten::to_dense",
                                          "aten::_to_dense",
                                          "aten::_local_scalar_dense",
                                          "aten::record_stream",
                                          "aten::pin_memory",
                                          "aten::_pin_memory",
                                          "aten::is_pinned",
                                          "aten::_efficientzerotensor"};
  // Registered by name in register_attention() and register_normalization().
  static const std::set<std::string> own{"aten::_fused_rms_norm_backward",
                                         "aten::_fused_sdp_choice",
                                         "aten::_scaled_dot_product_flash_attention",
                                         "aten::_scaled_dot_product_flash_attention_backward",
                                         "aten::_scaled_dot_product_efficient_attention",
                                         "aten::_scaled_dot_product_efficient_attention_backward"};
  if (left.count(name) || own.count(name)) return true;
  for (const char *part : {"sparse", "quantize", "nested", "cudnn"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

bool returns_view(const c10::FunctionSchema &schema) {
  for (auto &result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

} // namespace

void register_boxed(torch::Library &library) {
  auto &dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto &name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || is_left(name.name)) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || returns_view(op->schema())) continue;
    // A convolution is composed of others; cuDNN's and the CPU's differ, so it is computed as a whole.
    bool whole = name.name == "aten::convolution" || name.name == "aten::convolution_backward";
    bool cpu = op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    bool cuda = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    bool computed = op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
    if (!whole && !(computed && (cpu || cuda))) continue;
    std::string full = name.name.substr(strlen("aten::"));
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    count++;
  }
  log("%d operators of CUDA are computed by the CPU", count);
}

} // namespace emu
