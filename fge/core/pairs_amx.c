/* bfloat16 and float16 products by AMX tiles. Compiled for AVX-512 with AVX512_BF16, AMX-TILE and AMX-BF16; run only where
 * dispatch.c finds all of them and the operating system's permission.
 *
 * A panel is a row of blocks, 32 elements of r each, of two tiles, for 16 rows (columns) each, one behind the other: of a,
 * tile[row][r], of b, tile[r / 2][column][2]. What is left of r or of the rows is zeros.
 *
 * A float16 value is the exact sum of two bfloat16 values, its first 8 significant bits (rounded) and the rest: its panels hold a
 * block of the first parts, then a block of the rests. Three products are summed; the fourth, rest by rest, is at most 2^-18 of
 * |a b|, so that it vanishes in the rounding of a sum of R_LEAST products or more (the error bound of float32 sums grows with
 * their length). Parts are normal numbers for bfloat16, also of float16 denormals. An infinity has no such sum, it gives NaN:
 * engine_native.c computes those elements of the result again. */
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#include <string.h>

#include "problem.h"

#define ALWAYS_INLINE __attribute__((always_inline))
#define FGE_ISA_AVX512
#define REAL_IS_F32 1
#define REAL float
#define FN(name) name##_f32
#include "simd.h"
#include "pairs.h"

enum { ROWS = 32, COLUMNS = 32, R_BLOCK = 32, BLOCK = ROWS * R_BLOCK, TILE = BLOCK / 2, R_LEAST = 64 };

/* --- packing ----------------------------------------------------------------------------------------------------- */

/* What the tiles multiply: bfloat16 as it is in part[0], or float16 as first parts and rests. */
typedef struct {
    __m512i part[2];
} parts;

static inline ALWAYS_INLINE parts split(__m512i halves, int is_f16) {
    if (!is_f16) return (parts){{halves, _mm512_setzero_si512()}};
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
                 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    const __m512i first = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    const __m512i first_low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)), 16);
    const __m512i first_high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(first, 1)), 16);
    const __m512 rest_low = _mm512_sub_ps(low, _mm512_castsi512_ps(first_low)),
                 rest_high = _mm512_sub_ps(high, _mm512_castsi512_ps(first_high));
    return (parts){{first, (__m512i)_mm512_cvtne2ps_pbh(rest_high, rest_low)}};
}

static inline ALWAYS_INLINE void a_block_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to,
                                               int is_f16) {
    for (int64_t i = 0; i < ROWS; i++) {
        const parts p = split(i < count ? load_halves32(from + i * stride, r) : _mm512_setzero_si512(), is_f16);
        for (int k = 0; k <= is_f16; k++) _mm512_store_si512(to + k * BLOCK + i * R_BLOCK, p.part[k]);
    }
}
static inline ALWAYS_INLINE void b_block_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to,
                                                int is_f16) {
    for (int64_t l = 0; l < R_BLOCK; l += 2) {
        const parts first = split(l < r ? load_halves32(from + l * stride, count) : _mm512_setzero_si512(), is_f16);
        const parts second = split(l + 1 < r ? load_halves32(from + (l + 1) * stride, count) : _mm512_setzero_si512(), is_f16);
        for (int k = 0; k <= is_f16; k++) {
            uint16_t *at = to + k * BLOCK + l / 2 * 32;
            _mm512_store_si512(at, interleave_low(first.part[k], second.part[k]));
            _mm512_store_si512(at + TILE, interleave_high(first.part[k], second.part[k]));
        }
    }
}
/* The other two turn tiles, squares of 16 x 16 pairs, between those two forms. */
static inline ALWAYS_INLINE void turn(const uint16_t *from, uint16_t *to) {
    V square[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) square[i] = _mm512_load_ps((const float *)(from + i * 32));
    transpose_f32(square);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_ps((float *)(to + i * 32), square[i]);
}
static inline ALWAYS_INLINE void a_block_across(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to,
                                                int is_f16) {
    uint16_t pairs[2 * BLOCK] __attribute__((aligned(64)));
    b_block_across(from, stride, count, r, pairs, is_f16);
    for (int tile = 0; tile < 2 * (1 + is_f16); tile++) turn(pairs + tile * TILE, to + tile * TILE);
}
static inline ALWAYS_INLINE void b_block_along(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to,
                                               int is_f16) {
    uint16_t rows[2 * BLOCK] __attribute__((aligned(64)));
    a_block_along(from, stride, count, r, rows, is_f16);
    for (int tile = 0; tile < 2 * (1 + is_f16); tile++) turn(rows + tile * TILE, to + tile * TILE);
}

#define FGE_PACK(name, block, r_step, is_f16) \
    static void name(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to) { \
        for (int64_t l = 0; l < r; l += R_BLOCK) \
            block(from + l * (r_step), stride, count, r - l, to + l * ROWS * (1 + is_f16), is_f16); \
    }
FGE_PACK(pack_a_along_bf16, a_block_along, 1, 0)
FGE_PACK(pack_a_across_bf16, a_block_across, stride, 0)
FGE_PACK(pack_b_along_bf16, b_block_along, 1, 0)
FGE_PACK(pack_b_across_bf16, b_block_across, stride, 0)
FGE_PACK(pack_a_along_f16, a_block_along, 1, 1)
FGE_PACK(pack_a_across_f16, a_block_across, stride, 1)
FGE_PACK(pack_b_along_f16, b_block_along, 1, 1)
FGE_PACK(pack_b_across_f16, b_block_across, stride, 1)
#undef FGE_PACK

