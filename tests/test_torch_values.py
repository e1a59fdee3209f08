"""`fge.torch.linear_act`: values and gradients against the float64 reference, over dtypes, shapes and strides."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference
from reference import FLOAT32, HALVES
from torch_bridge import array, plain_linear_act, random_tensors, tensor

import fge
from fge.torch import linear_act

ACTIVATIONS = fge.activations()


def operands(rng, x_shape, n, dtype):
    """x, weight, bias, out_grad."""
    shapes = x_shape, (n, x_shape[-1]), (n,), (*x_shape[:-1], n)
    return [reference.random(rng, shape, dtype) for shape in shapes]


def check(x, weight, bias, out_grad, activation):
    """Arrays of any strides in; x of rank 1 too."""
    tensors = [None if a is None else tensor(a, requires_grad=True) for a in (x, weight, bias)]
    out = linear_act(*tensors, activation)
    given = [t for t in tensors if t is not None]
    grads = torch.autograd.grad(out, given, tensor(out_grad))
    assert out.is_contiguous() and all(g.is_contiguous() for g in grads)
    assert [(g.dtype, g.shape) for g in grads] == [(t.dtype, t.shape) for t in given]

    rows = x.reshape(-1, x.shape[-1]) if x.size else np.zeros((out_grad[..., 0].size, x.shape[-1]), x.dtype)
    forward = reference.forward(rows, weight, bias, trans_y=True, activation=activation)
    actual = array(out).reshape(forward.out.value.shape)
    reference.assert_within(actual, forward.out, "out")

    _, reserve = fge.fused_gemm_epilogue(rows, weight, bias, trans_y=True, activation=activation)
    initial = (None, None, None if bias is None or bias.dtype == x.dtype else np.zeros(len(bias), bias.dtype))
    out_grad = out_grad.reshape(actual.shape)
    expected = reference.backward(
        rows, weight, reserve, out_grad, trans_y=True, activation=activation, initial=initial
    )
    for name, grad, bounded in zip(("x_grad", "weight_grad", "bias_grad"), grads, expected):
        reference.assert_within(array(grad).reshape(bounded.value.shape), bounded, name)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", (True, False))
def test_values_and_gradients(dtype, activation, has_bias):
    rng = reference.rng_for("values", dtype, activation, has_bias)
    x, weight, bias, out_grad = operands(rng, (37, 29), 131, dtype)
    check(x, weight, bias if has_bias else None, out_grad, activation)


@pytest.mark.parametrize("activation", ("relu", "gelu", "tanh"))
@pytest.mark.parametrize("x_shape", ((5,), (1, 5), (2, 3, 5), (2, 1, 3, 5), (7, 1), (1,), (33, 64)), ids=str)
@pytest.mark.parametrize("n", (1, 7, 128, 129))
def test_ranks_and_shapes(x_shape, n, activation):
    rng = reference.rng_for("ranks", x_shape, n, activation)
    check(*operands(rng, x_shape, n, FLOAT32), activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    "x_shape, n", (((0, 4), 5), ((3, 0), 5), ((3, 4), 0), ((2, 0, 4), 5), ((0,), 5)), ids=str
)
def test_sizes_of_zero(x_shape, n, activation):
    """As PyTorch's own operators have it: empty results, act(bias) for no terms, gradients of zero."""
    tensors = random_tensors(x_shape, (n, x_shape[-1]), (n,))
    results = []
    for function in (linear_act, plain_linear_act):
        out = function(*tensors, activation)
        grads = torch.autograd.grad(out, tensors, torch.ones_like(out))
        results.append([out, *grads])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)


def test_the_same_bits_as_the_numpy_operator(dtype):
    rng = reference.rng_for("same bits", dtype)
    x, weight, bias, out_grad = operands(rng, (67, 45), 200, dtype)
    for activation in ACTIVATIONS:
        tensors = [tensor(a, requires_grad=True) for a in (x, weight, bias)]
        out = linear_act(*tensors, activation)
        grads = torch.autograd.grad(out, tensors, tensor(out_grad))
        numpy_out, reserve = fge.fused_gemm_epilogue(x, weight, bias, trans_y=True, activation=activation)
        numpy_grads = fge.fused_gemm_epilogue_grad(
            x, weight, reserve, out_grad, trans_y=True, activation=activation
        )
        reference.assert_same_bits(array(out), numpy_out)
        reference.assert_all_same_bits([array(g) for g in grads], numpy_grads)


STRIDES = {
    "columns of a larger x": lambda a: np.repeat(a, 3, axis=-1)[..., 1::3],
    "rows of a larger x": lambda a: np.repeat(a, 2, axis=0)[::2],
    "transposed memory": lambda a: np.asfortranarray(a),
    "rows with a gap": lambda a: np.concatenate([a, a], axis=-1)[..., : a.shape[-1]],
}


