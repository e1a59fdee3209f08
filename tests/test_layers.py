"""fused_mlp, fused_glu and the residual: values and gradients against compositions in float64, on every engine and dtype."""

import numpy as np
import pytest
from activation_table import ACTIVATIONS
from reference import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    HALVES,
    assert_all_same_bits,
    assert_same_bits,
    assert_within,
    epsilon,
    forward,
    make_reserve,
    random,
    random_operands,
    rng_for,
    slope_from_reserve,
)

import fge

pytestmark = pytest.mark.usefixtures("path")

SHAPES = ((1, 7, 9), (33, 40, 129), (0, 4, 5), (6, 0, 17))
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)


def wide(*arrays):
    return [None if a is None else a.astype(np.float64) for a in arrays]


def assert_close(actual, expected, magnitude, dtype, terms, what):
    """Within a few roundings of `dtype` and of the sums, of the largest intermediate value."""
    bound = (8 * epsilon(dtype) + 4 * terms * epsilon(FLOAT64 if dtype == FLOAT64 else FLOAT32)) * magnitude
    assert actual.shape == expected.shape and actual.dtype == dtype, what
    error = np.abs(actual.astype(np.float64) - expected)
    assert not (error > bound + 1e-30).any() and np.isfinite(error).all(), f"{what}: {error.max()} > {bound}"


def slope(activation, z):
    return slope_from_reserve(activation, make_reserve(activation, z, FLOAT64), z.shape, FLOAT64).value


# --- residual --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ("z", "out"))
@pytest.mark.parametrize("m, k, n", SHAPES)
@EVERY_ACTIVATION
def test_residual(activation, m, k, n, at, dtype):
    """At z it is as one more term of the sum; at out it is added to what the epilogue makes, before the one rounding."""
    rng = rng_for("residual", m, k, n, activation)
    x, y, bias = random_operands(rng, m, k, n, dtype)
    residual = random(rng, (m, n), dtype)
    out, reserve = fge.fused_gemm_epilogue(
        x, y, bias, activation=activation, residual=residual, residual_at=at
    )
    with_residual = np.concatenate([x, np.ones((m, 1), dtype)], 1) if m else np.zeros((0, k + 1), dtype)
    if at == "z":  # column by column, the residual is a term of its own
        for j in range(min(n, 3)):
            stacked = np.concatenate([with_residual, residual[:, j : j + 1]], 1)
            column = np.concatenate([y[:, j], [bias[j]], [dtype.type(1)]])[:, None].astype(dtype)
            assert_within(out[:, j : j + 1], forward(stacked, column, activation=activation).out)
    else:
        plain, _ = fge.fused_gemm_epilogue(*wide(x, y, bias), activation=activation)
        expected = plain + residual.astype(np.float64)
        assert_close(out, expected, np.abs(plain).max(initial=1) + 1, dtype, k + 1, "out")
    # the reserve is of the sum with the residual in it, and serves the backward
    z = sum(wide(x.astype(np.float64) @ y.astype(np.float64), bias)) + (residual if at == "z" else 0)
    kind = ACTIVATIONS[activation].reserve
    if kind == "z":
        assert_close(reserve, z, np.abs(z).max(initial=1), dtype, k + 2, "z")
    elif kind == "out":
        assert (reserve is out) == (at == "z")
        assert_close(reserve, ACTIVATIONS[activation].forward(z), 1.0, dtype, 4 * (k + 2), "act(z)")
    elif kind == "bits":
        bits = np.unpackbits(reserve, axis=1, bitorder="little")[:, :n].astype(bool)
        far = np.logical_and.reduce([np.abs(z - edge) > 1e-3 for edge in ACTIVATIONS[activation].edges])
        assert (bits == ACTIVATIONS[activation].bit(z))[far].all()
    grad = random(rng, (m, n), dtype)
    *_, residual_grad = fge.fused_gemm_epilogue_grad(
        x, y, reserve, grad, activation=activation, needs=(True,) * 4, residual_at=at
    )
    if at == "out":
        assert residual_grad is grad
    else:
        slopes = slope_from_reserve(activation, reserve, (m, n), dtype).value
        assert_close(
            residual_grad,
            grad.astype(np.float64) * slopes,
            max(1, np.abs(slopes).max(initial=1)),
            dtype,
            4,
            "dZ",
        )


