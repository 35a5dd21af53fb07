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
REFUSED(ncclCommGetUniqueId, ncclInternalError)
REFUSED(ncclCommGrow, ncclInternalError)
REFUSED(ncclCommMemStats, ncclInternalError)
REFUSED(ncclCommResume, ncclInternalError)
REFUSED(ncclCommRevoke, ncclInternalError)
REFUSED(ncclCommSuspend, ncclInternalError)
REFUSED(ncclGetLsaMultimemDevicePointer, ncclInternalError)
REFUSED(ncclGetPeerDevicePointer, ncclInternalError)
REFUSED(ncclPutSignal, ncclInternalError)
REFUSED(ncclSignal, ncclInternalError)
REFUSED(ncclWaitSignal, ncclInternalError)
REFUSED(ncclWinGetUserPtr, ncclInternalError)
