"""The registered operators: PyTorch's own checks of them, torch.compile, export, traces, modes, fake tensors."""

import pytest

torch = pytest.importorskip("torch")

from torch_bridge import assert_all_close, plain_linear_act, random_tensors

import fge
from fge.torch import LinearAct, linear_act

ACTIVATIONS = fge.activations()
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@EVERY_ACTIVATION
def test_opcheck_of_the_forward(activation):
    opcheck_forward(activation, (5, 4))


@pytest.mark.parametrize("activation", ("none", "relu", "gelu", "tanh"))  # each kind of reserve
@pytest.mark.parametrize("shape", ((2, 3, 4), (4,), (0, 4)), ids=str)
def test_opcheck_over_ranks(activation, shape):
    opcheck_forward(activation, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck_without_bias(dtype):
    opcheck_forward("gelu", (5, 4), dtype=dtype, has_bias=False)


def opcheck_forward(activation, shape, dtype=torch.float32, has_bias=True):
    x, weight, bias = random_tensors(shape, (130, 4), (130,), dtype=dtype)
    arguments = (x, weight, bias if has_bias else None, activation, True)
    torch.library.opcheck(torch.ops.fge.linear_act.default, arguments)


@EVERY_ACTIVATION
@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16), ids=str)
def test_opcheck_of_the_backward(activation, dtype):
    """For each choice of gradients; the bias's may be float32 beside a half type."""
    x, weight, bias, out_grad = random_tensors(
        (5, 4), (130, 4), (130,), (5, 130), dtype=dtype, requires_grad=False
    )
    out, reserve = torch.ops.fge.linear_act(x, weight, bias, activation, True)
    reserve = {"none": None, "out": out}.get(fge.reserve_kind(activation), reserve)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    for of_x, of_weight, bias_dtype in ((x, weight, wide), (None, weight, None), (x, None, dtype)):
        torch.library.opcheck(
            torch.ops.fge.linear_act_backward.default,
            (out_grad, of_x, of_weight, reserve, activation, bias_dtype),
        )


@EVERY_ACTIVATION
def test_the_reserve_of_the_operator(activation):
    """Empty where the activation has none of its own, and where it isn't wanted."""
    x, weight = random_tensors((2, 5, 4), (130, 4), requires_grad=False)
    kind = fge.reserve_kind(activation)
    _, reserve = torch.ops.fge.linear_act(x, weight, None, activation, True)
    shapes = {"bits": fge.relu_bits_shape(10, 130), "z": (2, 5, 130)}
    assert tuple(reserve.shape) == shapes.get(kind, (0,))
    assert torch.ops.fge.linear_act(x, weight, None, activation, False)[1].numel() == 0


def test_a_gradient_without_its_reserve_is_an_error():
    x, weight = random_tensors((5, 4), (6, 4))
    out, _ = torch.ops.fge.linear_act(x, weight, None, "relu", False)
    with pytest.raises(ValueError, match="save_reserve=False"):
        out.sum().backward()


# torch.compile


@pytest.fixture
def compiled():
    """torch.compile that allows no graph break, without generating code: the graphs are what is tested."""

    def compiled(function, **options):
        return torch.compile(function, fullgraph=True, backend="aot_eager", **options)

    torch._dynamo.reset()
    yield compiled
    torch._dynamo.reset()


@EVERY_ACTIVATION
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_values_and_gradients(activation, dynamic, compiled):
    tensors = random_tensors((5, 4), (6, 4), (6,))

    def function(x, weight, bias):
        return linear_act(2 * x, weight, bias, activation) + 1

    fast = compiled(function, dynamic=dynamic)
    for rows in (5, 9, 1):
        inputs = [torch.cat([tensors[0]] * 2)[:rows].detach().requires_grad_(), *tensors[1:]]
        out, expected = fast(*inputs), function(*inputs)
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out.square().sum(), inputs)
        assert all(map(torch.equal, grads, torch.autograd.grad(expected.square().sum(), inputs)))
    with torch.no_grad():
        assert torch.equal(fast(*tensors), function(*tensors))