@EVERY_ACTIVATION
def test_residual_grad_changes_no_other(activation, dtype):
    """dZ is stored or made on the way, rounded alike: the same bits."""
    rng = rng_for("residual_grad", activation)
    x, y, bias = random_operands(rng, 70, 33, 45, dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    grad = random(rng, out.shape, dtype)
    three = fge.fused_gemm_epilogue_grad(x, y, reserve, grad, activation=activation)
    four = fge.fused_gemm_epilogue_grad(x, y, reserve, grad, activation=activation, needs=(True,) * 4)
    assert_all_same_bits(four[:3], three)
    kept = random(rng, out.shape, dtype)
    accumulated = kept.copy()
    into = (None, None, None, accumulated)
    again = fge.fused_gemm_epilogue_grad(
        x, y, reserve, grad, activation=activation, needs=(True,) * 4, accumulate_into=into
    )
    assert again[3] is accumulated
    assert_close(
        accumulated, four[3].astype(np.float64) + kept.astype(np.float64), 3.0, dtype, 2, "accumulated"
    )
    only = fge.fused_gemm_epilogue_grad(
        x, y, reserve, grad, activation=activation, needs=(False, False, False, True)
    )
    assert only[:3] == (None, None, None)
    assert_same_bits(only[3], four[3])


def test_residual_layouts(dtype):
    """Transposed, broadcast, misplaced: as a contiguous copy."""
    rng = rng_for("residual layouts")
    x, y, bias = random_operands(rng, 20, 8, 30, dtype)
    base = random(rng, (30, 20), dtype)
    for residual in (
        base.T,
        np.broadcast_to(base[0, 0], (20, 30)),
        base.T[::-1],
        random(rng, (40, 60), dtype)[::2, ::2],
    ):
        for out in (None, np.zeros((30, 20), dtype).T):
            got, _ = fge.fused_gemm_epilogue(x, y, bias, activation="gelu", residual=residual, out=out)
            expected, _ = fge.fused_gemm_epilogue(x, y, bias, activation="gelu", residual=residual.copy("C"))
            assert_same_bits(np.ascontiguousarray(got), expected)


@pytest.mark.parametrize(
    "change, error, text",
    (
        (dict(residual=np.zeros((3, 5), np.float32)), ValueError, "residual has shape"),
        (dict(residual=np.zeros((3, 6))), TypeError, "residual has dtype"),
        (dict(residual=[[0.0] * 6] * 3), TypeError, "residual is a list"),
        (dict(residual_at="y"), ValueError, "residual_at is 'y'"),
        (dict(residual_at=None), ValueError, "residual_at"),
    ),
)
def test_residual_errors(change, error, text):
    x, y = np.ones((3, 4), np.float32), np.ones((4, 6), np.float32)
    out = np.full((3, 6), 7, np.float32)
    with pytest.raises(error, match=text):
        fge.fused_gemm_epilogue(x, y, out=out, **change)
    with pytest.raises(ValueError, match="out overlaps residual"):
        fge.fused_gemm_epilogue(x, y, out=out, residual=out)
    assert (out == 7).all()


# --- fused_mlp -------------------------------------------------------------------------------------------------------


def mlp_operands(rng, m, k, h, n, dtype, trans_w):
    shapes = ((m, k), (h, k) if trans_w else (k, h), (h,), (n, h) if trans_w else (h, n), (n,))
    x, w1, b1, w2, b2 = (random(rng, shape, dtype) for shape in shapes)
    scale = lambda w, terms: (w.astype(np.float64) / max(terms, 1) ** 0.5).astype(dtype)  # noqa: E731
    return x, scale(w1, k), b1, scale(w2, h), b2


@pytest.mark.parametrize("trans_w", (False, True))
@pytest.mark.parametrize("m, k, h, n", ((40, 17, 130, 33), (0, 3, 4, 5), (5, 3, 0, 4)))
@EVERY_ACTIVATION
def test_mlp_is_two_calls(activation, m, k, h, n, trans_w, dtype):
    """Each level has the bits of the two calls that it stands for."""
    rng = rng_for("mlp", m, k, h, n, activation)
    x, w1, b1, w2, b2 = mlp_operands(rng, m, k, h, n, dtype, trans_w)
    hidden, reserve = fge.fused_gemm_epilogue(x, w1, b1, False, trans_w, activation)
    expected, _ = fge.fused_gemm_epilogue(hidden, w2, b2, False, trans_w)
    grad = random(rng, expected.shape, dtype)
    dz, w2_grad, b2_grad = fge.fused_gemm_epilogue_grad(
        hidden, w2, None, grad, False, trans_w, x_activation=activation, x_reserve=reserve
    )
    right = (*fge.fused_gemm_epilogue_grad(x, w1, None, dz, False, trans_w), w2_grad, b2_grad)
    for level in (0, 1, 2):
        options = dict(trans_w=trans_w, checkpoint_lvl=level)
        out, saved = fge.fused_mlp(x, w1, b1, w2, b2, activation, **options)
        assert_same_bits(out, expected)
        grads = fge.fused_mlp_grad(x, w1, b1, w2, saved, grad, activation, **options)
        if level != 1 or dtype not in HALVES:
            assert_all_same_bits(grads, right)
        else:  # hidden is made again from z as it was rounded
            for one, other in zip(grads, right):
                close = 64 * epsilon(dtype) * (np.abs(other.astype(np.float64)).max(initial=0) + 1)
                assert np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0) <= close
        for needs in ((True, False, False, False, False), (False, False, False, True, False), (False,) * 5):
            some = fge.fused_mlp_grad(x, w1, b1, w2, saved, grad, activation, needs=needs, **options)
            assert_all_same_bits(some, [one if need else None for one, need in zip(grads, needs)])
    assert fge.fused_mlp(x, w1, b1, w2, b2, activation, trans_w=trans_w, save_reserve=False)[1] is None


