/* Compiled for the baseline of the target: SSE2 on x86-64, NEON on ARM64. */
#define FGE_ISA_PORTABLE
#define FGE_KERNELS fge_kernels_portable
#define FGE_KERNELS_NAME "portable"
#include "kernels.h"