def test_compiled_with_generated_code():
    """Once through the default backend, which generates C++."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(LinearAct(8, 16, activation="gelu"), torch.nn.LayerNorm(16), LinearAct(16, 4))
    (x,) = random_tensors((5, 8))
    out = torch.compile(model, fullgraph=True)(x)
    assert_all_close(out, model(x))
    parameters = [x, *model.parameters()]
    grads = torch.autograd.grad(out.sum(), parameters)
    assert_all_close(list(grads), list(torch.autograd.grad(model(x).sum(), parameters)))


def test_compiled_graphs_hold_the_operators(compiled):
    """Forward and backward: not what they could be taken apart into."""
    from torch._dynamo.testing import AotEagerAndRecordGraphs

    backend = AotEagerAndRecordGraphs()
    layer = LinearAct(4, 6, activation="gelu")
    (x,) = random_tensors((5, 4))
    torch.compile(layer, fullgraph=True, backend=backend)(x).sum().backward()
    for graphs, operator in (
        (backend.fw_graphs, torch.ops.fge.linear_act.default),
        (backend.bw_graphs, torch.ops.fge.linear_act_backward.default),
    ):
        assert [node.target for node in graphs[0].graph.nodes].count(operator) == 1


def test_compiled_under_autocast(compiled):
    layer = LinearAct(4, 6)
    (x,) = random_tensors((5, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = compiled(layer)(x), layer(x)
    assert out.dtype == torch.bfloat16 and torch.equal(out, expected)
    grads = [torch.autograd.grad(o.sum(), layer.weight)[0] for o in (out, expected)]
    assert grads[0].dtype == torch.float32 and torch.equal(*grads)


def test_compiled_with_frozen_parameters(compiled):
    layer = LinearAct(4, 6).requires_grad_(False)
    (x,) = random_tensors((5, 4))
    (grad,) = torch.autograd.grad(compiled(layer)(x).sum(), x)
    assert torch.equal(grad, torch.autograd.grad(layer(x).sum(), x)[0])


# Export, traces, modes


def test_export():
    model = torch.nn.Sequential(LinearAct(4, 8, activation="silu"), LinearAct(8, 2))
    (x,) = random_tensors((5, 4), requires_grad=False)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    with torch.no_grad():
        assert torch.equal(program.module()(torch.cat([x, x])), model(torch.cat([x, x])))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_holds_the_operator():
    """A result that is computed beside the trace would be recorded as a constant."""
    layer = LinearAct(4, 6, activation="gelu")
    (x,) = random_tensors((5, 4), requires_grad=False)
    traced = torch.jit.trace(layer, x)
    assert torch.equal(traced(3 * x), layer(3 * x))


def test_make_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = random_tensors((5, 4), (6, 4), requires_grad=False)
    graph = make_fx(lambda x: linear_act(x, weight, None, "relu"))(x)
    assert torch.equal(graph(3 * x), linear_act(3 * x, weight, None, "relu"))


def test_dispatch_modes_see_the_call():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(function)
            return function(*arguments, **(options or {}))

    x, weight = random_tensors((5, 4), (6, 4))
    with Watch():
        linear_act(x, weight, None, "relu").sum().backward()
    assert {torch.ops.fge.linear_act.default, torch.ops.fge.linear_act_backward.default} <= set(seen)
    assert_all_close(
        weight.grad, torch.autograd.grad(plain_linear_act(x, weight, None, "relu").sum(), weight)[0]
    )


def test_functions_can_be_overridden():
    """As torch.nn.functional's: by a subclass and by a mode."""

    class Counted(torch.Tensor):
        calls = []

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            cls.calls.append(function)
            return super().__torch_function__(function, types, arguments, options or {})

    x, weight = random_tensors((5, 4), (6, 4), requires_grad=False)
    out = linear_act(x.as_subclass(Counted), weight, None, "relu")
    assert linear_act in Counted.calls and type(out) is Counted
    assert torch.equal(out.as_subclass(torch.Tensor), linear_act(x, weight, None, "relu"))


def test_default_device():
    """torch.device as a context is a mode too."""
    x, weight = random_tensors((5, 4), (6, 4), requires_grad=False)
    with torch.device("meta"):
        assert linear_act(x, weight, None, "relu").device.type == "cpu"
        layer = LinearAct(4, 6)
    assert layer.weight.is_meta


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_meta_and_fake_tensors(dtype):
    from torch._subclasses import FakeTensorMode

    layer = LinearAct(4, 6, device="meta", dtype=dtype)
    out = layer(torch.empty(2, 5, 4, device="meta", dtype=dtype))
    assert out.is_meta and out.shape == (2, 5, 6) and out.dtype == dtype
    out.sum().backward()
    assert layer.weight.grad.shape == (6, 4)
    with FakeTensorMode() as mode:
        real = LinearAct(4, 6, dtype=dtype)
        out = real(mode.from_tensor(torch.empty(5, 4, device="cpu", dtype=dtype)))
        assert out.shape == (5, 6) and out.dtype == dtype
    with pytest.raises(ValueError, match="in_features = 4"):
        layer(torch.empty(5, 3, device="meta", dtype=dtype))
