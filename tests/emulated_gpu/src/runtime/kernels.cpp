// Kernels. The code of PyTorch's own kernels is for GPUs, so the operators compute instead (operators/); what still
// launches a kernel is an operation that is not covered, and its result would be garbage.
#include <dlfcn.h>

#include <string>
#include <unordered_map>

#include "runtime.h"

namespace emu {

static std::unordered_map<const void *, std::string> &kernel_names() {
  static auto *names = new std::unordered_map<const void *, std::string>;
  return *names;
}

bool refuse_kernel(const char *name) {
  static const bool ignored = setting("KERNELS", "refuse") == "ignore";
  static auto *seen = new std::set<std::string>;
  Lock lock(state_lock());
  if (seen->insert(name).second) log("kernel that nothing computes: %s", name);
  return !ignored;
}

static cudaError_t launch(const void *function, cudaStream_t stream) {
  EMU_CONTEXT();
  auto found = kernel_names().find(function);
  std::string name = found == kernel_names().end() ? "unknown kernel" : found->second;
  if (refuse_kernel(name.c_str())) {
    fprintf(stderr, "emulated GPU: nothing computes the kernel %s\n", name.c_str());
    EMU_FAIL(cudaErrorInvalidDeviceFunction);
  }
  execute({KERNEL, name, stream_of(stream)->device, stream}, [] {});
  return cudaSuccess;
}

} // namespace emu

using namespace emu;

extern "C" {

// ---- called by what the CUDA compiler generates: when a library is loaded, and around every launch (<<<…>>>)

void **__cudaRegisterFatBinary(void *) {
  static void *handle[4];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
  kernel_names()[function] = name;
}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
char __cudaInitModule(void **) { return 1; }

static thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(cudaStream_t *)stream = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return launch((const void *)kernel, stream);
}
cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return launch(function, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **) {
  return launch(function, config->stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return launch(function, stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 80;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  *pointer = (void *)symbol;
  return cudaSuccess;
}

// PyTorch asks here for functions of the driver.
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *function = nullptr;
  for (const char *version : {"", "_v2", "_v3"})
    if (driver && !*function) *function = dlsym(driver, (std::string(symbol) + version).c_str());
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*function) log("the emulated driver has no %s", symbol);
  return cudaSuccess;
}

} // extern "C"
