/* Vectors of REAL from and to elements of any dtype. `dtype` and `n` are meant to be compile-time constants where it
 * matters. Included once per REAL by kernels.h. */
#if REAL_IS_F32

#if defined(FGE_ISA_AVX512)
#define FGE_LANES16(n) ((__mmask16)((1u << (n)) - 1))
static inline V widen_halves(__m256i h, int dtype) {
    return dtype == FGE_FLOAT16 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline __m256i narrow_halves(V v, int dtype) {
    if (dtype == FGE_FLOAT16) return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#if defined(FGE_HAS_AVX512_BF16)
    enum { DENORMAL = 0x20 }; /* the hardware's conversion takes them for zero */
    if (__builtin_expect(_mm512_fpclass_ps_mask(v, DENORMAL) == 0, 1)) return (__m256i)_mm512_cvtneps_pbh(v);
#endif
    const __m512i bits = _mm512_castps_si512(v), top = _mm512_srli_epi32(bits, 16);
    const __m512i even = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40)));
}
static inline V load_halves(const uint16_t *p, int n, int dtype) {
    return widen_halves(n == W ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(FGE_LANES16(n), p), dtype);
}
static inline void store_halves(uint16_t *p, V v, int n, int dtype) {
    const __m256i h = narrow_halves(v, dtype);
    if (n == W) _mm256_storeu_si256((__m256i *)p, h);
    else _mm256_mask_storeu_epi16(p, FGE_LANES16(n), h);
}
#elif defined(FGE_ISA_AVX2)
static inline V widen_halves(__m128i h, int dtype) {
    return dtype == FGE_FLOAT16 ? _mm256_cvtph_ps(h) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline __m128i narrow_halves(V v, int dtype) {
    if (dtype == FGE_FLOAT16) return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i bits = _mm256_castps_si256(v), top = _mm256_srli_epi32(bits, 16);
    const __m256i even = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
static inline V load_halves(const uint16_t *p, int n, int dtype) {
    uint16_t part[8] = {0};
    if (n < W) {
        memcpy(part, p, (size_t)n * 2);
        p = part;
    }
    return widen_halves(_mm_loadu_si128((const __m128i *)p), dtype);
}
static inline void store_halves(uint16_t *p, V v, int n, int dtype) {
    const __m128i h = narrow_halves(v, dtype);
    if (n == W) {
        _mm_storeu_si128((__m128i *)p, h);
    } else {
        uint16_t part[8];
        _mm_storeu_si128((__m128i *)part, h);
        memcpy(p, part, (size_t)n * 2);
    }
}
#else /* copied, since they may lie at any byte */
static inline V load_halves(const uint16_t *p, int n, int dtype) {
    uint16_t halves[W] = {0};
    if (n == W) memcpy(halves, p, sizeof halves);
    else memcpy(halves, p, (size_t)n * 2);
    V v;
    for (int i = 0; i < W; i++) v[i] = dtype == FGE_FLOAT16 ? fge_widen_f16(halves[i]) : fge_widen_bf16(halves[i]);
    return v;
}
static inline void store_halves(uint16_t *p, V v, int n, int dtype) {
    uint16_t halves[W];
    for (int i = 0; i < W; i++) halves[i] = dtype == FGE_FLOAT16 ? fge_round_f16(v[i]) : fge_round_bf16(v[i]);
    if (n == W) memcpy(p, halves, sizeof halves);
    else memcpy(p, halves, (size_t)n * 2);
}
#endif

static inline ALWAYS_INLINE V load_as_f32(const void *base, int64_t index, int n, int dtype) {
    if (dtype == FGE_FLOAT32) {
        const float *p = (const float *)base + index;
        return n == W ? v_load(p) : v_load_n(p, n);
    }
    return load_halves((const uint16_t *)base + index, n, dtype);
}
static inline ALWAYS_INLINE void store_as_f32(void *base, int64_t index, V v, int n, int dtype) {
    if (dtype != FGE_FLOAT32) {
        store_halves((uint16_t *)base + index, v, n, dtype);
        return;
    }
    float *p = (float *)base + index;
    if (n == W) v_store(p, v);
    else v_store_n(p, v, n);
}
/* v as it will be once stored in dtype */
static inline ALWAYS_INLINE V rounded_f32(V v, int dtype) {
    if (dtype == FGE_FLOAT32) return v;
#if defined(FGE_ISA_PORTABLE)
    uint16_t halves[W];
    store_halves(halves, v, W, dtype);
    return load_halves(halves, W, dtype);
#else
    return widen_halves(narrow_halves(v, dtype), dtype);
#endif
}
static inline float element_f32(const void *base, int64_t index, int dtype) {
    if (dtype == FGE_FLOAT32) {
        float f;
        memcpy(&f, (const char *)base + index * 4, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const char *)base + index * 2, 2);
    return dtype == FGE_FLOAT16 ? fge_widen_f16(h) : fge_widen_bf16(h);
}

#else /* double: float64 only */

static inline ALWAYS_INLINE V load_as_f64(const void *base, int64_t index, int n, int dtype) {
    (void)dtype;
    const double *p = (const double *)base + index;
    return n == W ? v_load(p) : v_load_n(p, n);
}
static inline ALWAYS_INLINE void store_as_f64(void *base, int64_t index, V v, int n, int dtype) {
    (void)dtype;
    double *p = (double *)base + index;
    if (n == W) v_store(p, v);
    else v_store_n(p, v, n);
}
static inline ALWAYS_INLINE V rounded_f64(V v, int dtype) {
    (void)dtype;
    return v;
}
static inline double element_f64(const void *base, int64_t index, int dtype) {
    (void)dtype;
    double d;
    memcpy(&d, (const char *)base + index * 8, 8);
    return d;
}
#endif
