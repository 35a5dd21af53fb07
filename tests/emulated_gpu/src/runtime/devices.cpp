// Devices, contexts and errors; the log; how the runtime tells a profiler what happens.
#include <ctype.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

namespace emu {

std::recursive_mutex &state_lock() {
  static auto *lock = new std::recursive_mutex;
  return *lock;
}

void log(const char *format, ...) {
  static const auto *path = new std::string(setting("LOG", ""));
  if (path->empty()) return;
  char line[1024];
  int written = snprintf(line, sizeof line, "[%d] ", getpid());
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + written, sizeof line - written, format, arguments);
  va_end(arguments);
  // One write of one line: several processes append to the file.
  if (FILE *file = fopen(path->c_str(), "a")) {
    fprintf(file, "%s\n", line);
    fclose(file);
  }
}

// ---- which GPUs this process sees

static Visible whole_or_first_instance(int gpu) { return {gpu, partitioned() ? 0 : -1}; }

// What an entry of CUDA_VISIBLE_DEVICES names: an index, or the beginning of a UUID that no other has.
static std::vector<Visible> find(const std::string &entry) {
  std::vector<Visible> found;
  auto add_if_named = [&](int gpu, int instance) {
    if (gpu_uuid_text(gpu, instance).rfind(entry, 0) == 0)
      found.push_back(instance < 0 ? whole_or_first_instance(gpu) : Visible{gpu, instance});
  };
  if (entry.rfind("GPU-", 0) == 0) {
    for (int gpu = 0; gpu < gpu_count(); gpu++) add_if_named(gpu, -1);
  } else if (entry.rfind("MIG-", 0) == 0) {
    for (int gpu = 0; partitioned() && gpu < gpu_count(); gpu++)
      for (int instance = 0; instance < INSTANCES; instance++) add_if_named(gpu, instance);
  } else if (!entry.empty() && isdigit(entry[0])) {
    int gpu = atoi(entry.c_str());
    if (gpu < gpu_count()) found.push_back(whole_or_first_instance(gpu));
  }
  return found;
}

static std::string kind_of(const std::string &entry) {
  std::string prefix = entry.substr(0, 4);
  return prefix == "GPU-" || prefix == "MIG-" ? prefix : "index";
}

// CUDA's rules: the entries before the first that names nothing, or is of another kind; none if one comes twice. Of a
// partitioned machine a process sees one instance ("MIG User Guide", "CUDA Device Enumeration").
static std::vector<Visible> list_visible() {
  std::vector<Visible> visible;
  if (const char *stated = getenv("CUDA_VISIBLE_DEVICES")) {
    std::string rest = std::string(stated) + ",", kind;
    for (size_t comma; (comma = rest.find(',')) != std::string::npos; rest.erase(0, comma + 1)) {
      std::string entry = rest.substr(0, comma);
      entry.erase(0, entry.find_first_not_of(' '));
      if (kind.empty()) kind = kind_of(entry);
      auto found = find(entry);
      if (found.size() != 1 || kind_of(entry) != kind) break;
      for (auto &other : visible)
        if (other.gpu == found[0].gpu && other.instance == found[0].instance) return {};
      visible.push_back(found[0]);
    }
  } else {
    for (int gpu = 0; gpu < gpu_count(); gpu++) visible.push_back(whole_or_first_instance(gpu));
  }
  if (partitioned() && visible.size() > 1) visible.resize(1);
  return visible;
}

const std::vector<Visible> &visible_gpus() {
  static auto *gpus = new std::vector<Visible>(list_visible());
  return *gpus;
}

int gpu_of(int device) { return visible_gpus()[device].gpu; }

// ---- contexts and errors

thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static int driver_started_by = 0; // process id
static bool context[MAX_GPUS];

cudaError_t fail(cudaError_t error, const char *function) {
  last_error = error;
  log("error %d in %s", error, function);
  return error;
}

cudaError_t start_driver(const char *function) {
  if (!driver_started_by) driver_started_by = getpid();
  // A child that was forked after the driver started cannot use it.
  if (driver_started_by != getpid()) return fail(cudaErrorInitializationError, function);
  if (visible_gpus().empty()) return fail(cudaErrorNoDevice, function);
  return cudaSuccess;
}

