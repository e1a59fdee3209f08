"""fused_mlp and fused_glu of fge.torch against PyTorch's own operators, and what autograd makes of them."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_bridge import ACTIVATIONS, assert_all_close, random_tensors

import fge
from fge.torch import fused_glu, fused_mlp

EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
LEVELS = pytest.mark.parametrize("level", (0, 1, 2))


def plain_mlp(x, w1, b1, w2, b2, activation):
    linear = torch.nn.functional.linear
    return linear(ACTIVATIONS[activation](linear(x, w1, b1)), w2, b2)


def plain_glu(x, w_gate, w_up, b_gate, b_up, activation):
    linear = torch.nn.functional.linear
    return ACTIVATIONS[activation](linear(x, w_gate, b_gate)) * linear(x, w_up, b_up)


def mlp_tensors(dtype=torch.float64, requires_grad=True):
    return random_tensors((2, 5, 6), (9, 6), (9,), (4, 9), (4,), dtype=dtype, requires_grad=requires_grad)


def glu_tensors(dtype=torch.float64, requires_grad=True):
    return random_tensors((2, 5, 6), (9, 6), (9, 6), (9,), (9,), dtype=dtype, requires_grad=requires_grad)


@LEVELS
@EVERY_ACTIVATION
def test_gradcheck_mlp(activation, level):
    assert torch.autograd.gradcheck(lambda *t: fused_mlp(*t, activation, level), mlp_tensors())


@EVERY_ACTIVATION
def test_gradcheck_glu(activation):
    assert torch.autograd.gradcheck(lambda *t: fused_glu(*t, activation), glu_tensors())


@pytest.mark.parametrize("frozen", list(itertools.product((True, False), repeat=5)))
def test_frozen_inputs(frozen):
    """Exactly the gradients asked for, with the values of the whole."""
    for fused, plain, tensors in (
        (lambda *t: fused_mlp(*t, "gelu", 1), plain_mlp, mlp_tensors()),
        (lambda *t: fused_glu(*t, "gelu"), plain_glu, glu_tensors()),
    ):
        for tensor, freeze in zip(tensors, frozen):
            tensor.requires_grad_(not freeze)
        free = [tensor for tensor in tensors if tensor.requires_grad]
        out = fused(*tensors)
        assert out.requires_grad == bool(free)
        if free:
            expected = torch.autograd.grad(plain(*tensors, "gelu").square().sum(), free)
            assert_all_close(list(torch.autograd.grad(out.square().sum(), free)), list(expected), 1e-9)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("biases", (True, False))
def test_other_dtypes(biases, dtype):
    """Against float64 of the same values; PyTorch rounds in between, fge doesn't always."""
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for fused, plain, tensors in (
        (fused_mlp, plain_mlp, mlp_tensors(dtype)),
        (fused_glu, plain_glu, glu_tensors(dtype)),
    ):
        bias_places = (2, 4) if plain is plain_mlp else (3, 4)
        if not biases:
            for place in bias_places:
                tensors[place] = None
        exact = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
        out, right = fused(*tensors, "silu"), plain(*exact, "silu")
        assert out.dtype == dtype
        assert_all_close([out.double()], [right], tolerance)
        out.sum().backward()
        right.sum().backward()
        for one, other in zip(tensors, exact):
            if one is not None:
                assert one.grad.dtype == dtype
                scale = other.grad.abs().max()
                assert_all_close([one.grad.double() / scale], [other.grad / scale], tolerance)


def test_layouts_and_sizes():
    """Non-contiguous, expanded and empty tensors."""
    x, w1, b1, w2, b2 = mlp_tensors(torch.float32, False)
    expected = fused_mlp(x, w1, b1, w2, b2)
    strange = [t.t().contiguous().t() if t.dim() == 2 else t.flip(0).flip(0) for t in (w1, b1, w2, b2)]
    assert torch.equal(fused_mlp(x.transpose(0, 1).contiguous().transpose(0, 1), *strange), expected)
    assert fused_mlp(x[:0], w1, b1, w2, b2).shape == (0, 5, 4)
    x, w_gate, w_up, b_gate, b_up = glu_tensors(torch.float32, False)
    expanded = x[:1, :1].expand(3, 7, 6)
    assert_all_close(
        [fused_glu(expanded, w_gate, w_up, b_gate, b_up)],
        [plain_glu(expanded, w_gate, w_up, b_gate, b_up, "silu")],
    )
    assert fused_glu(x[:, :0], w_gate, w_up).shape == (2, 0, 9)
    y = x[0, 0].requires_grad_()
    fused_glu(y, w_gate, w_up).sum().backward()
    assert y.grad.shape == (6,)


