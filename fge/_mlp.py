"""Two layers with an activation between them, act(x @ w1 + b1) @ w2 + b2, on numpy arrays."""

import contextlib

import numpy as np

from fge._kernels import fused_gemm_epilogue, fused_gemm_epilogue_grad, reserve_kind


def check_checkpoint_lvl(checkpoint_lvl):
    if not isinstance(checkpoint_lvl, (int, np.integer)) or checkpoint_lvl not in (0, 1, 2):
        raise ValueError(
            f"checkpoint_lvl is {checkpoint_lvl!r}; it must be 0 (save all), 1 (recompute the activation's output) or "
            "2 (recompute the pre-activation too)"
        )


@contextlib.contextmanager
def naming(where):
    """Errors of the operator name its own arguments: say what these are in the layer that it was called for."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} (in {where})") from None


def keeps(activation, checkpoint_lvl):
    """What is held between forward and backward: whether hidden is, and whether the first layer's reserve is."""
    kind = reserve_kind(activation)
    if checkpoint_lvl == 2:
        return False, False
    # act(z) can be made again from z alone; where the reserve is act(z) itself, once is enough
    return kind != "z" or checkpoint_lvl == 0, kind in ("z", "bits")


def fused_mlp(
    x, w1, b1, w2, b2, activation="gelu", *, trans_w=False, checkpoint_lvl=0, save_reserve=True, out=None
):
    """out = act(x @ w1 + b1) @ w2 + b2.

    Parameters
    ----------
    x : array [.., M, K]; rank 2 or more
    w1, w2 : arrays [K, H] and [H, N], or [H, K] and [N, H] with trans_w=True
    b1, b2 : arrays [H] and [N], or None
    activation : as in `fused_gemm_epilogue`, whose dtypes, strides and errors these are
    checkpoint_lvl : what is saved for the backward. 0: hidden = act(..) and its reserve. 1: the reserve, from which hidden is
        computed again (activations that reserve bits, or hidden itself, save what level 0 does). 2: nothing; the first
        layer is computed again
    save_reserve : False saves nothing and returns reserve=None
    out : array [.., M, N] to write to, or None

    Returns
    -------
    out : array [.., M, N]
    reserve : (hidden, reserve of the first layer), either of them None where it isn't saved; or None
    """
    check_checkpoint_lvl(checkpoint_lvl)
    with_hidden, with_reserve = keeps(activation, checkpoint_lvl)
    with naming("the first layer, where y is w1 and bias is b1"):
        hidden, reserve = fused_gemm_epilogue(
            x, w1, b1, False, trans_w, activation, save_reserve=save_reserve and with_reserve
        )
    with naming("the second layer, where x is act(x @ w1 + b1), y is w2 and bias is b2"):
        result, _ = fused_gemm_epilogue(hidden, w2, b2, False, trans_w, save_reserve=False, out=out)
    if not save_reserve:
        return result, None
    return result, (hidden if with_hidden else None, reserve if with_reserve else None)


def fused_mlp_grad(
    x,
    w1,
    b1,
    w2,
    reserve,
    out_grad,
    activation="gelu",
    *,
    trans_w=False,
    checkpoint_lvl=0,
    needs=(True,) * 5,
):
    """Gradients of `fused_mlp`: (x_grad, w1_grad, b1_grad, w2_grad, b2_grad), None for those that `needs` leaves out.

    The product that makes the gradient of hidden multiplies act' in its own epilogue: dZ of the first layer is stored
    once and never read back for it.

    Parameters
    ----------
    x, w1, b1, w2, activation, trans_w, checkpoint_lvl : as in the forward
    reserve : what the forward returned
    out_grad : array of out's shape and dtype

    Raises
    ------
    ValueError where the reserve isn't that of this activation and level; others as `fused_gemm_epilogue_grad`
    """
    check_checkpoint_lvl(checkpoint_lvl)
    if not isinstance(reserve, (tuple, list)) or len(reserve) != 2:
        raise ValueError(
            f"reserve is {'None' if reserve is None else f'a {type(reserve).__name__}'}; fused_mlp_grad needs the pair that "
            "the forward returned (was it called with save_reserve=False?)"
        )
    needs = tuple(bool(need) for need in needs)
    if len(needs) != 5:
        raise ValueError(f"needs has {len(needs)} values; it must have five, for x, w1, b1, w2 and b2")
    hidden, kept = reserve
    for what, array, wanted in zip(("hidden", "reserve"), reserve, keeps(activation, checkpoint_lvl)):
        if (array is not None) != wanted:
            raise ValueError(
                f"the forward's {what} is {'missing' if wanted else 'given'}; with activation {activation!r} and "
                f"checkpoint_lvl={checkpoint_lvl} it is {'saved' if wanted else 'not saved'}. Was the forward called with "
                "another level?"
            )
    of_first, kind = needs[:3], reserve_kind(activation)
    if hidden is None:
        if kept is None:
            hidden, kept = fused_gemm_epilogue(x, w1, b1, False, trans_w, activation)
        elif needs[3]:
            hidden = activate(kept, activation)
        else:
            hidden = kept  # of hidden's shape; its values aren't read
    with naming("the second layer, where x is act(x @ w1 + b1) and y is w2"):
        dz, w2_grad, b2_grad = fused_gemm_epilogue_grad(
            hidden,
            w2,
            None,
            out_grad,
            False,
            trans_w,
            needs=(any(of_first), *needs[3:]),
            x_activation=activation,
            x_reserve=hidden if kind == "out" else kept,
        )
    if not any(of_first):
        return None, None, None, w2_grad, b2_grad
    with naming("the first layer, where y is w1 and out_grad is the gradient of x @ w1 + b1"):
        first = fused_gemm_epilogue_grad(x, w1, None, dz, False, trans_w, needs=of_first)
    return (*first, w2_grad, b2_grad)


def activate(z, activation):
    """act(z) alone: a product with K = 0 and z as its residual."""
    empty_x, empty_y = np.empty((*z.shape[:-1], 0), z.dtype), np.empty((0, z.shape[-1]), z.dtype)
    return fused_gemm_epilogue(empty_x, empty_y, activation=activation, save_reserve=False, residual=z)[0]
