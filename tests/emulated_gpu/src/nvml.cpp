// libnvidia-ml.so.1: the GPUs in NVML's own order, which CUDA_VISIBLE_DEVICES does not change. Every GPU takes 100 W,
// always, so energy has a known answer.
//
// NVIDIA_EMU_NVML holds words for what this machine refuses: no-init, no-energy, no-memory.
#include <time.h>

#include "emulation.h"

using namespace emu;

// nvmlReturn_t. The header is in no package that PyTorch needs, so arguments are declared by their layout.
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

constexpr unsigned POWER_MW = 100000, SM_CLOCK_MHZ = 1410, MEMORY_CLOCK_MHZ = 1215, TEMPERATURE_C = 40;

// A handle is the GPU's index, plus one: null is none.
typedef void *Handle;
static Handle handle_of(int gpu) { return (Handle)(uintptr_t)(gpu + 1); }
static int index_of(Handle handle) { return (int)(uintptr_t)handle - 1; }

static bool refuses(const char *what) { return setting("NVML", "").find(what) != std::string::npos; }

static long long elapsed_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000ll + time.tv_nsec / 1000000;
}

static int give(unsigned *out, unsigned value) {
  *out = value;
  return SUCCESS;
}

static int give(char *out, unsigned length, const std::string &text) {
  snprintf(out, length, "%s", text.c_str());
  return SUCCESS;
}

extern "C" {

int nvmlInit_v2() { return refuses("no-init") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlInit() { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return SUCCESS; }

const char *nvmlErrorString(int error) {
  switch (error) {
  case SUCCESS: return "Success";
  case INVALID_ARGUMENT: return "Invalid Argument";
  case NOT_SUPPORTED: return "Not Supported";
  case NOT_FOUND: return "Not Found";
  case DRIVER_NOT_LOADED: return "Driver Not Loaded";
  default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
  return give(text, length, setting("DRIVER", "580.65.06"));
}
int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
  return give(text, length, "13." + setting("DRIVER", "580.65.06"));
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = atoi(setting("DRIVER_CUDA", "13000").c_str());
  return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count) { return give(count, gpu_count()); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
  if ((int)index >= gpu_count()) return INVALID_ARGUMENT;
  *handle = handle_of(index);
  return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle) {
  for (int gpu = 0; gpu < gpu_count(); gpu++)
    if (gpu_uuid_text(gpu) == uuid) {
      *handle = handle_of(gpu);
      return SUCCESS;
    }
  return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Handle *handle) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2 || (int)bus - 0x10 < 0 || (int)bus - 0x10 >= gpu_count())
    return NOT_FOUND;
  *handle = handle_of(bus - 0x10);
  return SUCCESS;
}

int nvmlDeviceGetIndex(Handle handle, unsigned *index) { return give(index, index_of(handle)); }
int nvmlDeviceGetUUID(Handle handle, char *text, unsigned length) {
  int index = index_of(handle), gpu = index % MAX_GPUS, instance = index / MAX_GPUS - 1;
  return give(text, length, gpu_uuid_text(gpu, instance));
}
int nvmlDeviceGetName(Handle, char *text, unsigned length) { return give(text, length, gpu_name()); }

// nvmlMemory_t: total, free, used.
int nvmlDeviceGetMemoryInfo(Handle handle, unsigned long long *memory) {
  if (refuses("no-memory")) return NOT_SUPPORTED;
  int gpu = index_of(handle);
  memory[0] = memory_total(gpu);
  memory[2] = memory_used(gpu);
  memory[1] = memory[0] - memory[2];
  return SUCCESS;
}

// nvmlMemory_v2_t: version, total, reserved, free, used.
int nvmlDeviceGetMemoryInfo_v2(Handle handle, unsigned *versioned) {
  constexpr unsigned VERSION = 40u | 2u << 24, RESERVED = 500 << 20;
  if (refuses("no-memory")) return NOT_SUPPORTED;
  if (*versioned != VERSION) return INVALID_ARGUMENT;
  int gpu = index_of(handle);
  auto *memory = (unsigned long long *)versioned + 1;
  memory[0] = memory_total(gpu);
  memory[1] = RESERVED;
  memory[3] = memory_used(gpu);
  memory[2] = memory[0] - memory[1] - memory[3];
  return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long *millijoules) {
  constexpr int RENEWED_EVERY_MS = 20;
  if (refuses("no-energy")) return NOT_SUPPORTED;
  *millijoules = elapsed_ms() / RENEWED_EVERY_MS * RENEWED_EVERY_MS * (POWER_MW / 1000);
  return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Handle, unsigned *milliwatts) { return give(milliwatts, POWER_MW); }
int nvmlDeviceGetEnforcedPowerLimit(Handle, unsigned *milliwatts) { return give(milliwatts, 4 * POWER_MW); }
int nvmlDeviceGetPowerManagementDefaultLimit(Handle, unsigned *milliwatts) { return give(milliwatts, 4 * POWER_MW); }

// nvmlClockType_t: graphics, SM, memory, video.
static int clock_of(unsigned type, unsigned *mhz) { return give(mhz, type == 2 ? MEMORY_CLOCK_MHZ : SM_CLOCK_MHZ); }
int nvmlDeviceGetClockInfo(Handle, unsigned type, unsigned *mhz) { return clock_of(type, mhz); }
int nvmlDeviceGetMaxClockInfo(Handle, unsigned type, unsigned *mhz) { return clock_of(type, mhz); }
int nvmlDeviceGetTemperature(Handle, unsigned, unsigned *celsius) { return give(celsius, TEMPERATURE_C); }
int nvmlDeviceGetCurrentClocksEventReasons(Handle, unsigned long long *reasons) {
  *reasons = 0;
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, unsigned long long *reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}
// nvmlViolationTime_t: reference time and violation time, in microseconds and nanoseconds.
int nvmlDeviceGetViolationStatus(Handle, unsigned, unsigned long long *times) {
  times[0] = elapsed_ms() * 1000;
  times[1] = 0;
  return SUCCESS;
}

int nvmlDeviceGetMigMode(Handle, unsigned *current, unsigned *pending) {
  if (!partitioned()) return NOT_SUPPORTED;
  *current = *pending = 1;
  return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle, unsigned *count) { return give(count, partitioned() ? INSTANCES : 0); }
// Handles of instances follow those of all GPUs.
int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned instance, Handle *found) {
  if (!partitioned() || instance >= INSTANCES) return NOT_FOUND;
  *found = handle_of(index_of(handle) + MAX_GPUS * (instance + 1));
  return SUCCESS;
}

// Memory without an error, ever.
int nvmlDeviceGetEccMode(Handle, unsigned *current, unsigned *pending) {
  *current = *pending = 1;
  return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Handle, unsigned, unsigned, unsigned long long *count) {
  *count = 0;
  return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  *corrected = *uncorrected = *pending = *failed = 0;
  return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Handle, unsigned *) { return NOT_SUPPORTED; } // rows are remapped instead

int nvmlDeviceGetNvLinkState(Handle, unsigned, unsigned *) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses(Handle, unsigned *count, void *) { return give(count, 0); }
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, unsigned *) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void *) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(Handle, void *) { return NOT_SUPPORTED; }

} // extern "C"