@pytest.mark.parametrize("activation, kept", (("gelu", (2, 1, 0)), ("relu", (1, 1, 0)), ("tanh", (1, 1, 0))))
def test_mlp_holds_what_its_level_says(activation, kept):
    """In arrays of hidden's size; the bits of relu count for nothing."""
    x, w1, b1, w2, b2 = mlp_operands(rng_for("held"), 16, 8, 256, 4, FLOAT32, False)
    for level, wanted in enumerate(kept):
        _, saved = fge.fused_mlp(x, w1, b1, w2, b2, activation, checkpoint_lvl=level)
        size = sum(a.nbytes for a in saved if a is not None and a.dtype != np.uint8)
        assert size == wanted * 16 * 256 * 4


def test_mlp_errors():
    x, w1, b1, w2, b2 = mlp_operands(rng_for("errors"), 3, 4, 5, 6, FLOAT32, False)
    out, saved = fge.fused_mlp(x, w1, b1, w2, b2)
    for level in (3, -1, "0", None, 0.5):
        with pytest.raises(ValueError, match="checkpoint_lvl"):
            fge.fused_mlp(x, w1, b1, w2, b2, checkpoint_lvl=level)
    with pytest.raises(ValueError, match="save_reserve=False"):
        fge.fused_mlp_grad(x, w1, b1, w2, None, out)
    with pytest.raises(ValueError, match="another level"):
        fge.fused_mlp_grad(x, w1, b1, w2, saved, out, checkpoint_lvl=2)
    with pytest.raises(ValueError, match="five"):
        fge.fused_mlp_grad(x, w1, b1, w2, saved, out, needs=(True,) * 3)
    with pytest.raises(ValueError, match="K = .*first layer, where y is w1"):
        fge.fused_mlp(x, w2, b1, w2, b2)
    with pytest.raises(ValueError, match="bias has shape .*second layer, .* bias is b2"):
        fge.fused_mlp(x, w1, b1, w2, b1)
    with pytest.raises(TypeError, match="y has dtype .*second layer, .* y is w2"):
        fge.fused_mlp(x, w1, b1, w2.astype(np.float64), b2)


