"""fused_mlp and fused_glu of fge.paddle: the bits of the numpy functions, and what Paddle's autograd makes of them."""

import itertools

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import reference
from paddle_bridge import array, tensor

import fge
from fge.paddle import fused_glu, fused_mlp, linear_act

FLOAT32 = np.dtype(np.float32)
EVERY_ACTIVATION = pytest.mark.parametrize("activation", tuple(reference.ACTIVATIONS))
LEVELS = pytest.mark.parametrize("level", (0, 1, 2))


def mlp_arrays(dtype=FLOAT32, x_shape=(2, 5, 6)):
    rng = reference.rng_for("paddle mlp", dtype, x_shape)
    return [
        reference.random(rng, s, dtype) for s in (x_shape, (6, 9), (9,), (9, 4), (4,), (*x_shape[:-1], 4))
    ]


def glu_arrays(dtype=FLOAT32, x_shape=(2, 5, 6)):
    rng = reference.rng_for("paddle glu", dtype, x_shape)
    return [
        reference.random(rng, s, dtype) for s in (x_shape, (6, 9), (6, 9), (9,), (9,), (*x_shape[:-1], 9))
    ]


def tensors_of(arrays, needs=(True,) * 5):
    return [None if a is None else tensor(a, needs_grad=need) for a, need in zip(arrays, needs)]


def check(out, tensors, out_grad, expected_out, expected_grads):
    """Values and all gradients, bit by bit."""
    reference.assert_same_bits(array(out), expected_out)
    out.backward(tensor(out_grad))
    for one, grad in zip(tensors, expected_grads):
        if one is not None:
            reference.assert_same_bits(array(one.grad), grad)


@LEVELS
@pytest.mark.parametrize("x_shape", ((2, 5, 6), (0, 6), (3, 6)), ids=str)
@EVERY_ACTIVATION
def test_mlp_has_the_bits_of_numpy(activation, x_shape, level, dtype):
    *arrays, out_grad = mlp_arrays(dtype, x_shape)
    tensors = tensors_of(arrays)
    out, reserve = fge.fused_mlp(*arrays, activation, checkpoint_lvl=level)
    grads = fge.fused_mlp_grad(*arrays[:4], reserve, out_grad, activation, checkpoint_lvl=level)
    check(fused_mlp(*tensors, activation, level), tensors, out_grad, out, grads)


@pytest.mark.parametrize("x_shape", ((2, 5, 6), (0, 6), (3, 6)), ids=str)
@EVERY_ACTIVATION
def test_glu_has_the_bits_of_numpy(activation, x_shape, dtype):
    *arrays, out_grad = glu_arrays(dtype, x_shape)
    tensors = tensors_of(arrays)
    out, reserve = fge.fused_glu(*arrays, activation)
    grads = fge.fused_glu_grad(*arrays[:3], reserve, out_grad, activation)
    check(fused_glu(*tensors, activation), tensors, out_grad, out, grads)


def test_without_biases():
    *arrays, out_grad = mlp_arrays()
    arrays[2] = arrays[4] = None
    tensors = tensors_of(arrays)
    out, reserve = fge.fused_mlp(*arrays)
    check(fused_mlp(*tensors), tensors, out_grad, out, fge.fused_mlp_grad(*arrays[:4], reserve, out_grad))
    *arrays, out_grad = glu_arrays()
    arrays[3] = arrays[4] = None
    tensors = tensors_of(arrays)
    out, reserve = fge.fused_glu(*arrays)
    check(fused_glu(*tensors), tensors, out_grad, out, fge.fused_glu_grad(*arrays[:3], reserve, out_grad))


@pytest.mark.parametrize("needs", tuple(itertools.product((True, False), repeat=5)), ids=str)
def test_frozen_operands(needs):
    """A gradient for exactly those that want one, with the bits of all of them."""
    for function, arrays in (
        (lambda *t: fused_mlp(*t, "gelu", 1), mlp_arrays()),
        (lambda *t: fused_mlp(*t, "relu", 2), mlp_arrays()),
        (fused_glu, glu_arrays()),
    ):
        *arrays, out_grad = arrays
        every, some = tensors_of(arrays), tensors_of(arrays, needs)
        function(*every).backward(tensor(out_grad))
        out = function(*some)
        assert out.stop_gradient == (not any(needs))
        if any(needs):
            out.backward(tensor(out_grad))
        for full, one, need in zip(every, some, needs):
            assert (one.grad is not None) == need
            if need:
                reference.assert_same_bits(array(one.grad), array(full.grad))


def test_strided_operands():
    for function, arrays in ((fused_mlp, mlp_arrays()), (fused_glu, glu_arrays())):
        *arrays, out_grad = arrays
        plain = tensors_of(arrays)
        strided = [t.t().contiguous().t() if t.ndim == 2 else t for t in tensors_of(arrays, (False,) * 5)]
        for t in strided:
            t.stop_gradient = False
        outs = [function(*operands) for operands in (plain, strided)]
        reference.assert_same_bits(array(outs[1]), array(outs[0]))
        for out in outs:
            out.backward(tensor(out_grad))
        for one, other in zip(plain, strided):
            reference.assert_same_bits(array(other.grad), array(one.grad))


