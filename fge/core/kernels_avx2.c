/* Compiled for AVX2 with FMA and F16C; run only where dispatch.c finds all of them. */
#if defined(__x86_64__) || defined(_M_X64)
#define FGE_ISA_AVX2
#define FGE_KERNELS fge_kernels_avx2
#define FGE_KERNELS_NAME "avx2"
#include "kernels.h"
#else
typedef int fge_no_avx2_here;
#endif
