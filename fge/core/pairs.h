/* Vectors of 32 half-precision elements, for the kernels that multiply pairs of them (pairs_*.c). AVX-512 BW. */
static inline __mmask32 lanes32(int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1; }
/* zeros behind the first n */
static inline __m512i load_halves32(const uint16_t *from, int64_t n) { return _mm512_maskz_loadu_epi16(lanes32(n), from); }

/* (first[i], second[i]) side by side, for i below 16 and from 16 on */
#define FGE_PAIR(i) (int)((unsigned)((i) + 32) << 16 | (unsigned)(i))
static inline __m512i interleave_low(__m512i first, __m512i second) {
    const __m512i order = _mm512_setr_epi32(FGE_PAIR(0), FGE_PAIR(1), FGE_PAIR(2), FGE_PAIR(3), FGE_PAIR(4), FGE_PAIR(5),
                                            FGE_PAIR(6), FGE_PAIR(7), FGE_PAIR(8), FGE_PAIR(9), FGE_PAIR(10), FGE_PAIR(11),
                                            FGE_PAIR(12), FGE_PAIR(13), FGE_PAIR(14), FGE_PAIR(15));
    return _mm512_permutex2var_epi16(first, order, second);
}
static inline __m512i interleave_high(__m512i first, __m512i second) {
    const __m512i order = _mm512_setr_epi32(FGE_PAIR(16), FGE_PAIR(17), FGE_PAIR(18), FGE_PAIR(19), FGE_PAIR(20), FGE_PAIR(21),
                                            FGE_PAIR(22), FGE_PAIR(23), FGE_PAIR(24), FGE_PAIR(25), FGE_PAIR(26), FGE_PAIR(27),
                                            FGE_PAIR(28), FGE_PAIR(29), FGE_PAIR(30), FGE_PAIR(31));
    return _mm512_permutex2var_epi16(first, order, second);
}
#undef FGE_PAIR
