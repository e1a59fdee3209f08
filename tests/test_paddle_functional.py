"""What is built on the operator in eager mode: Paddle's functions and layers, and a network that trains."""

import itertools

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import reference
from paddle.incubate.nn import FusedLinear
from paddle.incubate.nn.functional import fused_linear, fused_linear_activation, fused_matmul_bias
from paddle_bridge import array, tensor

import fge.paddle

FLOAT32 = np.dtype(np.float32)


def operands(*parts, n, dtype=FLOAT32):
    rng = reference.rng_for(*parts, n, dtype)
    x = reference.random(rng, (2, 3, 4), dtype)
    y, bias = reference.random(rng, (4, n), dtype), reference.random(rng, (n,), dtype)
    return x, y, bias, reference.random(rng, (2, 3, n), dtype)


@pytest.mark.parametrize("n", (128, 8, 7))
@pytest.mark.parametrize(
    "activation, function",
    (
        ("none", lambda x, y, b: fused_linear(x, y, b)),
        ("none", lambda x, y, b: fused_linear(x, y.t(), b, transpose_weight=True)),
        ("none", lambda x, y, b: fused_matmul_bias(x, y, b)),
        ("none", lambda x, y, b: fused_matmul_bias(x.transpose([0, 2, 1]), y.t(), b, True, True)),
        ("none", lambda x, y, b: fused_linear_activation(x, y, b)),
        ("relu", lambda x, y, b: fused_linear_activation(x, y, b, activation="relu")),
        ("gelu", lambda x, y, b: fused_linear_activation(x, y, b, activation="gelu")),
        ("gelu", lambda x, y, b: fused_linear_activation(x, y.t(), b, trans_y=True, activation="gelu")),
    ),
)
def test_functions_and_their_gradients(activation, function, n, dtype):
    x, y, bias, out_grad = operands("functions", activation, n=n, dtype=dtype)
    tensors = [tensor(a, needs_grad=True) for a in (x, y, bias)]
    out = function(*tensors)
    forward = reference.forward(x, y, bias, activation=activation)
    reference.assert_within(array(out), forward.out)
    kept = reference.make_reserve(activation, forward.z.value, dtype)
    kept = kept.reshape(out_grad.shape) if activation == "gelu" else kept
    expected = list(reference.backward(x, y, kept, out_grad, activation=activation))
    for bounded in expected:  # the reserve itself may differ by what the product may be off
        bounded.bound += 32 * reference.epsilon(dtype)
    for grads in (
        paddle.grad(out, tensors, tensor(out_grad), retain_graph=True),
        backward(out, tensors, out_grad),
    ):
        for grad, bounded in zip(grads, expected):
            reference.assert_within(array(grad), bounded)


def backward(out, tensors, out_grad):
    out.backward(tensor(out_grad))
    return [t.grad for t in tensors]


def test_without_bias():
    x, y, _, _ = operands("no bias", n=7)
    reference.assert_within(array(fused_linear(tensor(x), tensor(y))), reference.forward(x, y).out)


