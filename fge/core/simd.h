/* The vector type V of REAL (float or double) and its few operations, per instruction set.
 *
 * Included once per REAL by kernels.h, with REAL_IS_F32 set to 1 or 0 and one of FGE_ISA_AVX512, FGE_ISA_AVX2 or
 * FGE_ISA_PORTABLE defined by the file that is compiled for that instruction set.
 *
 *   V, W           vector type, lanes
 *   VM             lane mask
 *   v_max, v_min   answer their second operand where either is NaN (as x86 does), so that max(limit, z) keeps NaN
 *   v_fma          a * b + c, one rounding where the hardware has it
 *   v_product      a * b, exactly, as a sum of two
 *   v_residue      a * b + c where c is about -a * b: what rounding had taken off, exactly
 *   v_quotient     a / b within a unit in the last place, for a and b in the middle of the range; v_reciprocal is 1 / a
 *   v_any          whether a lane of the mask is set; v_both is one mask and another
 *   v_scale        x * 2^n, n integral and x * 2^(n + 149) normal (1074 for double); v_scale_normal: the result is normal.
 * Results below the normal range are made from integers: where arithmetic gives such numbers, x86 takes a hundred times as long
 *   v_load_n       n <= W lanes, zeros behind; v_store_n writes n lanes
 *   transpose      of W vectors, in place (a function, FN(transpose))
 *   v_bits         lane mask as an integer, lane 0 in bit 0; v_from_bits is its inverse
 */
/* v_scale looks for results below the normal range where n is below this; factors are at least 2^-20 (2^-100 for double) there.
 */
#undef FGE_NEAR_TINY
#define FGE_NEAR_TINY (REAL_IS_F32 ? -100 : -900)
#undef V
#undef W
#undef VM
#undef v_set1
#undef v_load
#undef v_store
#undef v_load_n
#undef v_store_n
#undef v_add
#undef v_sub
#undef v_mul
#undef v_div
#undef v_quotient
#undef v_reciprocal
#undef v_any
#undef v_both
#define v_any(m) (v_bits(m) != 0)
#undef v_fma
#undef v_fnma
#undef v_fms
#undef v_residue
#undef v_max
#undef v_min
#undef v_gt
#undef v_select
#undef v_round
#undef v_scale
#undef v_scale_normal
#undef v_bits
#undef v_from_bits
#undef v_keep
#undef v_abs
#undef v_copysign
#undef v_product
#undef P_

