"""The operator in static graphs: Executor, to_static, saved programs, and auto_cast."""

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import processes
import reference
from paddle.incubate.nn.functional import fused_linear, fused_linear_activation, fused_matmul_bias
from paddle_bridge import array, tensor

import fge.paddle  # noqa: F401

ACTIVATIONS = ("none", "relu", "gelu")
FLOAT32 = np.dtype(np.float32)
# Static graphs take arrays of these; bfloat16 has no numpy dtype that Paddle feeds.
FED_DTYPES = ("float32", "float64", "float16")


@pytest.fixture
def static():
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            yield
    finally:
        paddle.disable_static()


def run(feed, fetch):
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    return executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=fetch)


def operands(*parts, n, dtype=FLOAT32, trans_x=False, trans_y=False):
    rng = reference.rng_for(*parts, n, dtype)
    x = reference.random(rng, (2, 4, 6) if trans_x else (2, 6, 4), dtype)
    y = reference.random(rng, (n, 4) if trans_y else (4, n), dtype)
    return x, y, reference.random(rng, (n,), dtype), reference.random(rng, (2, 6, n), dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
@pytest.mark.parametrize("trans_x, trans_y", ((False, False), (True, False), (False, True), (True, True)))
@pytest.mark.parametrize("name", FED_DTYPES)
def test_executor(static, name, trans_x, trans_y, n, activation):
    """Values, reserve and, where the graph asks for them, gradients, with a batch size known at run time."""
    dtype = np.dtype(name)
    arrays = operands(
        "executor", trans_x, trans_y, activation, n=n, dtype=dtype, trans_x=trans_x, trans_y=trans_y
    )
    x, y, bias, out_grad = arrays
    feed = dict(zip(("x", "y", "bias", "out_grad"), arrays))
    values = [
        paddle.static.data(k, [-1, *v.shape[1:]] if v.ndim == 3 else v.shape, name) for k, v in feed.items()
    ]

    inference, _ = paddle._C_ops.fused_gemm_epilogue(*values[:3], trans_x, trans_y, activation)
    for value in values[:3]:
        value.stop_gradient = False
    out = fused_linear_activation(*values[:3], trans_x=trans_x, trans_y=trans_y, activation=activation)
    grads = paddle.static.gradients([out], values[:3], [values[3]])
    results = run(feed, [inference, out, *grads])

    forward = reference.forward(x, y, bias, trans_x, trans_y, activation)
    # The activation may be an operator of its own, which rounds z once more, and Paddle before 3.2 truncates
    # where it casts to float16: two ulps of z and two of out.
    z_bound = 4 * reference.rounding_error(forward.z.value, dtype).reshape(out_grad.shape)
    bound = forward.out.bound + 1.13 * z_bound + 3 * reference.rounding_error(forward.out.value, dtype)
    for result in results[:2]:
        reference.assert_within(result, reference.Bounded(forward.out.value, bound))
    kept = reference.make_reserve(activation, forward.z.value, dtype)
    kept = kept.reshape(out_grad.shape) if activation == "gelu" else kept
    for result, bounded in zip(
        results[2:], reference.backward(x, y, kept, out_grad, trans_x, trans_y, activation)
    ):
        largest = max(1.0, np.abs(bounded.value).max())
        bounded.bound += 64 * reference.epsilon(dtype) * largest  # of Paddle's own derivative, and of z
        reference.assert_within(result, bounded)


def test_inference_in_a_static_graph_is_fused(static):
    """Where no gradient is asked for, one operator computes all and leaves its reserve."""
    x, y, bias, _ = operands("fused", n=128)
    values = [paddle.static.data(k, v.shape, "float32") for k, v in zip("xyb", (x, y, bias))]
    out, reserve = paddle._C_ops.fused_gemm_epilogue(*values, False, False, "relu")
    assert out.get_defining_op().attrs()["activation"] == "relu"
    out, reserve = run(dict(zip("xyb", (x, y, bias))), [out, reserve])
    expected = reference.forward(x, y, bias, activation="relu")
    reference.check_reserve(reserve, out, expected, "relu")


def test_functions_in_a_static_graph(static):
    x, y, bias, _ = operands("functions", n=7)
    x_, y_, b_ = (paddle.static.data(k, v.shape, "float32") for k, v in zip("xyb", (x, y, bias)))
    results = run(dict(zip("xyb", (x, y, bias))), [fused_linear(x_, y_, b_), fused_matmul_bias(x_, y_, b_)])
    for result in results:
        reference.assert_within(result, reference.forward(x, y, bias).out)


def test_training_in_a_static_graph(static):
    """An optimiser's steps over two layers lower the loss, for widths that Paddle turns away as well."""
    rng = reference.rng_for("static training")
    inputs = rng.standard_normal((64, 12)).astype(np.float32)
    targets = inputs[:, :3].copy()
    x = paddle.static.data("x", [-1, 12], "float32")
    target = paddle.static.data("target", [-1, 3], "float32")
    h = x
    for k, n, activation in ((12, 30, "gelu"), (30, 3, "none")):
        weight = paddle.create_parameter([k, n], "float32")
        h = fused_linear_activation(h, weight, paddle.create_parameter([n], "float32"), activation=activation)
    loss = (h - target).square().mean()
    paddle.optimizer.Adam(0.01).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    losses = [
        float(executor.run(feed={"x": inputs, "target": targets}, fetch_list=[loss])[0]) for _ in range(100)
    ]
    assert losses[-1] < 0.2 * losses[0]


def test_mixed_dtypes_in_a_static_graph_are_refused(static):
    values = [
        paddle.static.data(k, s, t)
        for k, s, t in (("x", [3, 4], "float32"), ("y", [4, 8], "float64"), ("b", [8], "float32"))
    ]
    with pytest.raises(ValueError, match="one dtype"):
        paddle._C_ops.fused_gemm_epilogue(*values, False, False, "none")


class Layers(paddle.nn.Layer):
    """Both ways into the operator, one after the other."""

    def __init__(self, n, activation):
        super().__init__()
        self.activation = activation
        self.w1, self.b1 = self.create_parameter([4, n]), self.create_parameter([n])
        self.w2, self.b2 = self.create_parameter([n, 3]), self.create_parameter([3])

    def forward(self, x):
        h = fused_linear_activation(x, self.w1, self.b1, activation=self.activation)
        return fused_linear(h, self.w2, self.b2)


def gradients_of(layers, parameters, x):
    x = tensor(x, needs_grad=True)
    out = layers(x)
    out.square().sum().backward()
    results = [array(t) for t in (out, x.grad, *(p.grad for p in parameters))]
    for parameter in parameters:
        parameter.clear_gradient()
    return results


@pytest.mark.parametrize("full_graph", (True, False))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
def test_to_static_equals_eager(n, activation, full_graph):
    layers = Layers(n, activation)
    x = reference.random(reference.rng_for("to_static", n, activation), (5, 4), FLOAT32)
    eager = gradients_of(layers, layers.parameters(), x)
    static = gradients_of(paddle.jit.to_static(layers, full_graph=full_graph), layers.parameters(), x)
    for one, other in zip(static, eager):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 7))
