"""Bad calls of `fge.torch`: each is refused with an error that names the argument, on every way into the operator."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode

from fge.torch import LinearAct, linear_act

X, WEIGHT, BIAS = torch.ones(8, 4), torch.ones(128, 4, requires_grad=True), torch.ones(128)


def emptied(tensor):
    """Its memory given back, as sharded training does."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def nested(**options):
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], **options)


# name: (arguments that differ from good ones, the error, what it says)
CALLS = {
    "x of integers": ({"x": lambda: X.int()}, TypeError, "x has dtype torch.int32"),
    "x of booleans": ({"x": lambda: X.bool()}, TypeError, "x has dtype torch.bool"),
    "x of complex numbers": ({"x": lambda: X + 0j}, TypeError, "x has dtype torch.complex64"),
    "x of 8 bits": ({"x": lambda: X.to(torch.float8_e4m3fn)}, TypeError, "x has dtype torch.float8_e4m3fn"),
    "a quantized x": (
        {"x": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)},
        TypeError,
        "x has dtype torch.qint8",
    ),
    "dtypes of x and weight": ({"weight": WEIGHT.double}, TypeError, "x has dtype .* and weight has dtype"),
    "dtype of bias": ({"bias": BIAS.double}, TypeError, "bias has dtype torch.float64"),
    "a half bias beside float32": ({"bias": BIAS.half}, TypeError, "bias has dtype torch.float16"),
    "a float64 bias beside a half type": (
        {"x": X.half, "weight": WEIGHT.half, "bias": BIAS.double},
        TypeError,
        "must have x's dtype or float32",
    ),
    "an array for x": ({"x": lambda: np.ones((8, 4), np.float32)}, TypeError, "x is a ndarray"),
    "a list for weight": ({"weight": lambda: [[1.0]]}, TypeError, "weight is a list"),
    "None for weight": ({"weight": lambda: None}, TypeError, "weight is a NoneType"),
    "a number for bias": ({"bias": lambda: 1.0}, TypeError, "bias is a float"),
    "a scalar x": ({"x": lambda: torch.tensor(1.0)}, ValueError, r"x has shape \(\)"),
    "a vector for weight": ({"weight": lambda: WEIGHT[0]}, ValueError, "weight has shape .* rank 2"),
    "weight of rank 3": ({"weight": lambda: WEIGHT[None]}, ValueError, "weight has shape .* rank 2"),
    "weight transposed": ({"weight": lambda: WEIGHT.T}, ValueError, "x has shape .* in_features = 128"),
    "length of bias": ({"bias": lambda: BIAS[1:]}, ValueError, r"bias has shape \(127,\)"),
    "rank of bias": ({"bias": lambda: BIAS[None]}, ValueError, r"bias has shape \(1, 128\)"),
    "scalar bias": ({"bias": lambda: BIAS[0]}, ValueError, r"bias has shape \(\)"),
    "x elsewhere": ({"x": lambda: X.to("meta")}, ValueError, "x is on meta and weight is on cpu"),
    "weight elsewhere": ({"weight": lambda: WEIGHT.to("meta")}, ValueError, "weight is on meta"),
    "bias elsewhere": ({"bias": lambda: BIAS.to("meta")}, ValueError, "bias is on meta"),
    "sparse x": ({"x": X.to_sparse}, TypeError, "x is a torch.sparse_coo tensor"),
    "sparse weight": (
        {"weight": lambda: WEIGHT.detach().to_sparse_csr()},
        TypeError,
        "weight is a torch.sparse_csr tensor",
    ),
    "sparse bias": ({"bias": BIAS.to_sparse}, TypeError, "bias is a torch.sparse_coo tensor"),
    "oneDNN x": ({"x": X.to_mkldnn}, TypeError, "x is a torch._mkldnn tensor"),
    "oneDNN weight": (
        {"weight": lambda: WEIGHT.detach().to_mkldnn()},
        TypeError,
        "weight is a torch._mkldnn tensor",
    ),
    "oneDNN bias": ({"bias": BIAS.to_mkldnn}, TypeError, "bias is a torch._mkldnn tensor"),
    "nested x": ({"x": nested}, TypeError, "x is a nested tensor"),
    "jagged x": ({"x": lambda: nested(layout=torch.jagged)}, TypeError, "x is a nested tensor"),
    "x without memory": ({"x": lambda: emptied(X)}, RuntimeError, "no memory"),
    "x without memory that would be copied": (
        {"x": lambda: emptied(X.expand(3, 8, 4).clone().transpose(0, 1))},
        RuntimeError,
        "no memory",
    ),
    "activation of another name": ({"activation": lambda: "swish"}, ValueError, "'swish'.*'gelu_erf'"),
    "no activation": ({"activation": lambda: None}, ValueError, "activation is None"),
    "a function for activation": ({"activation": lambda: torch.relu}, ValueError, "activation is <built-in"),
    "a list for activation": ({"activation": lambda: ["relu"]}, ValueError, "activation is"),
}
GOOD = {"x": lambda: X, "weight": lambda: WEIGHT, "bias": lambda: BIAS, "activation": lambda: "relu"}


