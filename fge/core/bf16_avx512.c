/* bfloat16 products by vdpbf16ps. Compiled for AVX-512 with AVX512_BF16; run only where dispatch.c finds both. */
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#include <string.h>

#include "problem.h"

#define ALWAYS_INLINE __attribute__((always_inline))
#define FGE_ISA_AVX512
#define REAL_IS_F32 1
#include "tile_sizes.h"
#define REAL float
#define FN(name) name##_f32
#include "simd.h"

static void narrow(const float *from, int64_t count, uint16_t *to) {
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 lanes = count - i >= 16 ? 0xffff : (__mmask16)((1u << (count - i)) - 1);
        const __m512i bits = _mm512_maskz_loadu_epi32(lanes, from + i);
        _mm256_mask_storeu_epi16(to + i, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
    }
}

/* Pairs lie side by side already: the same turn of squares as for floats, a pair for an element. */
static void pack_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, int width, uint16_t *to) {
    const int64_t pairs = (r + 1) / 2;
    for (int64_t l0 = 0; l0 < pairs; l0 += 16) {
        const int block = (int)fge_min(16, pairs - l0), halves = (int)fge_min(32, r - 2 * l0);
        const __mmask32 lanes = halves == 32 ? 0xffffffffu : (1u << halves) - 1;
        for (int part = (width - 1) / 16; part >= 0; part--) { /* the last part first: see FN(pack) in microkernel.h */
            V square[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                const int64_t row = part * 16 + i;
                square[i] = row < count ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(lanes, from + row * stride + 2 * l0))
                                        : _mm512_setzero_ps();
            }
            transpose_f32(square);
            for (int l = 0; l < block; l++) _mm512_storeu_ps((float *)to + (l0 + l) * width + part * 16, square[l]);
        }
    }
}

/* Two rows of r become one row of pairs. */
static void pack_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, int width, uint16_t *to) {
    for (int64_t l = 0; l < r; l += 2)
        for (int part = (width - 1) / 16 * 16; part >= 0; part -= 16) {
            const int64_t left = count - part;
            const __mmask16 lanes = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
            const uint16_t *at = from + l * stride + part;
            const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at));
            const __m512i second = l + 1 < r ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at + stride)) : _mm512_setzero_si512();
            _mm512_storeu_si512((float *)to + l / 2 * width + part, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
}

static inline ALWAYS_INLINE void tile_rows(int64_t pairs, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows, int add) {
    __m512 sums[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t l = 0; l < pairs; l++, a += 2 * MR, b += 2 * NR) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            int pair;
            memcpy(&pair, a + 2 * i, 4);
            const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], x, b0);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], x, b1);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *to = c + i * ldc + j * 16;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(sums[i][j], _mm512_loadu_ps(to)) : sums[i][j]);
        }
}

static void tile(int64_t pairs, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows, int add) {
#define FGE_TILE(n) \
    case n: tile_rows(pairs, a, b, c, ldc, n, add); return;
    switch (rows) {
        FGE_TILE(1) FGE_TILE(2) FGE_TILE(3) FGE_TILE(4) FGE_TILE(5) FGE_TILE(6) FGE_TILE(7)
        FGE_TILE(8) FGE_TILE(9) FGE_TILE(10) FGE_TILE(11) FGE_TILE(12) FGE_TILE(13) FGE_TILE(14)
    }
#undef FGE_TILE
}

const fge_bf16_kernels fge_bf16_avx512 = {narrow, pack_along, pack_across, tile};
#else
typedef int fge_no_bf16_avx512_here;
#endif
