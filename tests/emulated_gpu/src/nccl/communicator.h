// How the ranks of an emulated NCCL communicator exchange bytes: shared memory of one machine, with a slot for each
// rank (collectives) and a box for each ordered pair of ranks (send and receive).
#pragma once

#include <cuda_runtime_api.h>

// nccl.h asks for these headers, which no package of PyTorch's has, only for types that it does not use.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <atomic>
#include <vector>

#include "../emulation.h"

constexpr int MAX_RANKS = 64;
constexpr size_t SLOT_BYTES = 4 << 20, BOX_BYTES = 256 << 10;

struct Shared {
  std::atomic<int> arrived, phase;
  std::atomic<int> gpu[MAX_RANKS], color[MAX_RANKS], key[MAX_RANKS];
};

struct Box {
  std::atomic<int> full;
  size_t bytes;
  alignas(64) char data[BOX_BYTES];
};

struct ncclComm {
  uint64_t id;
  int rank, size, device;
  int splits = 0;
  std::atomic<bool> aborted{false};
  Shared *shared = nullptr;
  char *slots = nullptr;
  Box *boxes = nullptr;

  // Join the other ranks. Like NCCL, it refuses two ranks on one GPU.
  ncclResult_t open();
  // Wait until all ranks are here. Like a real collective it waits for ever for one that died; abort() ends it.
  ncclResult_t meet();
  char *slot(int of) { return slots + (size_t)of * SLOT_BYTES; }
  Box &box(int from, int to) { return boxes[from * size + to]; }
};

struct Transfer {
  ncclComm *comm;
  bool sends;
  char *data;
  size_t left; // bytes
  int peer;
};
// Carry out all of them at once; those between the same two ranks keep their order.
ncclResult_t transfer(std::vector<Transfer> transfers);

size_t bytes_of(ncclDataType_t type);
// As NCCL's kernels are called: f32, bf16, …
const char *name_of(ncclDataType_t type);
// Reduce elements [from, from + count) of the slots of all ranks into `to`.
ncclResult_t reduce_slots(ncclComm *comm, void *to, size_t from, size_t count, ncclDataType_t type, ncclRedOp_t op);
// An operation that multiplies by `factor`, then sums.
ncclRedOp_t new_scaled_sum(double factor);
double read_scalar(const void *scalar, ncclDataType_t type);
