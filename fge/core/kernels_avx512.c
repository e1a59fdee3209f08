/* Compiled for AVX-512 F, BW, DQ and VL with FMA and F16C; run only where dispatch.c finds all of them. */
#if defined(__x86_64__) || defined(_M_X64)
#define FGE_ISA_AVX512
#define FGE_KERNELS fge_kernels_avx512
#define FGE_KERNELS_NAME "avx512"
#include "kernels.h"
#else
typedef int fge_no_avx512_here;
#endif
