// Internals of the emulated CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "../emulation.h"

namespace emu {

// One lock for all of the runtime's state. It lives as long as the process: PyTorch frees memory in destructors that
// run after those of this library. The same holds for every container below.
std::recursive_mutex &state_lock();
using Lock = std::lock_guard<std::recursive_mutex>;

struct Node {
  Activity activity;
  std::function<void()> work;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::function<void()>> restore; // memory that was written while capturing
  std::set<CUstream_st *> streams;            // those that capture into it
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread; // that began it
  bool invalid = false;
};

} // namespace emu

// The names of these two are CUDA's own, behind cudaStream_t and cudaEvent_t.
struct CUstream_st {
  int device, priority;
  std::atomic<int64_t> synchronized{0}; // events before this one are known to be over
  emu::Graph *graph = nullptr;          // that it captures into
};

struct CUevent_st {
  int device;
  unsigned flags;
  int64_t order = 0, time_ns = 0; // when it was recorded
  CUstream_st *stream = nullptr;
  emu::Graph *graph = nullptr; // into which it was captured
  bool recorded = false, over = false;
};

namespace emu {

struct Visible {
  int gpu, instance; // -1: the whole GPU
};
const std::vector<Visible> &visible_gpus();
extern thread_local int current_device;

// Note the error for cudaGetLastError and the log, and return it.
cudaError_t fail(cudaError_t error, const char *function);
cudaError_t start_driver(const char *function);
cudaError_t make_context(int device, const char *function);

// The stream's state; of the default streams, that of the current device.
CUstream_st *stream_of(cudaStream_t stream);
int64_t next_order();
int64_t last_order();

// A call that waits or allocates invalidates a capture that is under way, unless the thread is in relaxed mode, as
// cudaThreadExchangeStreamCaptureMode has it: one of its own that is not relaxed, of others those that are global.
cudaError_t forbid_during_capture(const char *function);
bool is_under_way(const Graph *graph);

// Note that a call has the host wait for a GPU.
void count_wait();

// Run now and tell the profiler; once more whenever a graph that is being captured is launched.
void execute(Activity activity, const std::function<void()> &work);

struct Block {
  size_t size;
  int device; // -1: pinned memory of the host
  bool is_host() const { return device < 0; }
};
const Block *block_of(const void *pointer); // null: memory that CUDA does not know
void add_memory_used(int gpu, int64_t bytes);

} // namespace emu

#define EMU_FAIL(error) return emu::fail(error, __func__)
#define EMU_RETURN_IF(call)                                                                                            \
  do {                                                                                                                 \
    if (cudaError_t error_ = (call)) return error_;                                                                    \
  } while (0)
#define EMU_DRIVER() EMU_RETURN_IF(emu::start_driver(__func__))
#define EMU_CONTEXT() EMU_RETURN_IF(emu::make_context(emu::current_device, __func__))
#define EMU_NOT_IN_CAPTURE() EMU_RETURN_IF(emu::forbid_during_capture(__func__))
