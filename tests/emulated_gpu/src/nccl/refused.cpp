// What libtorch_cuda.so links and no collective of PyTorch's needs; apart from nccl.cpp because these are declared
// without their arguments.
#include "../emulation.h"

constexpr int ncclInternalError = 3;

REFUSED(ncclCommShrink, ncclInternalError)
REFUSED(ncclCommWindowRegister, ncclInternalError)
REFUSED(ncclCommWindowDeregister, ncclInternalError)
REFUSED(ncclDevCommCreate, ncclInternalError)
REFUSED(ncclDevCommDestroy, ncclInternalError)
REFUSED(ncclGroupSimulateEnd, ncclInternalError)