# --- fused_glu -------------------------------------------------------------------------------------------------------


def glu_operands(rng, m, k, n, dtype, trans_w):
    weight = (n, k) if trans_w else (k, n)
    shapes = ((m, k), weight, weight, (n,), (n,))
    x, w_gate, w_up, b_gate, b_up = (random(rng, shape, dtype) for shape in shapes)
    return x, w_gate, w_up, b_gate, b_up


@pytest.mark.parametrize("trans_w", (False, True))
@pytest.mark.parametrize("m, k, n", (*SHAPES, (3, 4, 0), (300, 9, 1100)))
@EVERY_ACTIVATION
def test_glu(activation, m, k, n, trans_w, dtype):
    rng = rng_for("glu", m, k, n, activation)
    x, w_gate, w_up, b_gate, b_up = glu_operands(rng, m, k, n, dtype, trans_w)
    out, saved = fge.fused_glu(x, w_gate, w_up, b_gate, b_up, activation, trans_w=trans_w)
    gate = forward(x, w_gate, b_gate, False, trans_w, "none")
    up = forward(x, w_up, b_up, False, trans_w, "none")
    assert_within(saved[0], gate.out, "z_gate")
    assert_within(saved[1], up.out, "z_up")
    act = forward(x, w_gate, b_gate, False, trans_w, activation).out.value
    # the factors carry the errors of their sums, not of a rounding
    entry = ACTIVATIONS[activation]
    act_error = entry.spread(gate.z.value, gate.z.bound) + 1e-6 * np.abs(act)
    value = act * up.z.value
    bound = (
        act_error * (np.abs(up.z.value) + up.z.bound)
        + np.abs(act) * up.z.bound
        + epsilon(dtype) * np.abs(value)
    )
    error = np.abs(out.astype(np.float64) - value)
    assert (error <= bound + 1e-7 * (dtype in HALVES) + 1e-40).all()
    nothing, none = fge.fused_glu(
        x, w_gate, w_up, b_gate, b_up, activation, trans_w=trans_w, save_reserve=False
    )
    assert none is None
    if dtype not in HALVES:
        assert_close(
            nothing, out.astype(np.float64), np.abs(value).max(initial=1), dtype, 2, "without a reserve"
        )

    grad = random(rng, out.shape, dtype)
    z_gate, z_up, d = wide(*saved, grad)
    d_up, d_gate = d * entry.forward(z_gate), d * z_up * slope(activation, z_gate)
    matrix_gate, matrix_up = (
        w.astype(np.float64).T if trans_w else w.astype(np.float64) for w in (w_gate, w_up)
    )
    expected = [
        d_gate @ matrix_gate.T + d_up @ matrix_up.T,
        x.astype(np.float64).T @ d_gate,
        x.astype(np.float64).T @ d_up,
        d_gate.sum(0),
        d_up.sum(0),
    ]
    magnitudes = [
        np.abs(d_gate) @ np.abs(matrix_gate.T) + np.abs(d_up) @ np.abs(matrix_up.T),
        np.abs(x.astype(np.float64)).T @ np.abs(d_gate),
        np.abs(x.astype(np.float64)).T @ np.abs(d_up),
        np.abs(d_gate).sum(0),
        np.abs(d_up).sum(0),
    ]
    grads = fge.fused_glu_grad(x, w_gate, w_up, saved, grad, activation, trans_w=trans_w)
    for i, (one, right, magnitude) in enumerate(zip(grads, expected, magnitudes)):
        if i in (1, 2) and trans_w:
            right, magnitude = right.T, magnitude.T
        largest = magnitude.max(initial=1)
        assert_close(one, right, largest, dtype, (m, n)[i == 0] + 2, f"gradient {i}")
    needs = (False, True, False, False, True)
    some = fge.fused_glu_grad(x, w_gate, w_up, saved, grad, activation, trans_w=trans_w, needs=needs)
    assert [one is None for one in some] == [not need for need in needs]
    assert_same_bits(some[1], grads[1])
    # without w_up_grad's product the sums may be taken in other blocks
    assert_close(some[4], expected[4], magnitudes[4].max(initial=1), dtype, m + 2, "b_up_grad alone")


