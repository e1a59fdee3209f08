/* The C interface of the operator: what a binding (Python, Paddle's kernel registry, a torch operator, C++) calls.
 *
 *     out = act(x . y + bias), reserve        fge_forward
 *     x_grad, y_grad, bias_grad               fge_backward
 *
 * Strides are in elements. x is [m, k] and y is [k, n] as the product sees them: a transposed operand comes with its
 * strides swapped. Nothing here touches Python, and every function may be called from any number of threads. The
 * caller has checked shapes and overlap; the functions check what would corrupt memory or has no meaning and answer
 * with a status instead of writing. */
#ifndef FGE_H
#define FGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { FGE_FLOAT32 = 0, FGE_FLOAT64 = 1, FGE_FLOAT16 = 2, FGE_BFLOAT16 = 3 } fge_dtype;

typedef enum {
    FGE_OK = 0,
    FGE_NO_MEMORY = 1,  /* scratch could not be allocated; nothing was written */
    FGE_BAD_CALL = 2,   /* an argument has no meaning (negative size, unknown dtype, missing reserve); nothing was written */
    FGE_NO_ENGINE = 3   /* the engine that FGE_ENGINE or FGE_ISA forces can't run here; nothing was written */
} fge_status;

/* How an activation keeps what its derivative needs. */
typedef enum {
    FGE_RESERVE_NONE = 0, /* nothing */
    FGE_RESERVE_BITS = 1, /* uint8 [m, fge_bits_row_bytes(n)], bit (n % 8, least significant first) of byte n / 8: z > 0 */
    FGE_RESERVE_Z = 2,    /* z in the dtype and shape of out */
    FGE_RESERVE_OUT = 3   /* out itself: no second buffer */
} fge_reserve_kind;

/* Activations are known by name; ids run from 0 ("none") to fge_activation_count() - 1. */
int fge_activation_count(void);
const char *fge_activation_name(int activation);
int fge_activation_find(const char *name); /* -1 where there is none of that name */
fge_reserve_kind fge_activation_reserve(int activation);

/* Bytes in one row of RELU bits for n columns: 16 * ceil(n / 128), cuBLASLt's RELU_AUX layout. */
static inline int64_t fge_bits_row_bytes(int64_t n) { return 16 * ((n + 127) / 128); }

typedef struct {
    const void *data;
    int64_t row_stride, col_stride;
} fge_in;

typedef struct {
    void *data;          /* NULL: not wanted */
    int64_t row_stride;
    int dtype;           /* the operator's dtype, or float32 where that is a half type and accumulate is set */
    int accumulate;      /* add to what is there instead of overwriting it */
} fge_out;

typedef struct {
    int64_t m, n, k;
    int dtype;           /* of x, y, out and a reserve of z */
    int activation;
    fge_in x, y;
    const void *bias;    /* NULL or n values */
    int bias_dtype;      /* dtype, or float32 where dtype is a half type */
    int64_t bias_stride;
    void *out;
    int64_t out_row_stride;
    void *reserve;       /* NULL: not saved. Rows are packed: bits in fge_bits_row_bytes(n), z in n elements */
} fge_forward_args;

typedef struct {
    int64_t m, n, k;
    int dtype;
    int activation;
    fge_in x, y;
    const void *reserve; /* as the forward wrote it; for FGE_RESERVE_OUT the forward's out, packed rows */
    fge_in out_grad;
    fge_out x_grad;      /* [m, k], or [k, m] where x_grad_transposed */
    int x_grad_transposed;
    int x_activation;    /* the activation that produced x (0: none): x_grad is multiplied by its derivative */
    const void *x_reserve; /* its reserve, in the layout of x_grad, packed rows */
    fge_out y_grad;      /* [k, n], or [n, k] where y_grad_transposed */
    int y_grad_transposed;
    fge_out bias_grad;   /* [n]; row_stride is the distance of its elements */
} fge_backward_args;

fge_status fge_forward(const fge_forward_args *args);
fge_status fge_backward(const fge_backward_args *args);

/* Threads. 0 in fge_set_num_threads restores the default (affinity and cgroup quota, FGE_NUM_THREADS,
 * OMP_NUM_THREADS). Results do not depend on the number. */
int fge_get_num_threads(void);
void fge_set_num_threads(int n);

#ifdef __cplusplus
}
#endif
#endif
