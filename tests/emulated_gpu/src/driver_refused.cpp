// Functions of the driver that PyTorch looks up by name and that answer "not supported": virtual memory (expandable
// segments), the block around an address (memory shared between processes) and tensor maps. They are apart from
// driver.cpp because they are declared without their arguments.
#include "emulation.h"

constexpr int CUDA_ERROR_NOT_SUPPORTED = 801;

REFUSED(cuMemAddressReserve, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemAddressFree, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemCreate, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemRelease, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemMap, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemUnmap, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemSetAccess, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemGetAllocationGranularity, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemExportToShareableHandle, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemImportFromShareableHandle, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemRetainAllocationHandle, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemGetAllocationPropertiesFromHandle, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuMemGetAddressRange_v2, CUDA_ERROR_NOT_SUPPORTED)
REFUSED(cuTensorMapEncodeTiled, CUDA_ERROR_NOT_SUPPORTED)
