// What libtorch_cuda.so links and no collective of PyTorch's needs; apart from nccl.cpp because these are declared
// without their arguments.
#include "../emulation.h"

#define REFUSED(name)                                                                                                  \
  extern "C" int name() {                                                                                              \
    emu::log("nccl: " #name " is not emulated");                                                                       \
    return 3; /* ncclInternalError */                                                                                  \
  }

REFUSED(ncclCommShrink)
REFUSED(ncclCommWindowRegister)
REFUSED(ncclCommWindowDeregister)
REFUSED(ncclDevCommCreate)
REFUSED(ncclDevCommDestroy)
REFUSED(ncclGroupSimulateEnd)
