#include "communicator.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

ncclResult_t ncclComm::open() {
  if (size > MAX_RANKS) return ncclInvalidArgument;
  char name[64];
  snprintf(name, sizeof name, "/emulated-nccl-%016llx", (unsigned long long)id);
  size_t head = (sizeof(Shared) + 4095) & ~size_t(4095), all_slots = SLOT_BYTES * size;
  size_t bytes = head + all_slots + sizeof(Box) * size * size;
  int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, bytes)) return ncclSystemError;
  auto *memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  shared = (Shared *)memory;
  slots = memory + head;
  boxes = (Box *)(slots + all_slots);
  shared->gpu[rank] = emu::gpu_of(device);
  if (auto error = meet()) return error;
  shm_unlink(name); // every rank has it open: the name is not needed any more
  for (int one = 0; one < size; one++)
    for (int other = 0; other < one; other++)
      if (shared->gpu[one] == shared->gpu[other]) {
        emu::log("nccl: ranks %d and %d are both on GPU %d", other, one, (int)shared->gpu[one]);
        return ncclInvalidUsage;
      }
  return ncclSuccess;
}

ncclResult_t ncclComm::meet() {
  if (aborted) return ncclRemoteError;
  int phase = shared->phase;
  if (shared->arrived.fetch_add(1) + 1 == size) {
    shared->arrived = 0;
    shared->phase++;
    return ncclSuccess;
  }
  for (long turn = 0; shared->phase == phase; turn++) {
    if (aborted) return ncclRemoteError;
    if (turn < 200)
      sched_yield();
    else
      usleep(50); // fewer cores than ranks
  }
  return ncclSuccess;
}

ncclResult_t transfer(std::vector<Transfer> transfers) {
  while (!transfers.empty()) {
    bool moved = false;
    std::vector<std::tuple<ncclComm *, int, bool>> unfinished; // later ones of the same pair wait for these
    for (auto &one : transfers) {
      if (one.comm->aborted) return ncclRemoteError;
      auto pair = std::make_tuple(one.comm, one.peer, one.sends);
      if (std::find(unfinished.begin(), unfinished.end(), pair) != unfinished.end()) continue;
      int me = one.comm->rank;
      Box &box = one.sends ? one.comm->box(me, one.peer) : one.comm->box(one.peer, me);
      if (one.sends != (bool)box.full) {
        if (one.sends) box.bytes = std::min(BOX_BYTES, one.left);
        size_t bytes = box.bytes;
        if (one.sends)
          memcpy(box.data, one.data, bytes);
        else
          memcpy(one.data, box.data, bytes);
        one.data += bytes;
        one.left -= bytes;
        box.full = one.sends;
        moved = true;
      }
      if (one.left) unfinished.push_back(pair);
    }
    auto done = [](const Transfer &one) { return !one.left; };
    transfers.erase(std::remove_if(transfers.begin(), transfers.end(), done), transfers.end());
    if (!moved) usleep(50);
  }
  return ncclSuccess;
}