def test_saved_programs(tmp_path, n, activation):
    """jit.save, then jit.load (which can be trained further) and an inference predictor give the layer's
    values.
    """
    layers = Layers(n, activation)
    x = reference.random(reference.rng_for("saved", n, activation), (5, 4), FLOAT32)
    expected = array(layers(tensor(x)))
    path = str(tmp_path / "layers")
    paddle.jit.save(layers, path, input_spec=[paddle.static.InputSpec([None, 4], "float32", name="x")])
    loaded = paddle.jit.load(path)
    np.testing.assert_allclose(array(loaded(tensor(x))), expected, rtol=1e-5, atol=1e-6)
    loaded.train()
    gradients = gradients_of(loaded, loaded.parameters(), x)
    for one, other in zip(gradients[:2], gradients_of(layers, layers.parameters(), x)[:2]):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    configuration = paddle.inference.Config(path + ".json", path + ".pdiparams")
    configuration.disable_gpu()
    predictor = paddle.inference.create_predictor(configuration)
    predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(x)
    predictor.run()
    out = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)

    np.save(path + ".npy", x)
    for backend in ("fge.paddle", ""):
        processes.run_python(
            processes.TESTS / "paddle_children.py",
            "load_saved_program",
            path,
            backend,
            *map(str, expected.ravel()[:3]),
        )


@pytest.mark.parametrize("name", ("bfloat16", "float16"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 7))
def test_auto_cast_in_to_static(n, activation, name):
    """The operator is on Paddle's white list: it runs in the half type, parameters and their gradients stay
    float32.
    """
    if name == "bfloat16" and activation != "none" and not paddle.base.core.supports_bfloat16():
        pytest.skip("Paddle's own activations of bfloat16, which stand in a static graph, abort on this CPU")
    layers = Layers(n, activation)

    @paddle.jit.to_static(full_graph=True)
    def step(x):
        with paddle.amp.auto_cast(True, dtype=name, level="O1"):
            return layers(x)

    x = reference.random(reference.rng_for("auto_cast", n, activation), (5, 4), FLOAT32)
    out = step(tensor(x))
    assert out.dtype == getattr(paddle, name)
    np.testing.assert_allclose(array(out).astype(np.float32), array(layers(tensor(x))), rtol=0, atol=0.05)
    out.astype("float32").sum().backward()
    assert all(p.grad.dtype == paddle.float32 for p in layers.parameters())


def test_auto_cast_in_eager_mode_has_no_effect_on_a_cpu():
    """Paddle's own rule, with a warning; mixed dtypes stay refused there."""
    layers = Layers(7, "gelu")
    with pytest.warns(UserWarning, match="makes no effect"), paddle.amp.auto_cast(True, dtype="bfloat16"):
        assert layers(paddle.ones([2, 4])).dtype == paddle.float32
