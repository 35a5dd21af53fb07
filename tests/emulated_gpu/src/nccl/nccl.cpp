// libnccl.so.2: NCCL's interface. A collective is carried out by the thread that calls it, or by ncclGroupEnd; where
// one process has several communicators (nn.DataParallel), each gets a thread.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "communicator.h"

using Work = std::function<ncclResult_t()>;

static std::string kernel_name(const std::string &what) {
  return "ncclDevKernel_" + what + "_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
}

// What is queued between ncclGroupStart and ncclGroupEnd.
static thread_local int depth = 0;
static thread_local std::vector<std::pair<ncclComm *, Work>> queued;
struct Queued {
  Transfer transfer;
  cudaStream_t stream;
};
static thread_local std::vector<Queued> queued_transfers;

// Run `work` as a kernel; if the stream captures, not before the graph is launched.
static ncclResult_t run(ncclComm *comm, const std::string &name, cudaStream_t stream, const Work &work) {
  emu::Activity activity{emu::KERNEL, kernel_name(name), comm->device, stream};
  if (emu::is_capturing(stream)) {
    emu::capture(activity, [=] { work(); });
    return ncclSuccess;
  }
  activity.start = emu::now();
  auto result = work();
  activity.end = emu::now();
  emu::report(activity);
  return result;
}

static ncclResult_t enqueue(ncclComm *comm, const std::string &name, cudaStream_t stream, const Work &work) {
  Work whole = [=] { return run(comm, name, stream, work); };
  if (!depth) return whole();
  queued.emplace_back(comm, whole);
  return ncclSuccess;
}

static ncclResult_t run_transfers(const std::vector<Queued> &all) {
  if (all.empty()) return ncclSuccess;
  std::vector<Transfer> transfers;
  for (auto &one : all) transfers.push_back(one.transfer);
  auto *comm = all[0].transfer.comm;
  return run(comm, "SendRecv", all[0].stream, [=] { return transfer(transfers); });
}

static ncclResult_t enqueue_transfers(const std::vector<Queued> &all) {
  if (!depth) return run_transfers(all);
  queued_transfers.insert(queued_transfers.end(), all.begin(), all.end());
  return ncclSuccess;
}

static ncclResult_t run_group() {
  auto transfers = std::move(queued_transfers);
  auto works = std::move(queued);
  queued_transfers.clear();
  queued.clear();
  if (auto error = run_transfers(transfers)) return error;
  std::map<ncclComm *, std::vector<Work>> by_communicator;
  for (auto &[comm, work] : works) by_communicator[comm].push_back(work);
  std::atomic<int> worst{ncclSuccess};
  std::vector<std::thread> threads;
  for (auto &entry : by_communicator) {
    auto all = [&worst, works = &entry.second] {
      for (auto &work : *works)
        if (int error = work()) worst = error;
    };
    if (by_communicator.size() == 1)
      all();
    else
      threads.emplace_back(all);
  }
  for (auto &thread : threads) thread.join();
  return (ncclResult_t)worst.load();
}

static ncclResult_t join(ncclComm_t *out, int size, uint64_t id, int rank, int device) {
  auto *comm = new ncclComm;
  comm->id = id;
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  *out = comm;
  auto result = comm->open();
  emu::log("nccl: rank %d of %d on device %d: %d", rank, size, device, result);
  return result;
}

static const char *name_of(ncclRedOp_t op) {
  switch (op) {
  case ncclProd: return "Prod";
  case ncclMax:
  case ncclMin: return "MinMax";
  case ncclSum: return "Sum";
  case ncclAvg: return "SumPostDiv";
  default: return "PreMulSum";
  }
}

static std::string reduction(const char *what, ncclRedOp_t op, ncclDataType_t type) {
  return std::string(what) + "_" + name_of(op) + "_" + name_of(type);
}