cudaError_t make_context(int device, const char *function) {
  EMU_RETURN_IF(start_driver(function));
  Lock lock(state_lock());
  if (!context[device]) {
    context[device] = true;
    add_memory_used(gpu_of(device), (int64_t)(atof(setting("CONTEXT_MIB", "300").c_str()) * (1 << 20)));
    log("context on device %d (GPU %d)", device, gpu_of(device));
  }
  return cudaSuccess;
}

bool has_context(int device) { return device >= 0 && device < MAX_GPUS && context[device]; }

// ---- for a profiler

static void (*listener)(const Activity &) = nullptr;
static uint64_t (*profiler_clock)() = nullptr;

void on_activity(void (*function)(const Activity &)) { listener = function; }
void use_clock(uint64_t (*clock)()) { profiler_clock = clock; }

void report(const Activity &activity) {
  if (listener) listener(activity);
}

int64_t now() {
  if (profiler_clock) return (int64_t)profiler_clock();
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

} // namespace emu

using namespace emu;

static bool exists(int device) { return device >= 0 && device < (int)visible_gpus().size(); }

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  EMU_DRIVER();
  *count = visible_gpus().size();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  EMU_DRIVER();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  EMU_DRIVER();
  if (!exists(device)) EMU_FAIL(cudaErrorInvalidDevice);
  current_device = device;
  return make_context(device, __func__);
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = atoi(setting("DRIVER_CUDA", "13000").c_str());
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(error)                                                                                                    \
  case error: return #error
  switch (error) {
    NAME(cudaSuccess);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInitializationError);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorNotSupported);
    NAME(cudaErrorInvalidDeviceFunction);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
  default: break;
  }
#undef NAME
  static thread_local char name[32];
  snprintf(name, sizeof name, "cudaError%d", error);
  return name;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInitializationError: return "initialization error";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorInvalidResourceHandle: return "invalid resource handle";
  case cudaErrorNotReady: return "device not ready";
  case cudaErrorNotSupported: return "operation not supported";
  case cudaErrorInvalidDeviceFunction: return "invalid device function (a kernel that the emulated GPU cannot compute)";
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
  case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
  default: {
    static thread_local char text[32];
    snprintf(text, sizeof text, "emulated CUDA error %d", error);
    return text;
  }
  }
}

// The sizes are those of an A100, so that PyTorch's own choices are ones that it makes on a real GPU.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  EMU_DRIVER();
  if (!exists(device)) EMU_FAIL(cudaErrorInvalidDevice);
  auto &p = *properties;
  memset(&p, 0, sizeof p);
  int gpu = gpu_of(device);
  gpu_uuid(gpu, visible_gpus()[device].instance, (unsigned char *)&p.uuid);
  snprintf(p.name, sizeof p.name, "%s", gpu_name().c_str());
  p.totalGlobalMem = memory_total(gpu);
  compute_capability(&p.major, &p.minor);
  p.multiProcessorCount = 108;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 166912;
  p.sharedMemPerMultiprocessor = 167936;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.l2CacheSize = 40 << 20;
  p.totalConstMem = 65536;
  p.textureAlignment = 512;
  p.memPitch = 2147483647;
  p.memoryBusWidth = 5120;
  p.concurrentKernels = p.unifiedAddressing = p.managedMemory = p.canMapHostMemory = p.cooperativeLaunch = 1;
  p.streamPrioritiesSupported = p.memoryPoolsSupported = p.hostRegisterSupported = p.asyncEngineCount = 1;
  p.pciBusID = 0x10 + gpu;
  p.deviceNumaId = p.hostNumaId = -1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  EMU_RETURN_IF(cudaGetDeviceProperties(&p, device));
  switch (attribute) {
  case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
  case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
  case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
  case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
  case cudaDevAttrWarpSize: *value = p.warpSize; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
  case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
  case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
  case cudaDevAttrClockRate: *value = 1410000; break;
  case cudaDevAttrMemoryClockRate: *value = 1215000; break;
  default: *value = 0; // no further ability
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  EMU_DRIVER();
  snprintf(text, length, "0000:%02x:00.0", 0x10 + gpu_of(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  EMU_DRIVER();
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  EMU_CONTEXT();
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  log("cudaProfilerStart");
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  log("cudaProfilerStop");
  return cudaSuccess;
}

} // extern "C"
