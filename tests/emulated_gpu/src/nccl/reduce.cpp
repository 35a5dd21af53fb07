// Reductions. Narrow floating-point types are summed in fp32 and rounded once, so a sum does not depend on the number
// of ranks more than it must.
#include <algorithm>
#include <map>
#include <mutex>

#include "communicator.h"

namespace {

// Of every type: how it is stored, in what it is summed, and how one becomes the other.
template <class Stored, class Summed = Stored> struct Plain {
  using stored = Stored;
  using summed = Summed;
  static Summed load(Stored value) { return (Summed)value; }
  static Stored store(Summed value) { return (Stored)value; }
};

struct Half {
  using stored = uint16_t;
  using summed = float;
  static float load(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
  }
  static uint16_t store(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
  }
};

struct Bfloat16 {
  using stored = uint16_t;
  using summed = float;
  static float load(uint16_t upper) {
    uint32_t bits = (uint32_t)upper << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  static uint16_t store(float value) { // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0; // not a number
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
};

std::mutex scaled_sums_lock;
std::map<int, double> scaled_sums; // factors of operations made by ncclRedOpCreatePreMulSum

template <class T> T combine(T one, T other, ncclRedOp_t op) {
  switch (op) {
  case ncclProd: return one * other;
  case ncclMax: return std::max(one, other);
  case ncclMin: return std::min(one, other);
  default: return one + other;
  }
}

template <class Type> void reduce(ncclComm *comm, void *to, size_t from, size_t count, ncclRedOp_t op, double factor) {
  using Summed = typename Type::summed;
  std::vector<Summed> sums(count);
  for (int rank = 0; rank < comm->size; rank++) {
    auto *values = (const typename Type::stored *)comm->slot(rank) + from;
    if (rank == 0)
      for (size_t i = 0; i < count; i++) sums[i] = Type::load(values[i]);
    else
      for (size_t i = 0; i < count; i++) sums[i] = combine(sums[i], Type::load(values[i]), op);
  }
  auto *out = (typename Type::stored *)to;
  if (factor == 1)
    for (size_t i = 0; i < count; i++) out[i] = Type::store(sums[i]);
  else
    for (size_t i = 0; i < count; i++) out[i] = Type::store((Summed)(sums[i] * factor));
}

} // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8:
  case ncclFloat8e4m3:
  case ncclFloat8e5m2: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  default: return 8;
  }
}

const char *name_of(ncclDataType_t type) {
  switch (type) {
  case ncclInt8: return "i8";
  case ncclUint8: return "u8";
  case ncclInt32: return "i32";
  case ncclUint32: return "u32";
  case ncclInt64: return "i64";
  case ncclUint64: return "u64";
  case ncclFloat16: return "f16";
  case ncclBfloat16: return "bf16";
  case ncclFloat64: return "f64";
  default: return "f32";
  }
}

ncclResult_t reduce_slots(ncclComm *comm, void *to, size_t from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  double factor = 1;
  if (op == ncclAvg) {
    factor = 1.0 / comm->size;
  } else {
    std::lock_guard<std::mutex> lock(scaled_sums_lock);
    auto found = scaled_sums.find((int)op);
    if (found != scaled_sums.end()) factor = found->second;
  }
  switch (type) {
  case ncclFloat32: reduce<Plain<float>>(comm, to, from, count, op, factor); break;
  case ncclFloat64: reduce<Plain<double>>(comm, to, from, count, op, factor); break;
  case ncclFloat16: reduce<Half>(comm, to, from, count, op, factor); break;
  case ncclBfloat16: reduce<Bfloat16>(comm, to, from, count, op, factor); break;
  case ncclInt32: reduce<Plain<int32_t, int64_t>>(comm, to, from, count, op, factor); break;
  case ncclUint32: reduce<Plain<uint32_t, uint64_t>>(comm, to, from, count, op, factor); break;
  case ncclInt64: reduce<Plain<int64_t>>(comm, to, from, count, op, factor); break;
  case ncclUint64: reduce<Plain<uint64_t>>(comm, to, from, count, op, factor); break;
  case ncclInt8: reduce<Plain<int8_t, int>>(comm, to, from, count, op, factor); break;
  case ncclUint8: reduce<Plain<uint8_t, int>>(comm, to, from, count, op, factor); break;
  default: emu::log("nccl: no reduction of type %d", type); return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclRedOp_t new_scaled_sum(double factor) {
  static int next = ncclNumOps + 100;
  std::lock_guard<std::mutex> lock(scaled_sums_lock);
  scaled_sums[next] = factor;
  return (ncclRedOp_t)next++;
}

double read_scalar(const void *scalar, ncclDataType_t type) {
  switch (type) {
  case ncclFloat64: return *(const double *)scalar;
  case ncclFloat16: return Half::load(*(const uint16_t *)scalar);
  case ncclBfloat16: return Bfloat16::load(*(const uint16_t *)scalar);
  default: return *(const float *)scalar;
  }
}
