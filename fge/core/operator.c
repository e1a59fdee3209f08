/* The operator: the forward and the gradients as matrix products with operands and epilogues, run by the engine that
 * dispatch.c chooses. */
#include "activation.h"
#include "call.h"
#include "elementwise.h"

fge_status fge_forward(const fge_forward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    const int dtype = args->dtype;
    if (fge_bad_call(m, n, k, dtype, args->activation) || (args->bias && fge_bad_second_dtype(args->bias_dtype, dtype)))
        return FGE_BAD_CALL;
    if (m == 0 || n == 0) return FGE_OK;
    if (!args->out || (k && (!args->x.data || !args->y.data))) return FGE_BAD_CALL;
    fge_call c = {0};
    fge_gemm *g = fge_call_add(&c, fge_operand_of(args->x, m, k, dtype), fge_operand_of(args->y, k, n, dtype), m, n, k, dtype);
    fge_epilogue *e = &g->epilogue;
    const fge_reserve_kind kind = fge_reserve_kind_of(args->activation.id);
    e->out = args->out;
    e->out_stride = args->out_row_stride;
    e->out_dtype = dtype;
    e->activation = args->activation;
    if (kind == FGE_RESERVE_BITS || kind == FGE_RESERVE_Z ||
        (kind == FGE_RESERVE_OUT && args->residual && args->residual_at_out)) {
        e->reserve = args->reserve;
        e->reserve_kind = kind;
        e->reserve_dtype = dtype;
        e->reserve_stride = fge_reserve_stride(args->activation.id, n);
    }
    if (args->residual) {
        e->other = args->residual;
        e->other_role = args->residual_at_out ? FGE_ADD_TO_OUT : FGE_ADD_TO_Z;
        e->other_dtype = dtype;
        e->other_stride = args->residual_row_stride;
    }
    fge_status status = fge_call_plan(&c);
    if (status != FGE_OK) return status;
    fge_workspace workspace;
    void *room = NULL;
    status = fge_call_begin(&c, fge_bias_room(args->bias, args->bias_dtype, args->bias_stride, n, dtype), &workspace, &room);
    if (status != FGE_OK) return status;
    e->bias = fge_bias_as_real(args->bias, args->bias_dtype, args->bias_stride, n, dtype, room);
    fge_call_run(&c, 0, &workspace);
    fge_call_end(&c, &workspace);
    return FGE_OK;
}

/* Whether dZ is worth a pass of its own. Otherwise each product makes it while packing, again for every tile that it is part of:
 * one for each COLUMNS columns of x, about. By shapes alone, and up to a constant room; the bits are the same either way. */
static int makes_dz_first(const fge_backward_args *args) {
    enum { COLUMNS = 512, ELEMENTS = 1 << 14, MOST_BYTES = 1 << 25 };
    if (fge_reserve_kind_of(args->activation.id) == FGE_RESERVE_NONE) return 0;
    const int64_t products = (args->x_grad.data != NULL) + (args->y_grad.data != NULL);
    return products * fge_ceil_div(args->k, COLUMNS) >= 2 && args->m * args->n >= ELEMENTS &&
           args->m * args->n <= MOST_BYTES / fge_dtype_size(args->dtype);
}