// Reduce to one rank, or to all (root < 0).
static ncclResult_t reduce_to(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, int root) {
  size_t width = bytes_of(type), most = SLOT_BYTES / width;
  for (size_t done = 0; done < count; done += most) {
    size_t part = std::min(most, count - done);
    memcpy(comm->slot(comm->rank), (const char *)send + done * width, part * width);
    if (auto error = comm->meet()) return error;
    if (root < 0 || root == comm->rank)
      if (auto error = reduce_slots(comm, (char *)receive + done * width, 0, part, type, op)) return error;
    if (auto error = comm->meet()) return error;
  }
  return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t error) {
  switch (error) {
  case ncclSuccess: return "no error";
  case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
  default: return "emulated NCCL error";
  }
}
const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 0, sizeof *id);
  FILE *random = fopen("/dev/urandom", "rb");
  if (!random) return ncclSystemError;
  size_t read = fread(id, 1, sizeof(uint64_t), random);
  fclose(random);
  return read == sizeof(uint64_t) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *) {
  int device = 0;
  cudaGetDevice(&device);
  uint64_t number;
  memcpy(&number, &id, sizeof number);
  return join(comm, size, number, rank, device);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int, ncclUniqueId *ids, ncclConfig_t *) {
  return ncclCommInitRankConfig(comm, size, ids[0], rank, nullptr);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
  ncclUniqueId id;
  if (auto error = ncclGetUniqueId(&id)) return error;
  uint64_t number;
  memcpy(&number, &id, sizeof number);
  std::atomic<int> worst{ncclSuccess};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; rank++)
    threads.emplace_back([=, &worst] {
      if (int error = join(&comms[rank], count, number, rank, devices ? devices[rank] : rank)) worst = error;
    });
  for (auto &thread : threads) thread.join();
  return (ncclResult_t)worst.load();
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *) {
  auto *shared = comm->shared;
  shared->color[comm->rank] = color;
  shared->key[comm->rank] = key;
  if (auto error = comm->meet()) return error;
  int size = 0, rank = 0;
  for (int other = 0; other < comm->size; other++) {
    if (shared->color[other] != color) continue;
    size++;
    if (std::make_pair((int)shared->key[other], other) < std::make_pair(key, comm->rank)) rank++;
  }
  // The same for all ranks of a color, and another for each color and split.
  uint64_t id = comm->id * 1000003 + ++comm->splits * 1009 + color;
  if (auto error = comm->meet()) return error;
  *out = nullptr;
  return color < 0 ? ncclSuccess : join(out, size, id, rank, comm->device);
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) comm->aborted = true;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  *error = comm->aborted ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  *count = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --depth ? ncclSuccess : run_group(); }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t,
                                      ncclComm_t) {
  *op = new_scaled_sum(read_scalar(scalar, type));
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}
ncclResult_t ncclMemFree(void *pointer) {
  cudaFree(pointer);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void *, size_t, void **handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void *) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, reduction("AllReduce", op, type), stream,
                 [=] { return reduce_to(send, receive, count, type, op, comm, -1); });
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, reduction("Reduce", op, type), stream,
                 [=] { return reduce_to(send, receive, count, type, op, comm, root); });
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, "Broadcast", stream, [=] {
    size_t bytes = count * bytes_of(type);
    for (size_t done = 0; done < bytes; done += SLOT_BYTES) {
      size_t part = std::min(SLOT_BYTES, bytes - done);
      if (comm->rank == root) memcpy(comm->slot(root), (const char *)send + done, part);
      if (auto error = comm->meet()) return error;
      memcpy((char *)receive + done, comm->slot(root), part);
      if (auto error = comm->meet()) return error;
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(comm, "AllGather", stream, [=] {
    size_t bytes = count * bytes_of(type);
    for (size_t done = 0; done < bytes; done += SLOT_BYTES) {
      size_t part = std::min(SLOT_BYTES, bytes - done);
      memcpy(comm->slot(comm->rank), (const char *)send + done, part);
      if (auto error = comm->meet()) return error;
      for (int rank = 0; rank < comm->size; rank++)
        memcpy((char *)receive + rank * bytes + done, comm->slot(rank), part);
      if (auto error = comm->meet()) return error;
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, reduction("ReduceScatter", op, type), stream, [=] {
    size_t width = bytes_of(type), most = SLOT_BYTES / width / comm->size;
    for (size_t done = 0; done < count; done += most) {
      size_t part = std::min(most, count - done);
      for (int rank = 0; rank < comm->size; rank++)
        memcpy(comm->slot(comm->rank) + rank * part * width, (const char *)send + (rank * count + done) * width,
               part * width);
      if (auto error = comm->meet()) return error;
      char *to = (char *)receive + done * width;
      if (auto error = reduce_slots(comm, to, comm->rank * part, part, type, op)) return error;
      if (auto error = comm->meet()) return error;
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!count) return ncclSuccess;
  return enqueue_transfers({{{comm, true, (char *)data, count * bytes_of(type), peer}, stream}});
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (!count) return ncclSuccess;
  return enqueue_transfers({{{comm, false, (char *)data, count * bytes_of(type), peer}, stream}});
}

ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  size_t bytes = count * bytes_of(type);
  if (!bytes) return ncclSuccess;
  std::vector<Queued> all{{{comm, true, (char *)send, bytes, root}, stream}};
  for (int rank = 0; comm->rank == root && rank < comm->size; rank++)
    all.push_back({{comm, false, (char *)receive + rank * bytes, bytes, rank}, stream});
  return enqueue_transfers(all);
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  std::vector<Queued> all;
  size_t bytes = count * bytes_of(type);
  for (int rank = 0; bytes && rank < comm->size; rank++) {
    all.push_back({{comm, true, (char *)send + rank * bytes, bytes, rank}, stream});
    all.push_back({{comm, false, (char *)receive + rank * bytes, bytes, rank}, stream});
  }
  return enqueue_transfers(all);
}

} // extern "C"