# Where the dispatcher has to be asked, it has errors of its own for these.
REFUSED_BY_PYTORCH = (
    "a quantized x",
    "nested x",
    "no activation",
    "a function for activation",
    "a list for activation",
)


class Watched(TorchDispatchMode):
    """Changes nothing, but PyTorch's dispatcher has to be asked."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


@pytest.mark.filterwarnings("ignore::UserWarning")  # several kinds of tensors are experimental
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", (torch.no_grad, torch.enable_grad, Watched))
def test_names_the_argument(name, way):
    different, error, text = CALLS[name]
    arguments = {key: make() for key, make in {**GOOD, **different}.items()}
    if way is Watched and name in REFUSED_BY_PYTORCH:
        error, text = RuntimeError, ""
    with way():
        with pytest.raises(error, match=text):
            linear_act(**arguments)
        assert linear_act(X, WEIGHT, BIAS, "relu")[7, 127] == 5, "the next call works"


def test_the_operators_check_too():
    """As who calls them without `linear_act` sees it."""
    forward, backward = torch.ops.fge.linear_act, torch.ops.fge.linear_act_backward
    with pytest.raises(ValueError, match="activation is 'swish'"):
        forward(X, WEIGHT, BIAS, "swish", True)
    out, bits = forward(X, WEIGHT, BIAS, "relu", True)
    good = {
        "out_grad": torch.ones_like(out),
        "x": X,
        "weight": WEIGHT.detach(),
        "reserve": bits,
        "activation": "relu",
        "bias_dtype": torch.float32,
    }
    for name, value, error, text in (
        ("reserve", None, ValueError, "save_reserve=False"),
        ("reserve", bits[:-1], ValueError, "reserve has shape"),
        ("reserve", bits.to(torch.int8), TypeError, "reserve has dtype"),
        ("out_grad", torch.ones(8, 127), ValueError, "weight has shape"),
        ("out_grad", torch.tensor(1.0), ValueError, "out_grad is a scalar"),
        ("x", torch.ones(7, 4), ValueError, "x has shape"),
        ("x", X.double(), TypeError, "x has dtype"),
        ("weight", torch.ones(127, 4), ValueError, "weight has shape"),
        ("weight", torch.ones(128, 5), ValueError, "x has shape"),
        ("bias_dtype", torch.float64, TypeError, "bias_dtype is torch.float64"),
        ("activation", "gelu", TypeError, "reserve has dtype torch.uint8"),
    ):
        with pytest.raises(error, match=text):
            backward(**{**good, name: value})
    assert [tuple(grad.shape) for grad in backward(**good)] == [(8, 4), (128, 4), (128,)]


@pytest.mark.parametrize("kind", ("sparse", "another dtype"))
def test_a_gradient_that_does_not_fit(kind):
    """From an autograd function that returns something odd."""

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.to_sparse() if kind == "sparse" else grad.double()

    out = Odd.apply(linear_act(X, WEIGHT, BIAS, "relu"))
    if kind == "sparse":
        with pytest.raises(TypeError, match="out_grad is a torch.sparse_coo tensor"):
            out.sum().backward()
    else:  # autograd casts it
        assert torch.autograd.grad(out.sum(), WEIGHT)[0].dtype == torch.float32


def test_zeros_without_memory():
    """Autograd's own shorthand for a gradient of zeros; each operator may meet it."""
    zeros = torch._efficientzerotensor((8, 4))
    assert torch.equal(linear_act(zeros, WEIGHT, BIAS, "relu"), BIAS.expand(8, 128))
    out = linear_act(X, WEIGHT, None, "relu")
    for zeros in (torch._efficientzerotensor((8, 128)), torch._efficientzerotensor((128, 16)).T[::2]):
        (grad,) = torch.autograd.grad(out, WEIGHT, zeros, retain_graph=True)
        assert not grad.any()


def test_a_layer_refuses_an_activation_at_once():
    with pytest.raises(ValueError, match="activation is 'swish'"):
        LinearAct(4, 8, activation="swish")