def test_numpy_and_torch_agree():
    x, w1, b1, w2, b2 = mlp_tensors(torch.float32, False)
    out, _ = fge.fused_mlp(*(t.numpy() for t in (x, w1, b1, w2, b2)), "gelu", trans_w=True)
    assert np.array_equal(fused_mlp(x, w1, b1, w2, b2).numpy(), out)
    x, w_gate, w_up, b_gate, b_up = glu_tensors(torch.float32, False)
    out, _ = fge.fused_glu(*(t.numpy() for t in (x, w_gate, w_up, b_gate, b_up)), trans_w=True)
    assert np.array_equal(fused_glu(x, w_gate, w_up, b_gate, b_up).numpy(), out)


@pytest.mark.parametrize("fused", (fused_mlp, fused_glu))
def test_compiles_without_a_graph_break(fused):
    tensors = mlp_tensors(torch.float32) if fused is fused_mlp else glu_tensors(torch.float32)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    outs = fused(*tensors, "gelu"), compiled(*tensors, "gelu")
    grads = [torch.autograd.grad(out.square().sum(), tensors) for out in outs]
    assert_all_close([outs[0], *grads[0]], [outs[1], *grads[1]])


def test_second_derivatives():
    for function, tensors in ((fused_mlp, mlp_tensors()), (fused_glu, glu_tensors())):
        assert torch.autograd.gradgradcheck(lambda *t, function=function: function(*t, "gelu"), tensors)
        (grad,) = torch.autograd.grad(function(*tensors).sum(), tensors[0], create_graph=True)
        assert grad.requires_grad


def test_forward_mode_and_transforms():
    """By way of linear_act."""
    tensors = glu_tensors(requires_grad=False)
    value, tangent = torch.func.jvp(lambda x: fused_glu(x, *tensors[1:]), (tensors[0],), (tensors[0],))
    expected = torch.func.jvp(lambda x: plain_glu(x, *tensors[1:], "silu"), (tensors[0],), (tensors[0],))
    assert_all_close([value, tangent], list(expected), 1e-9)
    tensors = mlp_tensors(requires_grad=False)
    mapped = torch.func.vmap(lambda x: fused_mlp(x, *tensors[1:]))(tensors[0])
    assert_all_close([mapped], [fused_mlp(*tensors)], 1e-9)


def test_autocast():
    for fused, tensors in ((fused_mlp, mlp_tensors(torch.float32)), (fused_glu, glu_tensors(torch.float32))):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = fused(*tensors)
        assert out.dtype == torch.bfloat16
        out.float().sum().backward()
        assert all(t.grad.dtype == torch.float32 for t in tensors)


def test_memory_held_falls_with_the_level():
    """Bytes that autograd holds between forward and backward, parameters and x aside."""
    held = []
    for level in (0, 1, 2):
        x, w1, b1, w2, b2 = random_tensors((64, 16), (256, 16), (256,), (16, 256), (16,))
        known = {t.data_ptr() for t in (x, w1, b1, w2, b2)}
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t) or t, lambda t: t
        ):
            fused_mlp(x, w1, b1, w2, b2, "gelu", level)
        held.append(sum(t.nbytes for t in saved if t.data_ptr() not in known))
    assert held == [2 * 64 * 256 * 4, 64 * 256 * 4, 0]


def test_errors():
    x, w1, b1, w2, b2 = mlp_tensors(requires_grad=False)
    for call, error, text in (
        (lambda: fused_mlp(x, w1, b1, w2, b2, "swish"), ValueError, "'swish'"),
        (lambda: fused_mlp(x, w1, b1, w2, b2, "gelu", 3), ValueError, "checkpoint_lvl"),
        (lambda: fused_mlp(x, w2, b1, w2, b2), ValueError, "in_features"),
        (lambda: fused_mlp(x, w1, b1, w2.float(), b2), TypeError, "weight"),
        (lambda: fused_glu(x, w1, w1[:3]), ValueError, "w_up"),
        (lambda: fused_glu(x, w1, w1.float()), TypeError, "w_up"),
        (lambda: fused_glu(x, w1, w1, b2), ValueError, "b_gate"),
        (lambda: fused_glu(x.numpy(), w1, w1), TypeError, "x"),
        (lambda: fused_glu(x, w1, w1, activation="swish"), ValueError, "'swish'"),
    ):
        with pytest.raises(error, match=text):
            call()
