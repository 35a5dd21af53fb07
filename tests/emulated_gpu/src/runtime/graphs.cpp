// CUDA graphs: a list of functions, recorded while a stream is captured and called again by every launch.
//
// Unlike on a real GPU, what is captured is executed as well while it is captured; its results are overwritten by the
// first launch.
#include "runtime.h"

namespace emu {

static std::set<const Graph *> &under_way() {
  static auto *graphs = new std::set<const Graph *>;
  return *graphs;
}

bool is_under_way(const Graph *graph) { return graph && under_way().count(graph); }

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t forbid_during_capture(const char *function) {
  Lock lock(state_lock());
  if (under_way().empty() || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (auto *graph : under_way()) const_cast<Graph *>(graph)->invalid = true;
  return fail(cudaErrorStreamCaptureUnsupported, function);
}

bool is_capturing(void *stream) { return stream_of((cudaStream_t)stream)->graph != nullptr; }

void capture(void *stream, void (*replay)(void *), void *context) {
  Lock lock(state_lock());
  if (auto *graph = stream_of((cudaStream_t)stream)->graph) graph->nodes.push_back([=] { replay(context); });
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  static unsigned long long count = 0;
  EMU_CONTEXT();
  if (stream <= cudaStreamPerThread) EMU_FAIL(cudaErrorStreamCaptureUnsupported); // no default stream
  Lock lock(state_lock());
  auto *graph = new Graph;
  graph->id = ++count;
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

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
  EMU_NOT_IN_CAPTURE();
  *executable = (cudaGraphExec_t)graph;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  EMU_CONTEXT();
  execute(stream, [=] {
    for (auto &node : ((Graph *)executable)->nodes) node();
  });
  return cudaSuccess;
}

// Kept: an executable is the graph itself, and both are few.
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

} // extern "C"