/* --- multiplying ------------------------------------------------------------------------------------------------- */

/* All eight tiles are 16 rows of 64 bytes. Static, because gcc 12 takes the initialisation of a local one for a dead store. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_of_row[16];
    uint8_t rows[16];
} tile_config = {.palette = 1, .bytes_of_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void begin(void) { _tile_loadconfig(&tile_config); }
static void end(void) { _tile_release(); }

/* Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b. Between the products stand loads and, a third of a block each
 * time, the fetching of b's blocks to come from L2. Measured: 1.5 times as fast as without anything between, whether the core is
 * shared or not. */
enum { BLOCKS_AHEAD = 4, LINES = BLOCK / 32 };
static inline ALWAYS_INLINE void fetch_third(const uint16_t *b, int third) {
#pragma GCC unroll 11
    for (int i = third * 11; i < fge_min(LINES, third * 11 + 11); i++) _mm_prefetch((const char *)(b + i * 32), _MM_HINT_T0);
}
static inline ALWAYS_INLINE void multiply(const uint16_t *a, const uint16_t *b, const uint16_t *ahead, int tall) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    fetch_third(ahead, 0);
    _tile_loadd(7, b + TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    fetch_third(ahead, 1);
    if (tall) {
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
    }
    fetch_third(ahead, 2);
    if (tall) _tile_dpbf16ps(3, 5, 7);
}
/* by a's rests, where a's first parts were last and b's are loaded still */
static inline ALWAYS_INLINE void multiply_rest(const uint16_t *a, int tall) {
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (tall) {
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static inline ALWAYS_INLINE void tile(int64_t r, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int tall, int add,
                                      int is_f16, fge_pending *pending) {
    const int64_t row = ldc * 4, blocks = fge_ceil_div(r, R_BLOCK);
    /* the vector units finish the tile before, while the tile unit multiplies this one */
    const int64_t finish = fge_ceil_div(pending->rows - pending->done, fge_max(1, blocks));
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        if (tall) {
            _tile_loadd(2, c + 16 * ldc, row);
            _tile_loadd(3, c + 16 * ldc + 16, row);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if (tall) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    for (int64_t l = 0; l < blocks; l++, a += BLOCK * (1 + is_f16), b += BLOCK * (1 + is_f16)) {
        const uint16_t *ahead = b + BLOCKS_AHEAD * BLOCK * (1 + is_f16);
        if (is_f16) {
            multiply(a, b + BLOCK, ahead, tall);
            multiply(a, b, ahead + BLOCK, tall);
            multiply_rest(a + BLOCK, tall);
        } else {
            multiply(a, b, ahead, tall);
        }
        if (finish) fge_pending_rows(pending, finish);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    if (tall) {
        _tile_stored(2, c + 16 * ldc, row);
        _tile_stored(3, c + 16 * ldc + 16, row);
    }
}
#define FGE_TILE(name, is_f16) \
    static void name(int64_t r, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows, int add, \
                     fge_pending *pending) { \
        if (rows > 16) tile(r, a, b, c, ldc, 1, add, is_f16, pending); \
        else tile(r, a, b, c, ldc, 0, add, is_f16, pending); \
    }
FGE_TILE(tile_bf16, 0)
FGE_TILE(tile_f16, 1)
#undef FGE_TILE

static int any_nan(const float *c, int64_t ldc, int rows) {
    __mmask16 found = 0;
    for (int i = 0; i < rows; i++) {
        const __m512 low = _mm512_loadu_ps(c + i * ldc), high = _mm512_loadu_ps(c + i * ldc + 16);
        found |= _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q);
    }
    return found != 0;
}

const fge_pair_kernels fge_pairs_bf16_amx = {
    .what = "AMX tiles of bfloat16 pairs into float32, epilogue on the tile in L1 while the next is multiplied",
    .mr = ROWS,
    .nr = COLUMNS,
    .unit = 2,
    .r_unit = R_BLOCK,
    .pipelined = 1,
    .pack_a_along = pack_a_along_bf16,
    .pack_a_across = pack_a_across_bf16,
    .pack_b_along = pack_b_along_bf16,
    .pack_b_across = pack_b_across_bf16,
    .tile = tile_bf16,
    .begin = begin,
    .end = end,
};
const fge_pair_kernels fge_pairs_f16_amx = {
    .what =
        "split in two bfloat16 values, three AMX products into float32, epilogue on the tile in L1 while the next is multiplied",
    .mr = ROWS,
    .nr = COLUMNS,
    .unit = 4,
    .r_unit = R_BLOCK,
    .r_least = R_LEAST,
    .pipelined = 1,
    .pack_a_along = pack_a_along_f16,
    .pack_a_across = pack_a_across_f16,
    .pack_b_along = pack_b_along_f16,
    .pack_b_across = pack_b_across_f16,
    .tile = tile_f16,
    .any_nan = any_nan,
    .begin = begin,
    .end = end,
};
#else
typedef int fge_no_pairs_amx_here;
#endif
