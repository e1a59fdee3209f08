/* The register tile of REAL, MR x NR: NR is NRV vectors. Registers hold MR * NRV sums, NRV values of b and one broadcast of a:
 * 14 * 2 + 3 of AVX-512's 32, 6 * 2 + 3 of AVX2's 16. NR is a multiple of 8, so that a tile has whole bytes of RELU bits. */
#undef MR
#undef NRV
#undef NR
#if defined(FGE_ISA_AVX512)
#define MR 14
#elif defined(FGE_ISA_AVX2)
#define MR 6
#else
#define MR (REAL_IS_F32 ? 4 : 2)
#endif
#if defined(FGE_ISA_PORTABLE) && !REAL_IS_F32
#define NRV 4
#else
#define NRV 2
#endif
#define NR (NRV * W)