fge_status fge_backward(const fge_backward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    const int dtype = args->dtype;
    if (fge_bad_call(m, n, k, dtype, args->activation) || fge_bad_call(m, n, k, dtype, args->x_activation) ||
        fge_bad_out(&args->x_grad, dtype) || fge_bad_out(&args->y_grad, dtype) || fge_bad_out(&args->bias_grad, dtype) ||
        fge_bad_out(&args->z_grad, dtype))
        return FGE_BAD_CALL;
    const int needs_reserve = fge_reserve_kind_of(args->activation.id) != FGE_RESERVE_NONE;
    const int needs_x_reserve = args->x_grad.data && fge_reserve_kind_of(args->x_activation.id) != FGE_RESERVE_NONE;
    if (m && n && (!args->out_grad.data || (needs_reserve && !args->reserve))) return FGE_BAD_CALL;
    if (m && k && needs_x_reserve && !args->x_reserve) return FGE_BAD_CALL;

    fge_operand derived = fge_operand_of(args->out_grad, m, n, dtype);
    fge_set_derivative(&derived, args->activation, args->reserve);
    /* a dZ that is stored, in the caller's array or ours, is read back for the products; rounded sums would be less exact */
    const int asked = args->z_grad.data && !args->z_grad.accumulate, own = !asked && makes_dz_first(args);
    static double plan_only; /* a place, so that the plan counts what is in memory that isn't there yet */
    fge_out own_dz = {own ? &plan_only : NULL, n, dtype, 0};
    const fge_in stored = own ? (fge_in){own_dz.data, n, 1} : (fge_in){args->z_grad.data, args->z_grad.row_stride, 1};
    const fge_operand dz = asked || own ? fge_operand_of(stored, m, n, dtype) : derived;
    const fge_operand exact_dz = fge_is_half(dtype) ? derived : dz;
    const fge_operand x = fge_operand_of(args->x, m, k, dtype), y = fge_operand_of(args->y, k, n, dtype);
    fge_call c = {0};
    if (args->x_grad.data) { /* dZ . Y^T, or its transpose Y . dZ^T */
        fge_gemm *g = args->x_grad_transposed ? fge_call_add(&c, y, fge_transposed(dz), k, m, n, dtype)
                                              : fge_call_add(&c, dz, fge_transposed(y), m, k, n, dtype);
        fge_store_gradient(&g->epilogue, &args->x_grad, g->q);
        if (needs_x_reserve) g->epilogue.state_activation = args->x_activation;
        g->epilogue.state = args->x_reserve;
        g->epilogue.state_dtype = dtype;
        g->epilogue.state_stride = fge_reserve_stride(args->x_activation.id, g->q);
    }
    fge_gemm *with_sums = NULL;
    if (args->y_grad.data) { /* X^T . dZ, or its transpose dZ^T . X */
        with_sums = args->y_grad_transposed ? fge_call_add(&c, fge_transposed(dz), x, n, k, m, dtype)
                                            : fge_call_add(&c, fge_transposed(x), dz, k, n, m, dtype);
        fge_store_gradient(&with_sums->epilogue, &args->y_grad, with_sums->q);
        with_sums->sums_of_a = args->y_grad_transposed;
    }
    const int wants_sums = args->bias_grad.data != NULL;
    /* a product with no rows of its own: the column sums are all that is left of it */
    if (wants_sums && (!with_sums || exact_dz.data != dz.data))
        with_sums = fge_call_add(&c, (fge_operand){0}, exact_dz, 0, n, m, dtype);
    if (wants_sums) {
        with_sums->sums = &plan_only;
        /* the sums are those of dZ's own rows, whichever of its axes is contiguous */
        *(with_sums->sums_of_a ? &with_sums->a : &with_sums->b) = with_sums->sums_of_a ? fge_transposed(exact_dz) : exact_dz;
    }
    fge_status status = fge_call_plan(&c);
    if (status != FGE_OK) return status;
    if (args->z_grad.data || own) fge_elementwise_plan(&c, m, n);
    const size_t sums_room = wants_sums ? ((size_t)n * sizeof(double) + 63) / 64 * 64 : 0;
    const size_t dz_room = own ? (size_t)(m * n * fge_dtype_size(dtype)) : 0;
    fge_workspace workspace;
    void *room = NULL;
    status = fge_call_begin(&c, sums_room + dz_room, &workspace, &room);
    if (status != FGE_OK) return status;
    double *const sums = room;
    if (wants_sums) with_sums->sums = sums;
    if (own) {
        own_dz.data = (char *)room + sums_room;
        for (int i = 0; i < c.count; i++) {
            if (c.gemm[i].a.data == &plan_only) c.gemm[i].a.data = own_dz.data;
            if (c.gemm[i].b.data == &plan_only) c.gemm[i].b.data = own_dz.data;
        }
        fge_store_derivative(&derived, &own_dz, &workspace);
    }
    if (args->z_grad.data) fge_store_derivative(&derived, &args->z_grad, &workspace);
    for (int i = 0; i < c.count; i++) fge_call_run(&c, i, &workspace);
    if (wants_sums) fge_store_sums(&args->bias_grad, sums, n);
    fge_call_end(&c, &workspace);
    return FGE_OK;
}
