// Streams and events. What is put into a stream is executed at once, by the thread that puts it there, so streams never
// overlap; but nothing may be read that a real GPU might not have finished: the time between two events that nobody
// waited for is refused.
#include <time.h>

#include "runtime.h"

namespace emu {

static std::atomic<int64_t> order{1};
int64_t next_order() { return order++; }
int64_t last_order() { return order; }

static std::atomic<int64_t> device_synchronized[MAX_GPUS];

static std::atomic<long long> waits;
void count_wait() { waits++; }

CUstream_st *stream_of(cudaStream_t stream) {
  // 0, 1 and 2 stand for the default streams (cudaStreamLegacy, cudaStreamPerThread).
  if (stream > cudaStreamPerThread) return stream;
  static CUstream_st *default_streams[MAX_GPUS];
  Lock lock(state_lock());
  auto *&found = default_streams[current_device];
  if (!found) found = new CUstream_st{current_device, 0};
  return found;
}

void execute(Activity activity, const std::function<void()> &work) {
  activity.start = now();
  work();
  activity.end = now();
  if (is_capturing(activity.stream))
    capture(activity, work);
  else
    report(activity);
}

static int64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static cudaError_t wait(CUstream_st *stream, const char *function) {
  if (stream->graph) {
    stream->graph->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported, function);
  }
  stream->synchronized = last_order();
  return cudaSuccess;
}

static bool was_waited_for(const CUevent_st *event) {
  return event->over || device_synchronized[event->device] > event->order ||
         (event->stream && event->stream->synchronized > event->order);
}

static cudaError_t forbid_captured(CUevent_st *event, const char *function) {
  Lock lock(state_lock());
  if (!is_under_way(event->graph)) return cudaSuccess;
  event->graph->invalid = true;
  return fail(cudaErrorCapturedEvent, function);
}

} // namespace emu

using namespace emu;

extern "C" {

// How often the host has waited for a GPU in this process, for tests of what must not have it wait.
long long emulated_waits() { return waits; }

cudaError_t cudaDeviceSynchronize() {
  EMU_CONTEXT();
  EMU_NOT_IN_CAPTURE();
  count_wait();
  device_synchronized[current_device] = last_order();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  EMU_CONTEXT();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority) {
  EMU_CONTEXT();
  *stream = new CUstream_st{current_device, priority};
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

// Kept: events point at it.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  EMU_CONTEXT();
  count_wait();
  return wait(stream_of(stream), __func__);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  EMU_CONTEXT();
  return wait(stream_of(stream), __func__);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned) {
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  // No activity of the device: called now, and by every launch of a graph that captures it.
  function(data);
  if (is_capturing(stream)) capture({NOTHING, "", 0, stream}, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  EMU_CONTEXT();
  *event = new CUevent_st{current_device, flags};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  auto *state = stream_of(stream);
  if (state->device != event->device) EMU_FAIL(cudaErrorInvalidResourceHandle);
  Lock lock(state_lock());
  event->graph = flags & cudaEventRecordExternal ? nullptr : state->graph;
  event->order = next_order();
  event->time_ns = monotonic_ns();
  event->stream = state;
  event->recorded = true;
  event->over = false;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  EMU_RETURN_IF(forbid_captured(event, __func__));
  count_wait();
  event->over = true;
  if (event->stream && event->stream->synchronized <= event->order) event->stream->synchronized = event->order + 1;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  EMU_RETURN_IF(forbid_captured(event, __func__));
  if (!event->recorded || was_waited_for(event)) return cudaSuccess;
  constexpr int64_t AT_WORK_NS = 20000; // so that callers meet "not ready" as well
  if (monotonic_ns() - event->time_ns < AT_WORK_NS) return cudaErrorNotReady;
  event->over = true;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  bool untimed = (start->flags | end->flags) & cudaEventDisableTiming;
  if (start->device != end->device || !start->recorded || !end->recorded || untimed)
    EMU_FAIL(cudaErrorInvalidResourceHandle);
  if (start->graph || end->graph) EMU_FAIL(cudaErrorInvalidValue); // such an event has no time of its own
  if (!was_waited_for(start) || !was_waited_for(end)) EMU_FAIL(cudaErrorNotReady);
  *milliseconds = (end->time_ns - start->time_ns) / 1e6f;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto *state = stream_of(stream);
  Lock lock(state_lock());
  if (is_under_way(event->graph)) { // the stream joins the capture
    state->graph = event->graph;
    event->graph->streams.insert(state);
  } else if (state->graph && event->recorded && !event->graph) {
    state->graph->invalid = true;
    EMU_FAIL(cudaErrorStreamCaptureIsolation);
  }
  return cudaSuccess;
}

} // extern "C"
