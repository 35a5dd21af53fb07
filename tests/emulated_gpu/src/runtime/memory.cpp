// Memory. A device's memory is memory of the host; how much of each GPU is in use is kept over all processes, so that a
// GPU runs out of it as a real one does, and NVML and cudaMemGetInfo tell of other processes too.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "runtime.h"

namespace emu {

// ---- what all processes hold, in memory that they share

struct Share {
  std::atomic<int> process;
  std::atomic<int64_t> bytes;
};
struct Ledger {
  Share shares[MAX_GPUS][256];
};

// A ledger for each user and, with NVIDIA_EMU_MACHINE, for each machine that a test pretends to be.
static Ledger &ledger() {
  static Ledger *ledger = [] {
    std::string name = "/emulated-gpu-" + std::to_string(getuid()) + "-" + setting("MACHINE", "0");
    int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(Ledger)) == 0)
      memory = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
      perror("emulated GPU: no shared memory");
      abort();
    }
    close(file);
    return (Ledger *)memory;
  }();
  return *ledger;
}

static bool is_alive(int process) { return process && (kill(process, 0) == 0 || errno == EPERM); }

static Share &my_share(int gpu) {
  int me = getpid();
  for (auto &share : ledger().shares[gpu])
    if (share.process == me) return share;
  for (auto &share : ledger().shares[gpu]) {
    int owner = share.process;
    if (!is_alive(owner) && share.process.compare_exchange_strong(owner, me)) {
      share.bytes = 0;
      return share;
    }
  }
  fprintf(stderr, "emulated GPU: too many processes\n");
  abort();
}

void add_memory_used(int gpu, int64_t bytes) { my_share(gpu).bytes += bytes; }

int64_t memory_used(int gpu) {
  int64_t sum = 0;
  for (auto &share : ledger().shares[gpu])
    if (share.process && is_alive(share.process)) sum += share.bytes;
  return sum;
}

// NVIDIA_EMU_GPU_GIB: one number, or one for each GPU, of which the last holds for the rest too.
int64_t memory_total(int gpu) {
  std::string rest = setting("GPU_GIB", "16");
  for (size_t comma; gpu > 0 && (comma = rest.find(',')) != std::string::npos; gpu--) rest.erase(0, comma + 1);
  return (int64_t)(atof(rest.c_str()) * (1ll << 30)) / (partitioned() ? INSTANCES : 1);
}

// ---- what this process holds

static std::map<uintptr_t, Block> &blocks() {
  static auto *blocks = new std::map<uintptr_t, Block>;
  return *blocks;
}

