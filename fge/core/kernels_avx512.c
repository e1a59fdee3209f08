/* Compiled for AVX-512 F, BW, DQ and VL with FMA and F16C; run only where dispatch.c finds all of them. */
#if defined(__x86_64__) || defined(_M_X64)
#define FGE_ISA_AVX512
#define FGE_KERNELS fge_kernels_avx512
#define FGE_KERNELS_NAME "avx512"
#include "kernels.h"
/* the same, with half-precision products from pairs_*.c */
const fge_kernels fge_kernels_avx512_bf16 = {.name = "avx512_bf16", FGE_KERNELS_FIELDS, .bf16 = &fge_pairs_bf16_avx512};
const fge_kernels fge_kernels_amx = {.name = "amx", FGE_KERNELS_FIELDS, .bf16 = &fge_pairs_bf16_amx, .f16 = &fge_pairs_f16_amx};
#else
typedef int fge_no_avx512_here;
#endif
