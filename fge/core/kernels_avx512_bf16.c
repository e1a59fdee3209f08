/* As kernels_avx512.c, with AVX512_BF16 for conversions and half-precision products from pairs_*.c; run only where dispatch.c
 * finds it. */
#if defined(__x86_64__) || defined(_M_X64)
#define FGE_ISA_AVX512
#define FGE_HAS_AVX512_BF16
#define FGE_KERNELS fge_kernels_avx512_bf16
#define FGE_KERNELS_NAME "avx512_bf16"
#define FGE_KERNELS_PAIRS .bf16 = &fge_pairs_bf16_avx512
#include "kernels.h"
const fge_kernels fge_kernels_amx = {.name = "amx", FGE_KERNELS_FIELDS, .bf16 = &fge_pairs_bf16_amx, .f16 = &fge_pairs_f16_amx};
#else
typedef int fge_no_avx512_bf16_here;
#endif