def test_glu_layouts_and_threads(dtype):
    """Any strides, batches, an out of the caller's, one thread or three: the same bits."""
    rng = rng_for("glu layouts")
    x, w_gate, w_up, b_gate, b_up = glu_operands(rng, 260, 12, 65, dtype, False)
    expected, saved = fge.fused_glu(x, w_gate, w_up, b_gate, b_up)
    grad = random(rng, expected.shape, dtype)
    grads = fge.fused_glu_grad(x, w_gate, w_up, saved, grad)
    for threads in (1, 3):
        with fge.threads(threads):
            out = np.full((260, 70), np.nan, dtype)[:, 2:67]
            got, again = fge.fused_glu(
                np.asfortranarray(x),
                w_gate[:, ::-1].copy()[:, ::-1],
                np.asfortranarray(w_up),
                b_gate,
                b_up,
                out=out,
            )
            assert got is out
            assert_same_bits(np.ascontiguousarray(out), expected)
            assert_all_same_bits(again, saved)
            assert_all_same_bits(
                fge.fused_glu_grad(np.asfortranarray(x), w_gate, w_up, saved, grad.T.copy().T), grads
            )
    batched, _ = fge.fused_glu(x.reshape(4, 65, 12), w_gate, w_up, b_gate, b_up)
    assert_same_bits(batched.reshape(260, 65), expected)


def test_glu_errors():
    x, w_gate, w_up, b_gate, b_up = glu_operands(rng_for("glu errors"), 3, 4, 5, FLOAT32, False)
    out, saved = fge.fused_glu(x, w_gate, w_up, b_gate, b_up)
    for arguments, error, text in (
        ((x, w_gate, w_up[:, :4]), ValueError, r"w_up has shape \(4, 4\)"),
        ((x, w_gate.T, w_up), ValueError, "w_gate has shape"),
        ((x[0], w_gate, w_up), ValueError, "rank 2"),
        ((x, w_gate, w_up.astype(np.float64)), TypeError, "w_up has dtype"),
        ((x, w_gate, w_up, b_gate[:2]), ValueError, "b_gate has shape"),
        ((x, w_gate, w_up, None, b_up.astype(np.float16)), TypeError, "b_up has dtype"),
        ((x, w_gate, w_up, None, None, "swish"), ValueError, "'swish'"),
    ):
        with pytest.raises(error, match=text):
            fge.fused_glu(*arguments)
    with pytest.raises(ValueError, match="out overlaps w_up"):
        fge.fused_glu(x, w_gate, w_up, out=w_up[:3])
    for reserve, error in (
        (None, ValueError),
        (saved[0], TypeError),
        ((saved[0], saved[1][:, :2]), ValueError),
    ):
        with pytest.raises(error, match="reserve"):
            fge.fused_glu_grad(x, w_gate, w_up, reserve, out)
    with pytest.raises(ValueError, match="out_grad"):
        fge.fused_glu_grad(x, w_gate, w_up, saved, out[:, :2])
    with pytest.raises(ValueError, match="needs"):
        fge.fused_glu_grad(x, w_gate, w_up, saved, out, needs=(True,) * 3)


def test_float32_bias_beside_halves():
    x, w_gate, w_up, _, _ = glu_operands(rng_for("bias"), 4, 5, 6, BFLOAT16, False)
    bias = np.linspace(-1, 1, 6, dtype=np.float32)
    out, (z_gate, _) = fge.fused_glu(x, w_gate, w_up, bias)
    assert_within(z_gate, forward(x, w_gate, bias).out)
    assert out.dtype == BFLOAT16
