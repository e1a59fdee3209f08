"""Differentiation of `fge.torch.linear_act`: which gradients, what is kept for them, higher orders, transforms,
checkpoints, autocast."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_bridge import assert_all_close, plain_linear_act, random_tensors

import fge
from fge.torch import LinearAct, linear_act

ACTIVATIONS = fge.activations()
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)


@EVERY_ACTIVATION
@pytest.mark.parametrize("has_bias", (True, False))
def test_gradcheck(activation, has_bias):
    """Against finite differences, one out_grad at a time and batched, and forward-mode derivatives."""
    tensors = random_tensors((3, 5, 4), (6, 4), (6,), dtype=torch.float64)[: 3 if has_bias else 2]

    def function(x, weight, bias=None):
        return linear_act(x, weight, bias, activation)

    assert gradcheck(function, tensors, check_batched_grad=True, check_forward_ad=True)
    assert gradgradcheck(function, tensors, check_batched_grad=True, check_fwd_over_rev=True)


@EVERY_ACTIVATION
@pytest.mark.parametrize("frozen", ("x", "weight", "bias", "x weight", "x bias", "weight bias"))
def test_second_derivatives_with_frozen_inputs(activation, frozen):
    """The first backward keeps only what its gradients need; the second must do with it."""
    x, weight, bias = random_tensors((5, 4), (6, 4), (6,), dtype=torch.float64)
    for name, tensor in {"x": x, "weight": weight, "bias": bias}.items():
        tensor.requires_grad_(name not in frozen.split())
    free = [tensor for tensor in (x, weight, bias) if tensor.requires_grad]

    def penalty(function):
        grads = torch.autograd.grad(
            function(x, weight, bias, activation).square().sum(), free, create_graph=True
        )
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), free)

    assert_all_close(penalty(linear_act), penalty(plain_linear_act), 1e-10)


def test_third_derivative():
    (x,) = random_tensors((4, 1), dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    for activation in ("gelu", "gelu_erf", "silu", "sigmoid", "tanh"):
        orders = []
        for function in (linear_act, plain_linear_act):
            value = function(x, one, None, activation)
            for _ in range(3):
                (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            orders.append(value)
        assert_all_close(*orders, 1e-9)


@EVERY_ACTIVATION
@pytest.mark.parametrize("needs", [(x, w, b) for x in (0, 1) for w in (0, 1) for b in (0, 1)][1:], ids=str)
def test_requires_grad_decides_what_is_computed(activation, needs, monkeypatch):
    from fge import _torch

    inputs = random_tensors((5, 4), (6, 4), (6,))
    full = torch.autograd.grad(linear_act(*inputs, activation).sum(), inputs)
    asked = []

    def watched(out_grad, x, weight, reserve, activation, bias_dtype):
        grads = computed(out_grad, x, weight, reserve, activation, bias_dtype)
        asked.append(tuple(int(grad is not None) for grad in grads))
        return grads

    computed = _torch.backward
    monkeypatch.setattr(_torch, "backward", watched)
    for tensor, need in zip(inputs, needs):
        tensor.requires_grad_(bool(need))
    linear_act(*inputs, activation).sum().backward()
    assert asked == [needs]
    for tensor, need, expected in zip(inputs, needs, full):
        assert torch.equal(tensor.grad, expected) if need else tensor.grad is None


@EVERY_ACTIVATION
def test_what_is_saved(activation):
    """Each operand for the gradient of the other, and the reserve."""
    reserve = {"none": [], "bits": [(5, 16)]}.get(fge.reserve_kind(activation), [(5, 6)])
    x, weight, bias = random_tensors((5, 4), (6, 4), (6,))

    def saved(*frozen):
        for tensor in (x, weight, bias):
            tensor.requires_grad_(all(tensor is not other for other in frozen))
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: shapes.append(tuple(tensor.shape)), lambda shape: None
        ):
            linear_act(x, weight, bias, activation)
        return shapes

    assert saved() == [(5, 4), (6, 4), *reserve]
    assert saved(x) == [(5, 4), *reserve]
    assert saved(weight) == [(6, 4), *reserve]
    assert saved(x, weight) == reserve
    assert saved(x, weight, bias) == []


def test_no_gradient_no_reserve(monkeypatch):
    from fge import _torch

    asked = []
    forward = _torch.forward
    monkeypatch.setattr(
        _torch, "forward", lambda *arguments: asked.append(arguments[-1]) or forward(*arguments)
    )
    x, weight = random_tensors((5, 4), (6, 4))
    with torch.no_grad():
        assert not linear_act(x, weight, None, "relu").requires_grad
    with torch.inference_mode():
        assert linear_act(x, weight, None, "relu").is_inference()
    assert not linear_act(x.detach(), weight.detach(), None, "relu").requires_grad
    assert asked == [False] * 3


def test_changed_operands_are_noticed():
    x, weight = random_tensors((5, 4), (6, 4))
    for activation, change in (
        ("relu", lambda out: weight.detach().add_(1)),
        ("tanh", lambda out: out.add_(1)),
    ):
        out = linear_act(x, weight, None, activation)
        with torch.no_grad():
            change(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_backward_twice_needs_the_graph():
    x, weight = random_tensors((5, 4), (6, 4))
    out = linear_act(x, weight, None, "gelu").sum()
    out.backward(retain_graph=True)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_gradients_accumulate():
    x, weight = random_tensors((5, 4), (6, 4))
    for _ in range(2):
        linear_act(x, weight, None, "relu").sum().backward()
    (once,) = torch.autograd.grad(linear_act(x, weight, None, "relu").sum(), weight)
    assert torch.equal(weight.grad, 2 * once)


# Transforms


def loss(function, activation):
    return lambda *tensors: function(*tensors, activation).square().sum()


@EVERY_ACTIVATION
def test_torch_func(activation):
    from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

    x, weight, bias = random_tensors((7, 4), (6, 4), (6,), dtype=torch.float64, requires_grad=False)
    weights, biases = torch.stack([weight, -weight]), torch.stack([bias, bias + 1])

    def everything(function):
        def of_x(x):
            return function(x, weight, bias, activation)

        def layer(x, weight, bias):
            return function(x, weight, bias, activation)

        scalar = loss(function, activation)
        yield grad(scalar, (0, 1, 2))(x, weight, bias)
        yield vmap(of_x)(x)
        yield vmap(of_x, in_dims=1, out_dims=1)(torch.stack([x, 2 * x], 1))
        yield vmap(layer, (None, 0, 0))(x, weights, biases)
        yield vmap(layer, (None, None, 0))(x, weight, biases)
        yield vmap(vmap(layer, (0, None, None)), (None, 0, 0))(x, weights, biases)
        yield vmap(grad(scalar, (1, 2)), (0, None, None))(x, weight, bias)  # gradients of each sample
        yield vmap(grad(scalar, (1, 2)), (None, 0, 0))(x, weights, biases)  # of an ensemble
        yield jacrev(of_x)(x)
        yield jacfwd(of_x)(x)
        yield hessian(scalar)(x, weight, bias)
        yield jacrev(jacrev(scalar))(x, weight, bias)
        yield jvp(layer, (x, weight, bias), (x, weight, bias))
        yield vjp(layer, x, weight, bias)[1](torch.ones(7, 6, dtype=torch.float64))

    assert_all_close(list(everything(linear_act)), list(everything(plain_linear_act)), 1e-9)


def test_forward_mode_keeps_the_tangent():
    x, weight = random_tensors((5, 4), (6, 4), requires_grad=False)
    with forward_ad.dual_level():
        tangents = [
            forward_ad.unpack_dual(
                function(forward_ad.make_dual(x, torch.ones_like(x)), weight, None, "gelu")
            )
            for function in (linear_act, plain_linear_act)
        ]
    assert_all_close(tangents[0].tangent, tangents[1].tangent)


def test_batched_out_grads():
    x, weight = random_tensors((5, 4), (6, 4))
    out = linear_act(x, weight, None, "relu")
    out_grads = torch.eye(30).reshape(30, 5, 6)
    batched = torch.autograd.grad(out, (x, weight), out_grads, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(out, (x, weight), one, retain_graph=True) for one in out_grads]
    assert_all_close(list(batched), [torch.stack(grads) for grads in zip(*single)])


def test_only_what_passes_a_relu_comes_back():
    """Even NaN and inf: as PyTorch's relu has it."""
    x = torch.tensor([[-1.0], [1.0], [2.0]], requires_grad=True)
    out_grad = torch.tensor([[float("inf")], [3.0], [float("nan")]])
    for function in (linear_act, plain_linear_act):
        (grad,) = torch.autograd.grad(function(x, torch.ones(1, 1), None, "relu"), x, out_grad)
        assert grad[:2, 0].tolist() == [0, 3] and grad[2, 0].isnan(), function
    out = linear_act(x, torch.ones(1, 1), None, "relu")
    (grad,) = torch.autograd.grad(out, x, out_grad, create_graph=True)
    assert grad[:2, 0].tolist() == [0, 3] and grad[2, 0].isnan()


