// What the emulated libraries share: the settings (environment variables NVIDIA_EMU_*), the identity of an emulated
// GPU, and the functions by which the driver, NVML, NCCL, CUPTI and the operators reach the runtime's state.
//
// A "GPU" is physical: it has an index in nvidia-smi and a UUID. A "device" is what one process sees of it: the
// ordinal that CUDA_VISIBLE_DEVICES may have moved.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace emu {

constexpr int MAX_GPUS = 16;

inline std::string setting(const char *name, const char *otherwise) {
  const char *value = getenv((std::string("NVIDIA_EMU_") + name).c_str());
  return value && *value ? value : otherwise;
}

inline int gpu_count() {
  int count = atoi(setting("GPUS", "4").c_str());
  return count < 0 ? 0 : count > MAX_GPUS ? MAX_GPUS : count;
}

// "synthetic" is what multicard looks for: no claim is judged on such a record.
inline std::string gpu_name() { return setting("GPU_NAME", "Emulated GPU (synthetic)"); }

inline void compute_capability(int *major, int *minor) {
  if (sscanf(setting("CC", "8.0").c_str(), "%d.%d", major, minor) != 2) *major = 8, *minor = 0;
}

// Whether the GPUs are partitioned (MIG): into two instances each, of which a process sees one.
constexpr int INSTANCES = 2;
inline bool partitioned() { return setting("MIG", "0") == "1"; }

// UUIDs: "GPU-e0e1…" of GPU 0; an instance of a partitioned GPU has its own, "MIG-…".
inline void gpu_uuid(int gpu, int instance, unsigned char uuid[16]) {
  for (int i = 0; i < 16; i++) uuid[i] = 0xe0 + i;
  uuid[14] = instance < 0 ? 0 : 0x10 + instance;
  uuid[15] = gpu;
}

inline std::string gpu_uuid_text(int gpu, int instance = -1) {
  unsigned char uuid[16];
  gpu_uuid(gpu, instance, uuid);
  std::string text = instance < 0 ? "GPU-" : "MIG-";
  char two[3];
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    snprintf(two, sizeof two, "%02x", uuid[i]);
    text += two;
  }
  return text;
}

// ---- defined in libcudart.so.13 (runtime/)

// Append a line to the file NVIDIA_EMU_LOG, if that is set.
void log(const char *format, ...) __attribute__((format(printf, 1, 2)));

int gpu_of(int device);
int64_t memory_used(int gpu);  // bytes, of all processes
int64_t memory_total(int gpu); // bytes
bool has_context(int device);

// What happens on a device, for the profiler (CUPTI).
enum ActivityKind { KERNEL, COPY, FILL, GRAPH_LAUNCH, NOTHING };
enum Direction { NO_DIRECTION = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 8 }; // as CUPTI's
struct Activity {
  ActivityKind kind;
  std::string name;
  int device;
  void *stream;
  size_t bytes = 0;
  Direction direction = NO_DIRECTION;
  bool pinned = false;          // the host's side of a copy
  unsigned long long graph = 0; // id of the graph that it was launched by
  int64_t start = 0, end = 0;   // in the time of now()
};
void on_activity(void (*listener)(const Activity &));
void report(const Activity &activity);
inline void report_kernel(const std::string &name, int device, void *stream, int64_t start, int64_t end) {
  report({KERNEL, name, device, stream, 0, NO_DIRECTION, false, 0, start, end});
}

// Nanoseconds: of the wall clock, or of the clock that a profiler registered.
int64_t now();
void use_clock(uint64_t (*clock)());

// Streams execute at once, so a captured graph is a list of functions that run again with every launch.
bool is_capturing(void *stream);
// Add one to the graph that `stream` captures. What runs while it is captured is run for the sizes of its results only:
void capture(const Activity &activity, std::function<void()> replay);
// memory that was there before has its values again when the capture ends.
void preserve(void *stream, void *memory, size_t bytes);

// A kernel that nothing computes: its result would be garbage. Logged; returns whether it is an error (the default), or
// NVIDIA_EMU_KERNELS=ignore lets it pass.
bool refuse_kernel(const char *name);

} // namespace emu

// Define a function that a library has and that is not emulated; it answers this code. A file of such functions includes
// no header of the library, which would declare them with their arguments.
#define REFUSED(name, code)                                                                                            \
  extern "C" int name() {                                                                                              \
    emu::log(#name " is not emulated");                                                                                \
    return code;                                                                                                       \
  }
