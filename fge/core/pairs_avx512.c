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
#include "pairs.h"

/* A panel here is to[pair][row or column][2]. Stores are whole vectors: what spills over a row's end is covered by the next. */

/* Pairs lie side by side already: the same turn of squares as for floats, a pair for an element. */
static inline ALWAYS_INLINE void pack_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, int width,
                                            uint16_t *to) {
    const int64_t pairs = (r + 1) / 2;
    for (int64_t l0 = 0; l0 < pairs; l0 += 16) {
        const int block = (int)fge_min(16, pairs - l0);
        for (int part = (width - 1) / 16; part >= 0; part--) { /* the last part first: see FN(pack) in microkernel.h */
            V square[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                const int64_t row = part * 16 + i;
                square[i] = _mm512_castsi512_ps(row < count ? load_halves32(from + row * stride + 2 * l0, r - 2 * l0)
                                                            : _mm512_setzero_si512());
            }
            transpose_f32(square);
            for (int l = 0; l < block; l++) _mm512_storeu_ps((float *)to + (l0 + l) * width + part * 16, square[l]);
        }
    }
}
static inline ALWAYS_INLINE void pack_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, int width,
                                             uint16_t *to) {
    for (int64_t l = 0; l < r; l += 2) {
        const __m512i first = load_halves32(from + l * stride, count);
        const __m512i second = l + 1 < r ? load_halves32(from + (l + 1) * stride, count) : _mm512_setzero_si512();
        uint16_t *at = to + l * width;
        if (width > 16) _mm512_storeu_si512(at + 32, interleave_high(first, second));
        _mm512_storeu_si512(at, interleave_low(first, second));
    }
}
static void pack_a_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to) {
    pack_along(from, stride, count, r, MR, to);
}
static void pack_a_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to) {
    pack_across(from, stride, count, r, MR, to);
}
static void pack_b_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to) {
    pack_along(from, stride, count, r, NR, to);
}
static void pack_b_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to) {
    pack_across(from, stride, count, r, NR, to);
}

static inline ALWAYS_INLINE void tile_rows(int64_t r, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows,
                                           int add) {
    __m512 sums[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t l = 0; l < r; l += 2, a += 2 * MR, b += 2 * NR) {
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

static void tile(int64_t r, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows, int add,
                 fge_pending *pending) {
#define FGE_TILE(n) \
    case n: tile_rows(r, a, b, c, ldc, n, add); return;
    (void)pending;
    switch (rows) {
        // clang-format off
        FGE_TILE(1) FGE_TILE(2) FGE_TILE(3) FGE_TILE(4) FGE_TILE(5) FGE_TILE(6) FGE_TILE(7)
        FGE_TILE(8) FGE_TILE(9) FGE_TILE(10) FGE_TILE(11) FGE_TILE(12) FGE_TILE(13) FGE_TILE(14)
        // clang-format on
    }
#undef FGE_TILE
}

const fge_pair_kernels fge_pairs_bf16_avx512 = {
    .what = "pairs multiplied by vdpbf16ps into float32, epilogue on the tile in L1",
    .mr = MR,
    .nr = NR,
    .unit = 2,
    .r_unit = 2,
    .pack_a_along = pack_a_along,
    .pack_a_across = pack_a_across,
    .pack_b_along = pack_b_along,
    .pack_b_across = pack_b_across,
    .tile = tile,
};
#else
typedef int fge_no_pairs_avx512_here;
#endif