# Checkpoints and autocast


@pytest.mark.parametrize("use_reentrant", (True, False))
def test_checkpointing(use_reentrant):
    layers = torch.nn.Sequential(LinearAct(8, 16, activation="gelu"), LinearAct(16, 8, activation="relu"))
    (x,) = random_tensors((5, 8))
    parameters = [x, *layers.parameters()]
    plain = torch.autograd.grad(layers(x).sum(), parameters)
    checkpoint(layers, x, use_reentrant=use_reentrant).sum().backward()
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(parameters, plain))


def test_selective_checkpointing():
    """It tells operators apart, so it has to see this one."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen = []

    def policy(context, operator, *arguments, **options):
        seen.append(operator)
        return CheckpointPolicy.MUST_SAVE

    layer = LinearAct(8, 16)
    (x,) = random_tensors((5, 8))
    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    out = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.ops.fge.linear_act.default in seen
    assert torch.equal(grad, torch.autograd.grad(layer(x).sum(), x)[0])


def test_tensors_saved_elsewhere():
    layer = LinearAct(8, 16, activation="tanh")
    (x,) = random_tensors((5, 8))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.mT.contiguous(), lambda t: t.mT):
        out = layer(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert_all_close(grad, torch.autograd.grad(layer(x).sum(), x)[0])


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@EVERY_ACTIVATION
def test_autocast(dtype, activation):
    """The operands are rounded, the parameters' gradients are float32; the bias isn't rounded."""
    x, weight, bias = random_tensors((5, 4), (6, 4), (6,))
    with torch.autocast("cpu", dtype=dtype):
        out = linear_act(x, weight, bias, activation)
    expected = linear_act(x.to(dtype), weight.to(dtype), bias, activation)
    assert out.dtype == dtype and torch.equal(out, expected)
    out.sum().backward()
    assert all(tensor.grad.dtype == torch.float32 for tensor in (x, weight, bias))
    for tensor, grad in zip((x, weight, bias), torch.autograd.grad(expected.sum(), (x, weight, bias))):
        assert torch.equal(tensor.grad, grad)


def test_autocast_leaves_float64_and_ends():
    x, weight = random_tensors((5, 4), (6, 4), dtype=torch.float64)
    with torch.autocast("cpu"):
        assert linear_act(x, weight).dtype == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert linear_act(x.float(), weight.float()).dtype == torch.float32
    assert linear_act(x.float(), weight.float()).dtype == torch.float32


def test_autocast_casts_a_half_bias_beside_float32():
    x, weight, bias = random_tensors((5, 4), (6, 4), (6,))
    with torch.autocast("cpu", dtype=torch.float16):
        assert linear_act(x, weight, bias.bfloat16()).dtype == torch.float16


def test_backward_inside_autocast_keeps_the_dtypes():
    """Of a forward outside; also where the gradient is differentiable."""
    x, weight = random_tensors((5, 4), (6, 4))
    out = linear_act(x, weight, None, "gelu").sum()
    for create_graph in (False, True):
        (outside,) = torch.autograd.grad(out, x, retain_graph=True, create_graph=create_graph)
        with torch.autocast("cpu"):
            (inside,) = torch.autograd.grad(out, x, retain_graph=True, create_graph=create_graph)
        assert torch.equal(inside, outside)


def test_a_float32_bias_under_differentiation_of_gradients():
    x, weight = random_tensors((5, 4), (6, 4), dtype=torch.bfloat16)
    (bias,) = random_tensors((6,))
    out = linear_act(x, weight, bias, "gelu")
    grads = torch.autograd.grad(out.sum(), (x, weight, bias), create_graph=True)
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.bfloat16, torch.float32]
    torch.autograd.grad(grads[2].sum(), x)