@pytest.mark.parametrize("which", range(4), ids=("x", "weight", "bias", "out_grad"))
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("x_shape", ((9, 12), (2, 5, 12), (2, 3, 4, 12)), ids=str)
def test_any_strides(x_shape, strides, which):
    arrays = operands(reference.rng_for("strides", x_shape, strides, which), x_shape, 17, FLOAT32)
    contiguous = [tensor(a.copy(), requires_grad=True) for a in arrays]
    arrays[which] = STRIDES[strides](arrays[which])
    strided = [tensor(a, requires_grad=True) for a in arrays]
    results = []
    for x, weight, bias, out_grad in (contiguous, strided):
        out = linear_act(x, weight, bias, "gelu")
        results.append([out, *torch.autograd.grad(out, (x, weight, bias), out_grad.detach())])
    for one, other in zip(*results):
        reference.assert_same_bits(array(one), array(other))


def test_expanded_tensors():
    x = torch.randn(12).expand(7, 12)
    weight = torch.randn(1, 12).expand(5, 12)
    bias = torch.tensor(3.0).expand(5)
    out_grad = torch.tensor(0.5).expand(7, 5)
    results = []
    for tensors in ((x, weight, bias), (x.clone(), weight.clone(), bias.clone())):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = linear_act(*leaves, "relu")
        results.append([out, *torch.autograd.grad(out, leaves, out_grad)])
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_an_axis_of_length_one_may_have_any_stride():
    x = torch.as_strided(torch.randn(100), (1, 8), (3, 1))
    column = torch.as_strided(torch.randn(100), (8, 1), (1, 97))
    weight = torch.randn(5, 8)
    assert torch.equal(linear_act(x, weight), linear_act(x.clone(), weight))
    assert torch.equal(linear_act(column, weight[:, :1]), linear_act(column.clone(), weight[:, :1].clone()))


def test_signs_that_are_put_off_are_applied():
    """torch.imag of a conjugate is a real tensor whose memory holds the opposite sign."""
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    weight = torch.randn(5, 4, requires_grad=True)
    out = linear_act(x, weight)
    torch.testing.assert_close(out, x.resolve_neg() @ weight.T)
    out_grad = torch.randn(3, 5, dtype=torch.complex64).conj().imag
    (grad,) = torch.autograd.grad(out, weight, out_grad)
    torch.testing.assert_close(grad, out_grad.resolve_neg().T @ x.resolve_neg())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
def test_float32_bias_beside_a_half_type(dtype, activation):
    """It is added to float32 sums, and its gradient is not rounded to the half type."""
    rng = reference.rng_for("float32 bias", dtype, activation)
    x, weight, _, out_grad = operands(rng, (40, 30), 50, dtype)
    check(x, weight, reference.random(rng, (50,), FLOAT32), out_grad, activation)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_a_sum_in_a_half_type_does_not_stick(dtype):
    ones = torch.ones(4096, 1, dtype=dtype)
    bias = torch.zeros(2, dtype=dtype, requires_grad=True)
    out = linear_act(ones, torch.ones(2, 1, dtype=dtype), bias)
    assert torch.autograd.grad(out, bias, torch.ones_like(out))[0].tolist() == [4096, 4096]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_which_activation_is_meant(activation):
    x, weight, bias = random_tensors((50, 20), (30, 20), (30,), requires_grad=False)
    x *= 3
    expected = plain_linear_act(x, weight, bias, activation)
    torch.testing.assert_close(linear_act(x, weight, bias, activation), expected)


def test_the_two_gelus_differ():
    z, one = torch.tensor([[2.7]]), torch.ones(1, 1)
    assert linear_act(z, one, None, "gelu").item() == pytest.approx(2.6911124, abs=2e-7)
    assert linear_act(z, one, None, "gelu_erf").item() == pytest.approx(2.6906392, abs=2e-7)


def test_relu_keeps_nan_and_blocks_what_comes_back():
    x = torch.tensor([[float("nan"), 0.0], [-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], requires_grad=True)
    out = linear_act(x, torch.eye(2), None, "relu")
    assert out[0, 0].isnan() and out[1:, 0].tolist() == [0, 0, 1]
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert grad[:, 0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("threads", (1, 2, 5))
def test_any_number_of_threads_gives_the_same_bits(threads):
    tensors = random_tensors((300, 200), (400, 200), (400,))
    out = linear_act(*tensors, "gelu")
    grads = torch.autograd.grad(out, tensors, torch.ones_like(out))
    with fge.threads(threads):
        again = linear_act(*tensors, "gelu")
        grads_again = torch.autograd.grad(again, tensors, torch.ones_like(out))
    assert torch.equal(out, again) and all(map(torch.equal, grads, grads_again))