def test_memory_held_falls_with_the_level():
    """Bytes saved between forward and backward, operands aside."""
    held = []
    for level in (0, 1, 2):
        rng = reference.rng_for("paddle memory")
        arrays = [reference.random(rng, s, FLOAT32) for s in ((64, 16), (16, 256), (256,), (256, 16), (16,))]
        tensors = tensors_of(arrays)
        known = {t.data_ptr() for t in tensors}
        saved = []
        with paddle.autograd.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
            fused_mlp(*tensors, "gelu", level)
        held.append(sum(t.numel().item() * 4 for t in saved if t is not None and t.data_ptr() not in known))
    assert held == [2 * 64 * 256 * 4, 64 * 256 * 4, 0]


@pytest.mark.parametrize("full_graph", (True, False))
@pytest.mark.parametrize("name", ("fused_mlp", "fused_glu"))
def test_to_static_equals_eager(name, full_graph):
    function, arrays = (fused_mlp, mlp_arrays()) if name == "fused_mlp" else (fused_glu, glu_arrays())
    *arrays, out_grad = arrays
    results = []

    def five(a, b, c, d, e):  # to_static wants a signature without a star
        return function(a, b, c, d, e)

    for called in (five, paddle.jit.to_static(five, full_graph=full_graph)):
        tensors = tensors_of(arrays)
        out = called(*tensors)
        out.backward(tensor(out_grad))
        results.append([array(out), *(array(t.grad) for t in tensors)])
    for eager, static in zip(*results):
        np.testing.assert_allclose(static, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", range(4))
def test_operands_that_change_before_backward_are_noticed(position):
    """Those whose values the backward reads: for the recomputing level the first bias too."""
    for function, arrays, reads in (
        (lambda *t: fused_mlp(*t, "gelu", 2), mlp_arrays(), (0, 1, 2, 3)),
        (lambda *t: fused_mlp(*t, "gelu", 0), mlp_arrays(), (0, 1, 3)),
        (fused_glu, glu_arrays(), (0, 1, 2)),
    ):
        *arrays, _ = arrays
        tensors = [t * 1 for t in tensors_of(arrays)]
        out = function(*tensors)
        tensors[position].add_(paddle.ones([1]))
        if position in reads:
            with pytest.raises((RuntimeError, OSError), match="modified by an inplace operation"):
                out.sum().backward()
        else:
            out.sum().backward()


@pytest.mark.parametrize("function, arrays", ((fused_mlp, mlp_arrays), (fused_glu, glu_arrays)))
def test_second_derivatives_are_refused(function, arrays):
    tensors = tensors_of(arrays()[:-1])
    with pytest.raises((NotImplementedError, RuntimeError, OSError), match="create_graph"):
        paddle.grad(function(*tensors).sum(), tensors[0], create_graph=True)


def test_errors():
    """Each names the argument; none ends the process."""
    x, w1, b1, w2, b2 = tensors_of(mlp_arrays()[:-1])
    double = w1.astype("float64")
    for call, error, text in (
        (lambda: fused_mlp(x, w1, b1, w2, b2, "swish"), ValueError, "'swish'"),
        (lambda: fused_mlp(x, w1, b1, w2, b2, "gelu", 3), ValueError, "checkpoint_lvl"),
        (lambda: fused_mlp(x, w2, b1, w2, b2), ValueError, "first layer"),
        (lambda: fused_mlp(x, w1, b2, w2, b2), ValueError, "bias must have shape .* first layer"),
        (lambda: fused_mlp(x, w1, b1, w1, b2), ValueError, "second layer"),
        (lambda: fused_mlp(x, w1, b1, w2.astype("float64"), b2), ValueError, "one dtype .* second layer"),
        (lambda: fused_mlp(x, w1, b1, None, b2), TypeError, "w2"),
        (lambda: fused_mlp(array(x), w1, b1, w2, b2), TypeError, "x is of type ndarray"),
        (lambda: fused_glu(x, w1, w1[:, :3]), ValueError, "w_up must have the shape of w_gate"),
        (lambda: fused_glu(x, w1, w1[:, :1].squeeze(1)), ValueError, "w_up"),
        (lambda: fused_glu(x, w1, double), ValueError, "w_up is of float64"),
        (lambda: fused_glu(x, w2, w2), ValueError, "w_gate has K = 9"),
        (lambda: fused_glu(x, w1, w1, b2), ValueError, "b_gate must have shape"),
        (lambda: fused_glu(x, w1, w1, b1, b2), ValueError, "b_up must have shape"),
        (lambda: fused_glu(x.sum(), w1, w1), ValueError, "x has rank 0"),
        (lambda: fused_glu(x, w1.sum(), w1), ValueError, "w_gate has rank 0"),
        (lambda: fused_glu(x.astype("int32"), w1, w1), ValueError, "x is of"),
        (lambda: fused_glu(x, w1, w1, activation="swish"), ValueError, "'swish'"),
        (lambda: linear_act(array(x), w1), TypeError, "x is of type ndarray"),
        (lambda: linear_act(x, None), TypeError, "weight"),
        (lambda: linear_act(x, w1.sum()), ValueError, "rank 0"),
    ):
        with pytest.raises(error, match=text):
            call()
    assert fused_mlp(x, w1, b1, w2, b2).shape == [2, 5, 4]