@pytest.mark.parametrize("transpose_weight", (False, True))
@pytest.mark.parametrize("bias_attr", (None, False))
def test_fused_linear_layer(transpose_weight, bias_attr):
    layer = FusedLinear(4, 7, bias_attr=bias_attr, transpose_weight=transpose_weight)
    plain = paddle.nn.Linear(4, 7)
    plain.weight.set_value(layer.weight.t() if transpose_weight else layer.weight)
    x = paddle.rand([2, 3, 4])
    loss, plain_loss = layer(x).square().sum(), plain(x).square().sum() if bias_attr is None else None
    if plain_loss is not None:
        loss.backward()
        plain_loss.backward()
        grad = layer.weight.grad.t() if transpose_weight else layer.weight.grad
        np.testing.assert_allclose(array(grad), array(plain.weight.grad), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(array(layer.bias.grad), array(plain.bias.grad), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
@pytest.mark.parametrize("n", (128, 8, 7))
@pytest.mark.parametrize("needs", tuple(itertools.product((True, False), repeat=3)), ids=str)
def test_frozen_operands(needs, n, activation):
    """Exactly the gradients asked for, and their bits are those of the full result."""
    x, y, bias, out_grad = operands("frozen", activation, n=n)

    def gradients(wanted):
        tensors = [tensor(a, need) for a, need in zip((x, y, bias), wanted)]
        out = fused_linear_activation(*tensors, activation=activation)
        assert out.stop_gradient == (not any(wanted))
        return backward(out, tensors, out_grad) if any(wanted) else [None] * 3

    for need, grad, full in zip(needs, gradients(needs), gradients((True, True, True))):
        assert (grad is not None) == need
        if need:
            reference.assert_same_bits(array(grad), array(full))


@pytest.mark.parametrize("activation", ("none", "gelu"))
@pytest.mark.parametrize("n", (128, 7))
def test_second_derivatives_are_refused(n, activation):
    """Never a wrong value: Paddle has no gradient of the gradient operator."""
    x, y, bias, _ = (tensor(a, needs_grad=True) for a in operands("twice", n=n))
    out = fused_linear_activation(x, y, bias, activation=activation)
    with pytest.raises((RuntimeError, OSError), match="create_graph"):
        paddle.grad(out.sum(), x, create_graph=True)


@pytest.mark.parametrize("n", (128, 7))
def test_gradients_accumulate_over_uses(n):
    x, y, bias, out_grad = operands("accumulate", n=n)
    x_, y_, bias_ = (tensor(a, needs_grad=True) for a in (x, y, bias))
    once = backward(fused_linear_activation(x_, y_, bias_, activation="relu"), (x_, y_, bias_), out_grad)
    once = [array(grad) for grad in once]
    twice = backward(fused_linear_activation(x_, y_, bias_, activation="relu"), (x_, y_, bias_), out_grad)
    for one, two in zip(once, twice):
        reference.assert_same_bits(array(two), one + one)


@pytest.mark.parametrize("n", (128, 24, 7))
@pytest.mark.parametrize("position", (0, 1))
def test_operands_that_change_before_backward_are_noticed(position, n):
    x, y, bias, _ = (tensor(a, needs_grad=True) for a in operands("in place", n=n))
    operands_ = [x * 1, y * 1]
    out = fused_linear_activation(*operands_, bias, activation="relu")
    operands_[position].add_(paddle.ones([1]))
    with pytest.raises((RuntimeError, OSError), match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_that_its_derivative_needs_is_watched():
    x, y, bias, _ = (tensor(a, needs_grad=True) for a in operands("out in place", n=7))
    for activation in ("relu", "sigmoid"):
        out = fge.paddle.linear_act(x, y, bias, activation)
        out.add_(paddle.ones([1]))
        if activation == "relu":  # its reserve is bits
            out.sum().backward()
        else:
            with pytest.raises((RuntimeError, OSError), match="modified by an inplace operation"):
                out.sum().backward()


@pytest.mark.parametrize("n", (128, 7))
def test_recompute(n):
    """fleet's activation checkpointing."""
    from paddle.distributed.fleet.utils import recompute

    x, y, bias, _ = (tensor(a, needs_grad=True) for a in operands("recompute", n=n))

    def layer(x):
        return fused_linear_activation(x, y, bias, activation="gelu")

    grads = []
    for out in (layer(x), recompute(layer, x)):
        out.sum().backward()
        grads.append([array(t.grad) for t in (x, y, bias)])
        for t in (x, y, bias):
            t.clear_gradient()
    for one, other in zip(*grads):
        reference.assert_same_bits(one, other)


def test_no_grad_and_eval():
    x, y, bias, _ = (tensor(a, needs_grad=True) for a in operands("no grad", n=7))
    with paddle.no_grad():
        assert fused_linear_activation(x, y, bias, activation="gelu").stop_gradient


def test_fleet_finds_the_operator():
    from paddle.distributed.fleet.layers.mpu import mp_layers

    assert mp_layers.is_fused_matmul_bias_supported()


def test_column_parallel_linear_of_one_process():
    """fleet's layer asks for the operator, builds with it and trains. A process of its own: fleet.init is for
    good.
    """
    import processes

    processes.run_python(processes.TESTS / "paddle_children.py", "column_parallel_linear")


def test_column_parallel_linear_of_two_processes():
    """By gloo, as far as Paddle has it on CPUs."""
    import concurrent.futures
    import socket

    import processes

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = min(probe.getsockname()[1], 65000)
    child = processes.TESTS / "paddle_children.py"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(
            pool.map(lambda rank: processes.run_python(child, "column_parallel_of_two", rank, port), range(2))
        )


@pytest.mark.parametrize("name", ("bfloat16", "float16"))
def test_layers_in_half_precision(name):
    """`layer.to(dtype=..)` makes a network of half-precision parameters."""
    layer = FusedLinear(16, 24)
    layer.to(dtype=name)
    x = paddle.rand([8, 16]).astype(name)
    out = layer(x)
    out.sum().backward()
    assert out.dtype == x.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype


class Network(paddle.nn.Layer):
    """Two layers, from the same parameters either of the fused operator or of Paddle's plain ones."""

    def __init__(self, width, hidden, classes, activation, fused, parameters):
        super().__init__()
        self.activation = activation
        self.fused = fused
        self.w1, self.b1, self.w2, self.b2 = (
            paddle.create_parameter(
                list(values.shape), "float32", default_initializer=paddle.nn.initializer.Assign(values)
            )
            for values in parameters
        )

    def forward(self, x):
        if self.fused:
            h = fused_linear_activation(x, self.w1, self.b1, activation=self.activation)
            return fused_linear(h, self.w2, self.b2)
        functional = paddle.nn.functional
        h = functional.linear(x, self.w1, self.b1)
        h = functional.relu(h) if self.activation == "relu" else functional.gelu(h, approximate=True)
        return functional.linear(h, self.w2, self.b2)


def losses(network, inputs, labels, steps, optimizer):
    optimizer = optimizer(parameters=network.parameters())
    result = []
    for step in range(steps):
        batch = slice(32 * step % len(inputs), 32 * step % len(inputs) + 32)
        loss = paddle.nn.functional.cross_entropy(network(tensor(inputs[batch])), tensor(labels[batch]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        result.append(float(loss))
    return np.array(result)


@pytest.mark.parametrize("activation", ("relu", "gelu"))
@pytest.mark.parametrize("hidden, classes", ((128, 10), (64, 10), (77, 9)))
def test_training_follows_plain_operators(hidden, classes, activation):
    """200 steps of a two-layer network: the losses are those of Paddle's operators to 1e-4 relative, and
    fall.
    """
    rng = reference.rng_for("training", hidden, classes, activation)
    inputs = rng.standard_normal((320, 20)).astype(np.float32)
    labels = (np.abs(inputs[:, :classes])).argmax(axis=1)[:, None]
    parameters = [
        (rng.standard_normal(shape) * scale).astype(np.float32)
        for shape, scale in (
            ((20, hidden), 0.2),
            ((hidden,), 0.1),
            ((hidden, classes), 0.1),
            ((classes,), 0.1),
        )
    ]
    fused, plain = (
        losses(
            Network(20, hidden, classes, activation, fused, parameters),
            inputs,
            labels,
            200,
            lambda parameters: paddle.optimizer.Momentum(0.05, parameters=parameters),
        )
        for fused in (True, False)
    )
    np.testing.assert_allclose(fused, plain, rtol=1e-4)
    assert fused[-10:].mean() < 0.6 * fused[:10].mean()