#if defined(FGE_ISA_AVX512)
#if REAL_IS_F32
#define V __m512
#define W 16
#define VM __mmask16
#define v_set1(x) _mm512_set1_ps(x)
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_load_n(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define v_store_n(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_fnma(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define v_fms(a, b, c) _mm512_fmsub_ps(a, b, c)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_gt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define v_select(m, a, b) _mm512_mask_blend_ps(m, b, a)
#define v_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale(x, n) avx512_scale32(x, n)
#define v_scale_normal(x, n) _mm512_scalef_ps(x, n)
#define v_both(m, o) ((VM)((m) & (o)))
#define v_bits(m) ((unsigned)(m))
#define v_from_bits(b) ((__mmask16)(b))
#define v_keep(m, a) _mm512_maskz_mov_ps(m, a)
#define v_abs(a) _mm512_abs_ps(a)
#define v_copysign(a, s) \
    _mm512_castsi512_ps( \
        _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0x80000000u), _mm512_castps_si512(s), _mm512_castps_si512(a), 0xca))
#define v_quotient(a, b) avx512_quotient32(a, b)
#define v_reciprocal(a) avx512_reciprocal32(a)
/* Newton's step on the reciprocal and one on the quotient: half the time of a division. */
static inline __m512 avx512_reciprocal32(__m512 b) {
    const __m512 near = _mm512_rcp14_ps(b);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(b, near, _mm512_set1_ps(1)), near, near);
}
static inline __m512 avx512_quotient32(__m512 a, __m512 b) {
    const __m512 reciprocal = avx512_reciprocal32(b);
    const __m512 quotient = _mm512_mul_ps(a, reciprocal);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(b, quotient, a), reciprocal, quotient);
}
static inline __m512 avx512_scale32(__m512 x, __m512 n) {
    const __mmask16 near = _mm512_cmp_ps_mask(n, _mm512_set1_ps(FGE_NEAR_TINY), _CMP_LT_OQ);
    if (__builtin_expect(near == 0, 1)) return _mm512_scalef_ps(x, n);
    const __m512 steps = _mm512_scalef_ps(_mm512_abs_ps(x), _mm512_add_ps(n, _mm512_set1_ps(149))), one = _mm512_set1_ps(0x1p23f);
    const __mmask16 tiny = _mm512_mask_cmp_ps_mask(near, steps, one, _CMP_LT_OQ);
    const __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(steps, one)), _mm512_castps_si512(one));
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u));
    const __m512 normal = _mm512_scalef_ps(x, _mm512_maskz_mov_ps((__mmask16)~tiny, n));
    return _mm512_mask_mov_ps(normal, tiny, _mm512_castsi512_ps(_mm512_or_si512(bits, sign)));
}
#else
#define V __m512d
#define W 8
#define VM __mmask8
#define v_set1(x) _mm512_set1_pd(x)
#define v_load(p) _mm512_loadu_pd(p)
#define v_store(p, v) _mm512_storeu_pd(p, v)
#define v_load_n(p, n) _mm512_maskz_loadu_pd((__mmask8)((1u << (n)) - 1), p)
#define v_store_n(p, v, n) _mm512_mask_storeu_pd(p, (__mmask8)((1u << (n)) - 1), v)
#define v_add(a, b) _mm512_add_pd(a, b)
#define v_sub(a, b) _mm512_sub_pd(a, b)
#define v_mul(a, b) _mm512_mul_pd(a, b)
#define v_div(a, b) _mm512_div_pd(a, b)
#define v_fma(a, b, c) _mm512_fmadd_pd(a, b, c)
#define v_fnma(a, b, c) _mm512_fnmadd_pd(a, b, c)
#define v_fms(a, b, c) _mm512_fmsub_pd(a, b, c)
#define v_max(a, b) _mm512_max_pd(a, b)
#define v_min(a, b) _mm512_min_pd(a, b)
#define v_gt(a, b) _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ)
#define v_select(m, a, b) _mm512_mask_blend_pd(m, b, a)
#define v_round(a) _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale(x, n) avx512_scale64(x, n)
#define v_scale_normal(x, n) _mm512_scalef_pd(x, n)
#define v_both(m, o) ((VM)((m) & (o)))
#define v_bits(m) ((unsigned)(m))
#define v_from_bits(b) ((__mmask8)(b))
#define v_keep(m, a) _mm512_maskz_mov_pd(m, a)
#define v_abs(a) _mm512_abs_pd(a)
#define v_copysign(a, s) \
    _mm512_castsi512_pd(_mm512_ternarylogic_epi64(_mm512_set1_epi64((long long)0x8000000000000000ull), _mm512_castpd_si512(s), \
                                                  _mm512_castpd_si512(a), 0xca))
#define v_quotient(a, b) v_div(a, b)
#define v_reciprocal(a) v_div(v_set1(1), a)
static inline __m512d avx512_scale64(__m512d x, __m512d n) {
    const __mmask8 near = _mm512_cmp_pd_mask(n, _mm512_set1_pd(FGE_NEAR_TINY), _CMP_LT_OQ);
    if (__builtin_expect(near == 0, 1)) return _mm512_scalef_pd(x, n);
    const __m512d steps = _mm512_scalef_pd(_mm512_abs_pd(x), _mm512_add_pd(n, _mm512_set1_pd(1074))),
                  one = _mm512_set1_pd(0x1p52);
    const __mmask8 tiny = _mm512_mask_cmp_pd_mask(near, steps, one, _CMP_LT_OQ);
    const __m512i bits = _mm512_sub_epi64(_mm512_castpd_si512(_mm512_add_pd(steps, one)), _mm512_castpd_si512(one));
    const __m512i sign = _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64((long long)0x8000000000000000ull));
    const __m512d normal = _mm512_scalef_pd(x, _mm512_maskz_mov_pd((__mmask8)~tiny, n));
    return _mm512_mask_mov_pd(normal, tiny, _mm512_castsi512_pd(_mm512_or_si512(bits, sign)));
}
#endif

#elif defined(FGE_ISA_AVX2)
#if REAL_IS_F32
#define V __m256
#define W 8
#define VM __m256
#define v_set1(x) _mm256_set1_ps(x)
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_load_n(p, n) _mm256_maskload_ps(p, avx2_lanes32(n))
#define v_store_n(p, v, n) _mm256_maskstore_ps(p, avx2_lanes32(n), v)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_quotient(a, b) v_div(a, b)
#define v_reciprocal(a) v_div(v_set1(1), a)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_fnma(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define v_fms(a, b, c) _mm256_fmsub_ps(a, b, c)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_gt(a, b) _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define v_select(m, a, b) _mm256_blendv_ps(b, a, m)
#define v_round(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale(x, n) avx2_scale32(x, n)
#define v_scale_normal(x, n) avx2_scaled32(x, n)
#define v_both(m, o) _mm256_and_ps(m, o)
#define v_bits(m) ((unsigned)_mm256_movemask_ps(m))
#define v_from_bits(b) avx2_from_bits32(b)
#define v_keep(m, a) _mm256_and_ps(m, a)
#define v_abs(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)
#define v_copysign(a, s) _mm256_or_ps(_mm256_and_ps(_mm256_set1_ps(-0.0f), s), _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a))