const Block *block_of(const void *pointer) {
  Lock lock(state_lock());
  auto found = blocks().upper_bound((uintptr_t)pointer);
  if (found == blocks().begin()) return nullptr;
  --found;
  return (uintptr_t)pointer < found->first + found->second.size ? &found->second : nullptr;
}

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~size_t(4095); }

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  EMU_CONTEXT();
  EMU_NOT_IN_CAPTURE();
  Lock lock(state_lock());
  constexpr uintptr_t ALIGNMENT = 2 << 20; // of a real GPU's large blocks
  int gpu = gpu_of(current_device);
  size_t size = whole_pages(bytes);
  *pointer = nullptr;
  if (memory_used(gpu) + (int64_t)size > memory_total(gpu)) EMU_FAIL(cudaErrorMemoryAllocation);
  if (!bytes) return cudaSuccess;
  int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(nullptr, size + ALIGNMENT, access, flags, -1, 0);
  if (memory == MAP_FAILED) EMU_FAIL(cudaErrorMemoryAllocation);
  uintptr_t begin = (uintptr_t)memory, aligned = (begin + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
  if (aligned > begin) munmap(memory, aligned - begin);
  munmap((void *)(aligned + size), begin + ALIGNMENT - aligned);
  blocks()[aligned] = Block{size, current_device};
  add_memory_used(gpu, size);
  *pointer = (void *)aligned;
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  if (!pointer) {
    EMU_CONTEXT();
    return cudaSuccess;
  }
  EMU_NOT_IN_CAPTURE();
  count_wait();
  Lock lock(state_lock());
  auto found = blocks().find((uintptr_t)pointer);
  if (found == blocks().end() || found->second.is_host()) EMU_FAIL(cudaErrorInvalidValue);
  add_memory_used(gpu_of(found->second.device), -(int64_t)found->second.size);
  munmap(pointer, found->second.size);
  blocks().erase(found);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  EMU_CONTEXT();
  int gpu = gpu_of(current_device);
  int64_t left = memory_total(gpu) - memory_used(gpu);
  *total = memory_total(gpu);
  *free = left > 0 ? left : 0;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
  EMU_CONTEXT();
  EMU_NOT_IN_CAPTURE();
  size_t size = whole_pages(bytes ? bytes : 1);
  void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) EMU_FAIL(cudaErrorMemoryAllocation);
  Lock lock(state_lock());
  blocks()[(uintptr_t)memory] = Block{size, -1};
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void *pointer) {
  Lock lock(state_lock());
  auto found = blocks().find((uintptr_t)pointer);
  if (found == blocks().end() || !found->second.is_host()) EMU_FAIL(cudaErrorInvalidValue);
  munmap(pointer, found->second.size);
  blocks().erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
  EMU_CONTEXT();
  Lock lock(state_lock());
  blocks()[(uintptr_t)pointer] = Block{bytes, -1};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
  Lock lock(state_lock());
  blocks().erase((uintptr_t)pointer);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
  EMU_DRIVER();
  Lock lock(state_lock());
  auto *block = block_of(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = !block ? cudaMemoryTypeUnregistered : block->is_host() ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = !block ? cudaInvalidDeviceId : block->is_host() ? 0 : block->device;
  attributes->hostPointer = block && !block->is_host() ? nullptr : (void *)pointer;
  attributes->devicePointer = block ? (void *)pointer : nullptr;
  return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                        bool async) {
  EMU_CONTEXT();
  if (!bytes) return cudaSuccess;
  auto *target = block_of(to), *source = block_of(from);
  bool to_device = target && !target->is_host(), from_device = source && !source->is_host();
  bool right = kind == cudaMemcpyHostToDevice     ? to_device && !from_device
               : kind == cudaMemcpyDeviceToHost   ? from_device && !to_device
               : kind == cudaMemcpyDeviceToDevice ? to_device && from_device
                                                  : true;
  if (!right) EMU_FAIL(cudaErrorInvalidValue);
  auto *state = stream_of(stream);
  bool pageable = !target || !source;
  if (!async) EMU_NOT_IN_CAPTURE();
  if (state->graph && pageable) {
    state->graph->invalid = true;
    EMU_FAIL(cudaErrorStreamCaptureUnsupported);
  }
  Direction direction = to_device && from_device ? DEVICE_TO_DEVICE : to_device ? HOST_TO_DEVICE : DEVICE_TO_HOST;
  int device = from_device ? source->device : to_device ? target->device : current_device;
  preserve(stream, to, bytes);
  execute({COPY, async ? "cudaMemcpyAsync" : "cudaMemcpy", device, stream, bytes, direction, !pageable},
          [=] { memmove(to, from, bytes); });
  // The host waits for a copy into memory that is not pinned.
  if (pageable && !to_device) state->synchronized = last_order();
  if (!async || (pageable && !to_device)) count_wait();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, bytes, kind, stream, true);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind, nullptr, false);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream, true);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    EMU_RETURN_IF(copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream, true));
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
  EMU_CONTEXT();
  if (!bytes) return cudaSuccess;
  auto *block = block_of(pointer);
  if (!block || block->is_host()) EMU_FAIL(cudaErrorInvalidValue);
  preserve(stream, pointer, bytes);
  execute({FILL, "cudaMemsetAsync", block->device, stream, bytes}, [=] { memset(pointer, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

// PyTorch's optional allocator over memory pools is not emulated beyond being there.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
  *pool = (cudaMemPool_t)1;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *value) {
  *(uint64_t *)value = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc *, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// Graphs hold no memory of their own: PyTorch allocates theirs beforehand.
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void *value) {
  *(uint64_t *)value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void *) { return cudaSuccess; }

// Sharing memory between processes is refused, as in many containers.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *) { EMU_FAIL(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) { EMU_FAIL(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void *) { EMU_FAIL(cudaErrorNotSupported); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *, cudaEvent_t) { EMU_FAIL(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *, cudaIpcEventHandle_t) { EMU_FAIL(cudaErrorNotSupported); }

} // extern "C"
