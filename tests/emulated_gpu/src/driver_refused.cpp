// Functions of the driver that PyTorch looks up by name and that answer "not supported": virtual memory (expandable
// segments) and tensor maps. They are apart from driver.cpp because they are declared without their arguments.
#include "emulation.h"

#define REFUSED(name)                                                                                                  \
  extern "C" int name() {                                                                                              \
    emu::log("driver: " #name " is not emulated");                                                                     \
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */                                                                         \
  }

REFUSED(cuMemAddressReserve)
REFUSED(cuMemAddressFree)
REFUSED(cuMemCreate)
REFUSED(cuMemRelease)
REFUSED(cuMemMap)
REFUSED(cuMemUnmap)
REFUSED(cuMemSetAccess)
REFUSED(cuMemGetAllocationGranularity)
REFUSED(cuMemExportToShareableHandle)
REFUSED(cuMemImportFromShareableHandle)
REFUSED(cuMemRetainAllocationHandle)
REFUSED(cuMemGetAllocationPropertiesFromHandle)
REFUSED(cuTensorMapEncodeTiled)
