// What libtorch_cuda.so links and no training needs: branches and loops within a graph, and libraries of kernels that are
// loaded by hand. Apart from the rest because these are declared without their arguments.
#include "../emulation.h"

constexpr int cudaErrorNotSupported = 801;

REFUSED(cudaGraphAddNode, cudaErrorNotSupported)
REFUSED(cudaGraphConditionalHandleCreate, cudaErrorNotSupported)
REFUSED(cudaStreamBeginCaptureToGraph, cudaErrorNotSupported)
REFUSED(cudaStreamUpdateCaptureDependencies, cudaErrorNotSupported)
REFUSED(cudaKernelSetAttributeForDevice, cudaErrorNotSupported)
REFUSED(cudaLibraryGetGlobal, cudaErrorNotSupported)
REFUSED(cudaLibraryGetKernel, cudaErrorNotSupported)
REFUSED(cudaLibraryGetKernelCount, cudaErrorNotSupported)
REFUSED(cudaLibraryGetManaged, cudaErrorNotSupported)
REFUSED(cudaLibraryGetUnifiedFunction, cudaErrorNotSupported)
REFUSED(cudaLibraryLoadData, cudaErrorNotSupported)
REFUSED(cudaLibraryLoadFromFile, cudaErrorNotSupported)
REFUSED(cudaLibraryUnload, cudaErrorNotSupported)
