/* Gradients that no product makes: dZ where it is asked for, and those of a gated unit's two pre-activations. */
#ifndef FGE_ELEMENTWISE_H
#define FGE_ELEMENTWISE_H
#include "call.h"

/* Let the call's threads have the scratch for what follows, on [rows, cols]. */
void fge_elementwise_plan(fge_call *c, int64_t rows, int64_t cols);

/* to (+)= the operand's elements, dZ */
void fge_store_derivative(const fge_operand *dz, const fge_out *to, const fge_workspace *workspace);

/* up_grad = out_grad * act(z_gate), gate_grad = out_grad * z_up * act'(z_gate), each rounded once. All [rows, cols] of dtype; but
 * for out_grad with packed rows. */
typedef struct {
    fge_operand out_grad;
    fge_activation activation;
    const void *z_gate, *z_up;
    void *gate_grad, *up_grad;
} fge_glu_derivative;
void fge_store_glu_derivative(const fge_glu_derivative *d, const fge_workspace *workspace);
#endif