static inline __m256i avx2_lanes32(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256 avx2_from_bits32(unsigned bits) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), each), each));
}
/* In two steps, for factors above 2^127. */
static inline __m256 avx2_scaled32(__m256 x, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
static inline __m256 avx2_scale32(__m256 x, __m256 n) {
    const __m256 near = _mm256_cmp_ps(n, _mm256_set1_ps(FGE_NEAR_TINY), _CMP_LT_OQ);
    if (__builtin_expect(_mm256_movemask_ps(near) == 0, 1)) return avx2_scaled32(x, n);
    const __m256 signs = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(0x1p23f);
    const __m256 steps = avx2_scaled32(_mm256_andnot_ps(signs, x), _mm256_add_ps(n, _mm256_set1_ps(149)));
    const __m256 tiny = _mm256_and_ps(near, _mm256_cmp_ps(steps, one, _CMP_LT_OQ));
    const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(steps, one)), _mm256_castps_si256(one));
    const __m256 normal = avx2_scaled32(x, _mm256_andnot_ps(tiny, n));
    return _mm256_blendv_ps(normal, _mm256_or_ps(_mm256_castsi256_ps(bits), _mm256_and_ps(signs, x)), tiny);
}
#else
#define V __m256d
#define W 4
#define VM __m256d
#define v_set1(x) _mm256_set1_pd(x)
#define v_load(p) _mm256_loadu_pd(p)
#define v_store(p, v) _mm256_storeu_pd(p, v)
#define v_load_n(p, n) _mm256_maskload_pd(p, avx2_lanes64(n))
#define v_store_n(p, v, n) _mm256_maskstore_pd(p, avx2_lanes64(n), v)
#define v_add(a, b) _mm256_add_pd(a, b)
#define v_sub(a, b) _mm256_sub_pd(a, b)
#define v_mul(a, b) _mm256_mul_pd(a, b)
#define v_div(a, b) _mm256_div_pd(a, b)
#define v_quotient(a, b) v_div(a, b)
#define v_reciprocal(a) v_div(v_set1(1), a)
#define v_fma(a, b, c) _mm256_fmadd_pd(a, b, c)
#define v_fnma(a, b, c) _mm256_fnmadd_pd(a, b, c)
#define v_fms(a, b, c) _mm256_fmsub_pd(a, b, c)
#define v_max(a, b) _mm256_max_pd(a, b)
#define v_min(a, b) _mm256_min_pd(a, b)
#define v_gt(a, b) _mm256_cmp_pd(a, b, _CMP_GT_OQ)
#define v_select(m, a, b) _mm256_blendv_pd(b, a, m)
#define v_round(a) _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale(x, n) avx2_scale64(x, n)
#define v_scale_normal(x, n) avx2_scaled64(x, n)
#define v_both(m, o) _mm256_and_pd(m, o)
#define v_bits(m) ((unsigned)_mm256_movemask_pd(m))
#define v_from_bits(b) avx2_from_bits64(b)
#define v_keep(m, a) _mm256_and_pd(m, a)
#define v_abs(a) _mm256_andnot_pd(_mm256_set1_pd(-0.0), a)
#define v_copysign(a, s) _mm256_or_pd(_mm256_and_pd(_mm256_set1_pd(-0.0), s), _mm256_andnot_pd(_mm256_set1_pd(-0.0), a))

