// CUDA graphs: a list of functions, recorded while a stream is captured and called by every launch.
//
// Unlike on a real GPU, what is captured is executed while it is captured, because the operators learn the sizes of
// their results by computing them. When the capture ends, memory that was written has its old values again.
#include "runtime.h"

#include <algorithm>

namespace emu {

static std::set<const Graph *> &under_way() {
  static auto *graphs = new std::set<const Graph *>;
  return *graphs;
}

bool is_under_way(const Graph *graph) { return graph && under_way().count(graph); }

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t forbid_during_capture(const char *function) {
  Lock lock(state_lock());
  bool forbidden = false;
  for (auto *graph : under_way()) {
    bool is_own = graph->thread == std::this_thread::get_id();
    if (thread_mode == cudaStreamCaptureModeRelaxed || graph->mode == cudaStreamCaptureModeRelaxed) continue;
    if (!is_own && std::max(thread_mode, graph->mode) != cudaStreamCaptureModeGlobal) continue;
    const_cast<Graph *>(graph)->invalid = forbidden = true;
  }
  return forbidden ? fail(cudaErrorStreamCaptureUnsupported, function) : cudaSuccess;
}

bool is_capturing(void *stream) { return stream_of((cudaStream_t)stream)->graph != nullptr; }

void capture(const Activity &activity, std::function<void()> replay) {
  Lock lock(state_lock());
  if (auto *graph = stream_of((cudaStream_t)activity.stream)->graph)
    graph->nodes.push_back({activity, std::move(replay)});
}

void preserve(void *stream, void *memory, size_t bytes) {
  Lock lock(state_lock());
  auto *graph = stream_of((cudaStream_t)stream)->graph;
  if (!graph || !bytes) return;
  auto *begin = (const char *)memory;
  graph->restore.push_back(
      [memory, values = std::vector<char>(begin, begin + bytes)] { memcpy(memory, values.data(), values.size()); });
}

static void launch(Graph &graph, cudaStream_t stream) {
  int64_t start = now();
  for (auto &node : graph.nodes) {
    Activity activity = node.activity;
    activity.stream = stream;
    activity.graph = graph.id;
    activity.start = now();
    node.work();
    activity.end = now();
    if (activity.kind != NOTHING) report(activity);
  }
  report({GRAPH_LAUNCH, "cudaGraphLaunch", current_device, stream, 0, NO_DIRECTION, false, graph.id, start, now()});
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static unsigned long long count = 0;
  EMU_CONTEXT();
  if (stream <= cudaStreamPerThread) EMU_FAIL(cudaErrorStreamCaptureUnsupported); // no default stream
  Lock lock(state_lock());
  auto *graph = new Graph;
  graph->id = ++count;
  graph->mode = mode;
  graph->thread = std::this_thread::get_id();
  graph->streams.insert(stream);
  stream->graph = graph;
  under_way().insert(graph);
  log("capture %llu begins", graph->id);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  Lock lock(state_lock());
  auto *graph = stream->graph;
  if (!graph) EMU_FAIL(cudaErrorIllegalState);
  for (auto *one : graph->streams) one->graph = nullptr;
  under_way().erase(graph);
  for (auto restore = graph->restore.rbegin(); restore != graph->restore.rend(); ++restore) (*restore)();
  graph->restore.clear();
  log("capture %llu ends: %zu nodes%s", graph->id, graph->nodes.size(), graph->invalid ? ", invalid" : "");
  *out = graph->invalid ? nullptr : (cudaGraph_t)graph;
  if (graph->invalid) EMU_FAIL(cudaErrorStreamCaptureInvalidated);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  auto *graph = stream_of(stream)->graph;
  *status = !graph           ? cudaStreamCaptureStatusNone
            : graph->invalid ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *out, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  cudaStreamIsCapturing(stream, status);
  auto *graph = stream_of(stream)->graph;
  if (id) *id = graph ? graph->id : 0;
  if (out) *out = (cudaGraph_t)graph;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  if (!nodes) *count = ((Graph *)graph)->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t *, cudaGraphEdgeData *, size_t *count) {
  *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char *, unsigned) { return cudaSuccess; }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
  EMU_NOT_IN_CAPTURE();
  *executable = (cudaGraphExec_t)graph;
  return cudaSuccess;
}
// Of these two, some versions of PyTorch call one and some the other.
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  EMU_CONTEXT();
  auto &graph = *(Graph *)executable;
  if (is_capturing(stream)) EMU_FAIL(cudaErrorStreamCaptureUnsupported); // a graph within a graph
  launch(graph, stream);
  return cudaSuccess;
}

// Kept: an executable is the graph itself, and both are few.
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

// What a graph keeps alive for its launches is therefore never given back either.
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t, unsigned, unsigned) {
  *object = (cudaUserObject_t)data;
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }

} // extern "C"
