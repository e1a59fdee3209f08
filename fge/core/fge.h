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
    FGE_NO_MEMORY = 1, /* scratch could not be allocated; nothing was written */
    FGE_BAD_CALL = 2,  /* an argument has no meaning (negative size, unknown dtype, missing reserve); nothing was written */
    FGE_NO_ENGINE = 3  /* the engine that FGE_ENGINE or FGE_ISA forces can't run here; nothing was written */
} fge_status;

/* How an activation keeps what its derivative needs. */
typedef enum {
    FGE_RESERVE_NONE = 0, /* nothing */
    FGE_RESERVE_BITS =
        1, /* uint8 [m, fge_bits_row_bytes(n)], bit (n % 8, least significant first) of byte n / 8: which of two slopes */
    FGE_RESERVE_Z = 2,  /* z in the dtype and shape of out */
    FGE_RESERVE_OUT = 3 /* act(z), which is out itself as a rule: no second buffer */
} fge_reserve_kind;

/* An activation and the numbers that some take. All zeros is "none". */
enum { FGE_ACTIVATION_PARAMETERS = 2 };
typedef struct {
    int id;
    double parameter[FGE_ACTIVATION_PARAMETERS];
} fge_activation;

/* Ids run from 0 ("none") to fge_activation_count() - 1. The form is what fge_activation_parse takes: the name alone, or for
 * those with numbers "name(alpha)" and the like. */
int fge_activation_count(void);
const char *fge_activation_name(int id);
const char *fge_activation_form(int id);
int fge_activation_parameters(int id);
/* "relu", "clamp(-1, 1)"; the name alone has the numbers of its definition. NULL, or what is wrong: "" where there is no
 * activation of that name, otherwise what its numbers must be. The text lasts as long as the program. */
const char *fge_activation_parse(const char *text, fge_activation *activation);
fge_reserve_kind fge_activation_reserve(int id);

/* Bytes in one row of RELU bits for n columns: 16 * ceil(n / 128), cuBLASLt's RELU_AUX layout. */
static inline int64_t fge_bits_row_bytes(int64_t n) { return 16 * ((n + 127) / 128); }

typedef struct {
    const void *data;
    int64_t row_stride, col_stride;
} fge_in;

typedef struct {
    void *data; /* NULL: not wanted */
    int64_t row_stride;
    int dtype;      /* the operator's dtype, or float32 where that is a half type and accumulate is set */
    int accumulate; /* add to what is there instead of overwriting it */
} fge_out;

typedef struct {
    int64_t m, n, k;
    int dtype; /* of x, y, out and a reserve of z */
    fge_activation activation;
    fge_in x, y;
    const void *bias; /* NULL or n values */
    int bias_dtype;   /* dtype, or float32 where dtype is a half type */
    int64_t bias_stride;
    void *out;
    int64_t out_row_stride;
    void *reserve; /* NULL: not saved. Rows are packed: bits in fge_bits_row_bytes(n), z (and act(z)) in n elements */
    /* [m, n] of dtype with unit column stride, or NULL: out = act(z + residual), where residual_at_out act(z) + residual. For an
     * activation that reserves act(z), the latter leaves no such thing in out: it is written to reserve */
    const void *residual;
    int64_t residual_row_stride;
    int residual_at_out;
} fge_forward_args;

typedef struct {
    int64_t m, n, k;
    int dtype;
    fge_activation activation;
    fge_in x, y;
    const void *reserve; /* as the forward wrote it; for FGE_RESERVE_OUT the forward's out, packed rows */
    fge_in out_grad;
    fge_out x_grad; /* [m, k], or [k, m] where x_grad_transposed */
    int x_grad_transposed;
    fge_activation x_activation; /* the activation that produced x (id 0: none): x_grad is multiplied by its derivative */
    const void *x_reserve;       /* its reserve, in the layout of x_grad, packed rows */
    fge_out y_grad;              /* [k, n], or [n, k] where y_grad_transposed */
    int y_grad_transposed;
    fge_out bias_grad; /* [n]; row_stride is the distance of its elements */
    fge_out z_grad;    /* [m, n]: dZ = out_grad * act'(reserve), rounded to its dtype */
} fge_backward_args;

/* A gated unit: out = act(x . w_gate + b_gate) * (x . w_up + b_up), and its gradients. The reserves are both pre-activations,
 * z_gate and z_up, [m, n] of dtype, packed rows. Shapes of the weights are [k, n] as the product sees them; biases as in
 * fge_forward_args. */
typedef struct {
    int64_t m, n, k;
    int dtype;
    fge_activation activation;
    fge_in x, w_gate, w_up;
    const void *b_gate, *b_up;
    int b_gate_dtype, b_up_dtype;
    int64_t b_gate_stride, b_up_stride;
    void *out;
    int64_t out_row_stride;
    void *z_gate, *z_up; /* both NULL: not saved */
} fge_glu_forward_args;

typedef struct {
    int64_t m, n, k;
    int dtype;
    fge_activation activation;
    fge_in x, w_gate, w_up;
    const void *z_gate, *z_up;
    fge_in out_grad;
    fge_out x_grad;                 /* [m, k]; it and the others may not accumulate */
    fge_out w_gate_grad, w_up_grad; /* [k, n], or [n, k] where w_grads_transposed */
    int w_grads_transposed;
    fge_out b_gate_grad, b_up_grad; /* [n] */
    void *gate_grad, *up_grad;      /* scratch of the caller's, [m, n] of dtype each: the gradients of z_gate and z_up */
} fge_glu_backward_args;

fge_status fge_forward(const fge_forward_args *args);
fge_status fge_backward(const fge_backward_args *args);
fge_status fge_glu_forward(const fge_glu_forward_args *args);
fge_status fge_glu_backward(const fge_glu_backward_args *args);

/* Threads. 0 in fge_set_num_threads restores the default (affinity and cgroup quota, FGE_NUM_THREADS,
 * OMP_NUM_THREADS). Results do not depend on the number. */
int fge_get_num_threads(void);
void fge_set_num_threads(int n);

#ifdef __cplusplus
}
#endif
#endif