static inline __m256i avx2_lanes64(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }
static inline __m256d avx2_from_bits64(unsigned bits) {
    const __m256i each = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(bits), each), each));
}
static inline __m256d avx2_scaled64(__m256d x, __m256d n) {
    const __m128i whole = _mm256_cvtpd_epi32(n), half = _mm_srai_epi32(whole, 1), rest = _mm_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi64x(1023);
    const __m256i first = _mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(half), bias), 52);
    const __m256i second = _mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(rest), bias), 52);
    return _mm256_mul_pd(_mm256_mul_pd(x, _mm256_castsi256_pd(first)), _mm256_castsi256_pd(second));
}
static inline __m256d avx2_scale64(__m256d x, __m256d n) {
    const __m256d near = _mm256_cmp_pd(n, _mm256_set1_pd(FGE_NEAR_TINY), _CMP_LT_OQ);
    if (__builtin_expect(_mm256_movemask_pd(near) == 0, 1)) return avx2_scaled64(x, n);
    const __m256d signs = _mm256_set1_pd(-0.0), one = _mm256_set1_pd(0x1p52);
    const __m256d steps = avx2_scaled64(_mm256_andnot_pd(signs, x), _mm256_add_pd(n, _mm256_set1_pd(1074)));
    const __m256d tiny = _mm256_and_pd(near, _mm256_cmp_pd(steps, one, _CMP_LT_OQ));
    const __m256i bits = _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(steps, one)), _mm256_castpd_si256(one));
    const __m256d normal = avx2_scaled64(x, _mm256_andnot_pd(tiny, n));
    return _mm256_blendv_pd(normal, _mm256_or_pd(_mm256_castsi256_pd(bits), _mm256_and_pd(signs, x)), tiny);
}
#endif

#else /* FGE_ISA_PORTABLE: 16-byte vectors of the compiler's, which every target of GCC and Clang has or emulates */
#if REAL_IS_F32
#define W 4
#define V portable_f32
#define VM portable_i32
#define P_(name) name##_f32
typedef float portable_f32 __attribute__((vector_size(16)));
typedef int32_t portable_i32 __attribute__((vector_size(16)));
#else
#define W 2
#define V portable_f64
#define VM portable_i64
#define P_(name) name##_f64
typedef double portable_f64 __attribute__((vector_size(16)));
typedef int64_t portable_i64 __attribute__((vector_size(16)));
#endif
#define v_set1(x) P_(portable_set1)(x)
#define v_load(p) P_(portable_load)(p, W)
#define v_store(p, v) P_(portable_store)(p, v, W)
#define v_load_n(p, n) P_(portable_load)(p, n)
#define v_store_n(p, v, n) P_(portable_store)(p, v, n)
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_quotient(a, b) v_div(a, b)
#define v_reciprocal(a) v_div(v_set1(1), a)
#define v_fma(a, b, c) P_(portable_fma)(a, b, c)
#define v_fnma(a, b, c) P_(portable_fma)(-(a), b, c)
#define v_fms(a, b, c) P_(portable_fma)(a, b, -(c))
#define v_max(a, b) v_select(v_gt(a, b), a, b)
#define v_min(a, b) v_select(v_gt(b, a), a, b)
#define v_gt(a, b) ((VM)((a) > (b)))
#define v_select(m, a, b) P_(portable_select)(m, a, b)
#define v_round(a) P_(portable_round)(a)
#define v_scale(x, n) P_(portable_scale)(x, n)
#define v_scale_normal(x, n) v_scale(x, n)
#define v_both(m, o) ((m) & (o))
#define v_bits(m) P_(portable_bits)(m)
#define v_from_bits(b) P_(portable_from_bits)(b)
#define v_keep(m, a) ((V)((m) & (VM)(a)))
#define v_abs(a) ((V)((VM)(a) & ~(VM)v_set1((REAL) - 0.0)))
#define v_copysign(a, s) ((V)(((VM)(s) & (VM)v_set1((REAL) - 0.0)) | ((VM)(a) & ~(VM)v_set1((REAL) - 0.0))))

