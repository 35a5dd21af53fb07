// libcupti.so.13: as much of CUPTI's activity interface as PyTorch's profiler asks for. Every kernel, copy and fill
// becomes a record of the call on the host and one of the work on the device, with the correlation ids that the
// profiler pushed.
#include <cupti.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "emulation.h"

using emu::Activity;

constexpr size_t KINDS = 256;
static std::atomic<bool> enabled[KINDS];
static std::atomic<uint32_t> next_correlation{1};
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc buffer_completed;

// The buffer that is being filled; the profiler is asked for one when the first record comes, as CUPTI does.
static std::mutex buffer_lock;
static uint8_t *buffer;
static size_t capacity, filled;

// Ids that the profiler pushed for the work that this thread launches.
struct External {
  CUpti_ExternalCorrelationKind kind;
  uint64_t id;
};
static thread_local std::vector<External> external_ids;

static void hand_over() {
  if (buffer) buffer_completed(nullptr, 0, buffer, capacity, filled);
  buffer = nullptr;
  filled = 0;
}

template <class Record> static void put(const Record &record) {
  std::lock_guard<std::mutex> lock(buffer_lock);
  if (buffer && filled + sizeof record > capacity) hand_over();
  size_t most_records = 0;
  if (!buffer && request_buffer) request_buffer(&buffer, &capacity, &most_records);
  if (!buffer) return;
  memcpy(buffer + filled, &record, sizeof record);
  filled += sizeof record;
}

// Newer versions of CUPTI append members to the record of a kernel; a profiler that reads them finds zeros.
struct KernelRecord : CUpti_ActivityKernel10 {
  uint64_t appended[8];
};

static size_t size_of(CUpti_ActivityKind kind) {
  switch (kind) {
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(KernelRecord);
  case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
  case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
  case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
  default: return sizeof(CUpti_ActivityExternalCorrelation);
  }
}

// Records point at names, so these stay.
static const char *keep(const std::string &name) {
  static std::mutex lock;
  static auto *names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> locked(lock);
  return names->insert(name).first->c_str();
}

// A small number for a stream: the default one is 7, as on a real GPU.
static uint32_t stream_id(void *stream) {
  static std::mutex lock;
  static auto *streams = new std::vector<void *>;
  if ((uintptr_t)stream <= 2) return 7;
  std::lock_guard<std::mutex> locked(lock);
  size_t place = 0;
  while (place < streams->size() && (*streams)[place] != stream) place++;
  if (place == streams->size()) streams->push_back(stream);
  return 13 + 4 * place;
}

template <class Record>
static Record on_device(CUpti_ActivityKind kind, const Activity &activity, uint32_t correlation) {
  Record record{};
  record.kind = kind;
  record.start = activity.start;
  record.end = activity.end;
  record.deviceId = activity.device;
  record.contextId = 1 + activity.device;
  record.streamId = stream_id(activity.stream);
  record.correlationId = correlation;
  return record;
}

static void put_launch(const Activity &activity, uint32_t correlation) {
  for (auto &external : external_ids) {
    if (!enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]) break;
    CUpti_ActivityExternalCorrelation record{};
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = external.kind;
    record.externalId = external.id;
    record.correlationId = correlation;
    put(record);
  }
  if (!enabled[CUPTI_ACTIVITY_KIND_RUNTIME]) return;
  CUpti_ActivityAPI record{};
  record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  record.cbid = activity.kind == emu::KERNEL         ? CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000
                : activity.kind == emu::COPY         ? CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020
                : activity.kind == emu::GRAPH_LAUNCH ? CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000
                                                     : CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020;
  record.start = activity.start;
  record.end = activity.end;
  record.processId = getpid();
  record.threadId = (uint32_t)pthread_self();
  record.correlationId = correlation;
  put(record);
}

static void record(const Activity &activity) {
  // All work of a graph has the correlation of its launch, which is reported last.
  static thread_local uint32_t graph_correlation = 0;
  uint32_t correlation = activity.graph && graph_correlation ? graph_correlation : next_correlation++;
  if (activity.graph) graph_correlation = activity.kind == emu::GRAPH_LAUNCH ? 0 : correlation;
  if (!activity.graph || activity.kind == emu::GRAPH_LAUNCH) put_launch(activity, correlation);
  if (activity.kind == emu::KERNEL && enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
    auto record = on_device<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, activity, correlation);
    record.gridX = record.gridY = record.gridZ = 1;
    record.blockX = 128;
    record.blockY = record.blockZ = 1;
    record.registersPerThread = 32;
    record.graphId = activity.graph;
    record.name = keep(activity.name);
    put(record);
  }
  if (activity.kind == emu::COPY && enabled[CUPTI_ACTIVITY_KIND_MEMCPY]) {
    auto record = on_device<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY, activity, correlation);
    int host = activity.pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    record.bytes = activity.bytes;
    record.copyKind = activity.direction;
    record.srcKind = activity.direction == emu::HOST_TO_DEVICE ? host : (int)CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    record.dstKind = activity.direction == emu::DEVICE_TO_HOST ? host : (int)CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    put(record);
  }
  if (activity.kind == emu::FILL && enabled[CUPTI_ACTIVITY_KIND_MEMSET]) {
    auto record = on_device<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET, activity, correlation);
    record.bytes = activity.bytes;
    record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    put(record);
  }
}

extern "C" {

CUptiResult cuptiGetVersion(uint32_t *version) {
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult, const char **text) {
  *text = "emulated CUPTI";
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc, void *) {
  *subscriber = (CUpti_SubscriberHandle)1;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return CUPTI_SUCCESS; }
// The calls of put_launch(), under CUPTI's own names.
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
  *name = "<unknown>";
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API) return CUPTI_SUCCESS;
  switch (id) {
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000: *name = "cudaLaunchKernel_v7000"; break;
  case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020: *name = "cudaMemcpyAsync_v3020"; break;
  case CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020: *name = "cudaMemsetAsync_v3020"; break;
  case CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000: *name = "cudaGraphLaunch_v10000"; break;
  default: break;
  }
  return CUPTI_SUCCESS;
}
CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (kind < KINDS) enabled[kind] = true;
  emu::on_activity(record);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (kind < KINDS) enabled[kind] = false;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t *, void *) { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  emu::use_clock(clock);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  request_buffer = request;
  buffer_completed = completed;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  external_ids.push_back({kind, id});
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id) {
  for (size_t place = external_ids.size(); place-- > 0;) {
    if (external_ids[place].kind != kind) continue;
    if (id) *id = external_ids[place].id;
    external_ids.erase(external_ids.begin() + place);
    return CUPTI_SUCCESS;
  }
  return CUPTI_ERROR_QUEUE_EMPTY;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  std::lock_guard<std::mutex> lock(buffer_lock);
  hand_over();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *from, size_t valid, CUpti_Activity **record) {
  uint8_t *next = *record ? (uint8_t *)*record + size_of((*record)->kind) : from;
  if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity *)next;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *count) {
  *count = 0;
  return CUPTI_SUCCESS;
}

} // extern "C"
