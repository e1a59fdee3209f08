/* A call: up to a few products with the memory that all of them need, taken before the first one writes. The forward, the
 * backward and the gated unit are made of this. */
#ifndef FGE_CALL_H
#define FGE_CALL_H
#include "dispatch.h"
#include "engine.h"
#include "fge.h"
#include "float_environment.h"

enum { FGE_MAX_PRODUCTS = 6 };
typedef struct {
    int count;
    fge_gemm gemm[FGE_MAX_PRODUCTS];
    fge_plan plan[FGE_MAX_PRODUCTS];
    fge_choice choice[FGE_MAX_PRODUCTS];
    size_t scratch, shared;
    int threads;
    fge_float_environment before; /* of the caller's thread */
} fge_call;

/* x as a matrix [rows, cols] */
fge_operand fge_operand_of(fge_in in, int64_t rows, int64_t cols, int dtype);
fge_operand fge_transposed(fge_operand o);
/* out_grad * act'(reserve): the operand dZ */
void fge_set_derivative(fge_operand *o, fge_activation activation, const void *reserve);
/* Distance of a packed reserve's rows: bytes of bits, elements of z or out. */
int64_t fge_reserve_stride(int activation, int64_t cols);

fge_gemm *fge_call_add(fge_call *c, fge_operand a, fge_operand b, int64_t p, int64_t q, int64_t r, int dtype);
/* where its result goes */
void fge_store_gradient(fge_epilogue *e, const fge_out *out, int64_t cols);

/* After every product is added: engines, tiles and memory, with `extra` bytes for the caller at *extra_at. fge_call_begin gives
 * nothing to give back unless it answers FGE_OK. */
fge_status fge_call_plan(fge_call *c);
fge_status fge_call_begin(fge_call *c, size_t extra, fge_workspace *workspace, void **extra_at);
void fge_call_run(fge_call *c, int product, const fge_workspace *workspace);
void fge_call_end(const fge_call *c, fge_workspace *workspace);

/* The accumulator's dtype. */
static inline int fge_real_dtype(int dtype) { return dtype == FGE_FLOAT64 ? FGE_FLOAT64 : FGE_FLOAT32; }

/* A bias in the accumulator's dtype: bytes of room that it needs (0: it can be used as it is), and the bias itself, in that room.
 */
size_t fge_bias_room(const void *bias, int dtype, int64_t stride, int64_t n, int of_operator);
const void *fge_bias_as_real(const void *bias, int dtype, int64_t stride, int64_t n, int of_operator, void *room);
/* bias_grad (+)= sums */
void fge_store_sums(const fge_out *to, const double *sums, int64_t n);

/* Checks of what would corrupt memory or has no meaning. */
int fge_bad_call(int64_t m, int64_t n, int64_t k, int dtype, fge_activation activation);
int fge_bad_second_dtype(int dtype, int of_operator);
int fge_bad_out(const fge_out *out, int dtype);
#endif