static inline V P_(portable_set1)(REAL x) {
    V v;
    for (int i = 0; i < W; i++) v[i] = x;
    return v;
}
static inline V P_(portable_load)(const REAL *p, int n) {
    V v = {0};
    memcpy(&v, p, (size_t)n * sizeof(REAL));
    return v;
}
static inline void P_(portable_store)(REAL *p, V v, int n) { memcpy(p, &v, (size_t)n * sizeof(REAL)); }
static inline V P_(portable_select)(VM m, V a, V b) { return (V)((m & (VM)a) | (~m & (VM)b)); }
static inline unsigned P_(portable_bits)(VM m) {
    unsigned bits = 0;
    for (int i = 0; i < W; i++) bits |= (unsigned)(m[i] & 1) << i;
    return bits;
}
static inline VM P_(portable_from_bits)(unsigned bits) {
    VM m;
    for (int i = 0; i < W; i++) m[i] = (bits >> i & 1) ? -1 : 0;
    return m;
}
/* Adding and taking away 1.5 * 2^(mantissa bits) rounds to the nearest integer; callers stay far below that. */
static inline V P_(portable_round)(V a) {
    const V magic = v_set1(REAL_IS_F32 ? (REAL)12582912.0 : (REAL)6755399441055744.0);
    return a + magic - magic;
}
#if REAL_IS_F32
static inline V portable_power_f32(VM n) { return (V)((n + 127) << 23); }
#else
static inline V portable_power_f64(VM n) { return (V)((n + 1023) << 52); }
#endif
static inline V P_(portable_scale)(V x, V n) {
    VM whole;
    for (int i = 0; i < W; i++) whole[i] = (__typeof__(whole[0]))n[i];
    const VM half = whole >> 1;
    return x * P_(portable_power)(half) * P_(portable_power)(whole - half);
}
#if REAL_IS_F32 ? defined(__FP_FAST_FMAF) : defined(__FP_FAST_FMA)
#define PORTABLE_HAS_FMA 1
#else
#define PORTABLE_HAS_FMA 0
#endif
static inline V P_(portable_fma)(V a, V b, V c) {
#if PORTABLE_HAS_FMA
    V v;
    for (int i = 0; i < W; i++)
        v[i] = REAL_IS_F32 ? (REAL)__builtin_fmaf((float)a[i], (float)b[i], (float)c[i]) : (REAL)__builtin_fma(a[i], b[i], c[i]);
    return v;
#else
    return a * b + c;
#endif
}
#if !PORTABLE_HAS_FMA
/* Dekker's product: split each factor in halves whose products are exact (T. J. Dekker, Numer. Math. 18, 1971). */
static inline V P_(portable_product)(V a, V b, V *rest) {
    const V split = v_set1(REAL_IS_F32 ? (REAL)4097.0 : (REAL)134217729.0), product = a * b;
    const V a_big = split * a, b_big = split * b;
    const V a_high = a_big - (a_big - a), b_high = b_big - (b_big - b);
    const V a_low = a - a_high, b_low = b - b_high;
    *rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    return product;
}
static inline V P_(portable_residue)(V a, V b, V c) {
    V rest;
    const V product = P_(portable_product)(a, b, &rest);
    return product + c + rest;
}
#define v_product(a, b, rest) P_(portable_product)(a, b, rest)
#define v_residue(a, b, c) P_(portable_residue)(a, b, c)
#endif
#undef PORTABLE_HAS_FMA
#endif

#ifndef v_product
#define v_residue(a, b, c) v_fma(a, b, c)
#define v_product(a, b, rest) FN(fma_product)(a, b, rest)
static inline V FN(fma_product)(V a, V b, V *rest) {
    const V product = v_mul(a, b);
    *rest = v_fms(a, b, product);
    return product;
}
#endif

/* Transposes: pairs and fours of lanes within 128 bits first, then the 128-bit parts. */
#if defined(FGE_ISA_AVX512) && REAL_IS_F32
static inline ALWAYS_INLINE void FN(transpose)(V *v) {
    V t[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const V a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
        const V c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const V a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        const V c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
#elif defined(FGE_ISA_AVX512)
static inline ALWAYS_INLINE void FN(transpose)(V *v) {
    V t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const V a = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88), b = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        const V c = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88), d = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
        v[i] = _mm512_shuffle_f64x2(a, c, 0x88);
        v[i + 4] = _mm512_shuffle_f64x2(a, c, 0xdd);
        v[i + 2] = _mm512_shuffle_f64x2(b, d, 0x88);
        v[i + 6] = _mm512_shuffle_f64x2(b, d, 0xdd);
    }
}
#elif defined(FGE_ISA_AVX2) && REAL_IS_F32
static inline ALWAYS_INLINE void FN(transpose)(V *v) {
    V t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        const V a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpackhi_ps(v[i], v[i + 1]);
        const V c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}
#elif defined(FGE_ISA_AVX2)
static inline ALWAYS_INLINE void FN(transpose)(V *v) {
    const V a = _mm256_unpacklo_pd(v[0], v[1]), b = _mm256_unpackhi_pd(v[0], v[1]);
    const V c = _mm256_unpacklo_pd(v[2], v[3]), d = _mm256_unpackhi_pd(v[2], v[3]);
    v[0] = _mm256_permute2f128_pd(a, c, 0x20);
    v[1] = _mm256_permute2f128_pd(b, d, 0x20);
    v[2] = _mm256_permute2f128_pd(a, c, 0x31);
    v[3] = _mm256_permute2f128_pd(b, d, 0x31);
}
#else
static inline ALWAYS_INLINE void FN(transpose)(V *v) {
    REAL square[W][W], turned[W][W];
    memcpy(square, v, sizeof square);
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++) turned[i][j] = square[j][i];
    memcpy(v, turned, sizeof turned);
}
#endif
