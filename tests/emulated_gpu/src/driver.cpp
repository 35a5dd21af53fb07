// libcuda.so.1: as much of the driver as PyTorch and Triton ask for. Triton's kernels are loaded, but nothing computes
// them.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "emulation.h"

using namespace emu;

// A context is the device's ordinal, plus one: null means none.
static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(device + 1); }

static CUresult launch(CUfunction function, CUstream stream) {
  auto &name = *(std::string *)function;
  if (refuse_kernel(("Triton's " + name).c_str())) {
    fprintf(stderr, "emulated GPU: nothing computes Triton's kernel %s\n", name.c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  int device = 0;
  cudaGetDevice(&device);
  int64_t start = now();
  report_kernel(name, device, stream, start, start + 1000);
  return CUDA_SUCCESS;
}

extern "C" {

CUresult cuInit(unsigned) {
  int count;
  return cudaGetDeviceCount(&count) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int *version) { return (CUresult)cudaDriverGetVersion(version); }
CUresult cuDeviceGetCount(int *count) { return (CUresult)cudaGetDeviceCount(count); }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice) {
  snprintf(name, length, "%s", gpu_name().c_str());
  return CUDA_SUCCESS;
}
// Attributes have the same numbers in the runtime and the driver.
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = has_context(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) {
  int device = 0;
  cudaGetDevice(&device);
  *context = has_context(device) ? context_of(device) : nullptr;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) cudaSetDevice((int)(uintptr_t)context - 1);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return (CUresult)cudaGetDevice(device); }
CUresult cuCtxGetLimit(size_t *value, CUlimit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_INVALID_IMAGE
              ? "device kernel image is invalid (the emulated GPU cannot compute Triton's "
                "kernels)"
              : cudaGetErrorString((cudaError_t)error);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *) {
  *module = (CUmodule)1;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *) { return cuModuleLoad(module, nullptr); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *, unsigned, CUjit_option *, void **) {
  return cuModuleLoad(module, nullptr);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
  *function = (CUfunction) new std::string(name);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction, const CUlaunchConfig *) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction, int, size_t) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream stream, void **, void **) {
  return launch(function, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **, void **) {
  return launch(function, config->hStream);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, CUstream stream, void **) {
  return launch(function, stream);
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)value = pointer;
  return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream) {
  for (size_t i = 0; i < count; i++) ((unsigned *)pointer)[i] = value;
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream, CUdeviceptr pointer, cuuint32_t value, unsigned) {
  *(unsigned *)pointer = value;
  return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned, CUjit_option *, void **, CUlinkState *) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkAddData(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned, CUjit_option *, void **) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkComplete(CUlinkState, void **, size_t *) { return CUDA_ERROR_NOT_SUPPORTED; }

} // extern "C"
