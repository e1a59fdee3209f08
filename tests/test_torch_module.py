"""`LinearAct` in the place of torch.nn.Linear and its activation, and `replace_linear_act`, which puts it there."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch_bridge import ACTIVATION_MODULES, assert_all_close, plain_linear_act, random_tensors

import fge
from fge.torch import LinearAct, linear_act, replace_linear_act

EVERY_ACTIVATION = pytest.mark.parametrize("activation", fge.activations())


@pytest.mark.parametrize("options", ({}, {"bias": False}, {"dtype": torch.bfloat16}), ids=str)
def test_parameters_are_those_of_linear(options):
    """Names, values from the same random numbers, and so the state_dict, in both directions."""
    torch.manual_seed(3)
    linear = nn.Linear(5, 7, **options)
    torch.manual_seed(3)
    layer = LinearAct(5, 7, **options)
    ours, theirs = layer.state_dict(), linear.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    layer.reset_parameters()
    linear.load_state_dict(layer.state_dict(), strict=True)
    layer.load_state_dict(theirs, strict=True)


@EVERY_ACTIVATION
def test_calls_and_learns(activation):
    (x,) = random_tensors((3, 8, 5))
    layer = LinearAct(5, 7, activation=activation)
    expected = plain_linear_act(x, layer.weight, layer.bias, activation)
    torch.testing.assert_close(layer(x), expected)
    grads = [torch.autograd.grad(out.square().sum(), layer.parameters()) for out in (layer(x), expected)]
    assert_all_close(*map(list, grads), 1e-4)


@pytest.mark.parametrize("activation", ACTIVATION_MODULES)
def test_a_network_trains_to_the_same_losses(activation):
    """bench.torch_mlp has this for larger networks and half types."""

    def losses(fused):
        torch.manual_seed(0)
        widths = [(24, 96), (96, 24), (24, 96), (96, 24)]
        act = ACTIVATION_MODULES[activation]
        model = nn.Sequential(*[part for ends in widths for part in (nn.Linear(*ends), act)][:-1])
        if fused:
            assert len(replace_linear_act(model).swapped) == 3
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        x, target = random_tensors((64, 24), (64, 24), requires_grad=False)
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert list(losses(True)) == pytest.approx(list(losses(False)), rel=1e-4)


def test_moves_between_dtypes_and_devices():
    layer = LinearAct(5, 7).double()
    assert layer(torch.ones(2, 5, dtype=torch.float64)).dtype == torch.float64
    assert layer.bfloat16()(torch.ones(2, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16
    on_meta = LinearAct(5, 7, device="meta")
    on_meta.to_empty(device="cpu").reset_parameters()
    assert on_meta(torch.ones(2, 5)).isfinite().all()


def test_says_what_it_is():
    layer = LinearAct(5, 7, bias=False, activation="gelu_erf")
    assert repr(layer) == "LinearAct(in_features=5, out_features=7, bias=False, activation='gelu_erf')"
    assert not isinstance(layer, nn.Linear)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded)
)
def test_copies_are_layers_of_their_own(duplicate):
    (x,) = random_tensors((4, 5), requires_grad=False)
    layer = LinearAct(5, 7, activation="silu").eval()
    twin = duplicate(layer)
    assert torch.equal(twin(x), layer(x)) and not twin.training
    with torch.no_grad():
        twin.weight.zero_()
    assert not torch.equal(twin(x), layer(x))


def test_weights_can_be_tied():
    layer = LinearAct(5, 5)
    tied = LinearAct(5, 5)
    tied.weight = layer.weight
    (x,) = random_tensors((4, 5))
    tied(layer(x)).sum().backward()
    one, other = (layer.weight.detach().clone().requires_grad_() for _ in range(2))
    hidden = linear_act(x.detach(), one, layer.bias, "relu")
    linear_act(hidden, other, tied.bias, "relu").sum().backward()
    torch.testing.assert_close(layer.weight.grad, one.grad + other.grad)


def test_hooks_run():
    seen = []
    layer = LinearAct(5, 7, activation="gelu")
    layer.register_forward_hook(lambda module, inputs, out: seen.append("forward"))
    layer.register_full_backward_hook(lambda module, x_grad, out_grad: seen.append("backward"))
    (x,) = random_tensors((4, 5))
    layer(x).sum().backward()
    assert seen == ["forward", "backward"]


@EVERY_ACTIVATION
def test_out_may_be_changed_in_place(activation):
    """By what follows; where the gradient needs out itself, autograd says so."""
    x, weight = random_tensors((4, 5), (7, 5))
    out = linear_act(x, weight, None, activation).mul_(2)
    if fge.reserve_kind(activation) == "out":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        return
    expected = 2 * linear_act(x, weight, None, activation)
    grads = [list(torch.autograd.grad(o.sum(), (x, weight))) for o in (out, expected)]
    assert_all_close(*grads)


# replace_linear_act


def model_of(activation, **options):
    return nn.Sequential(nn.Linear(6, 8, **options), activation, nn.Linear(8, 3))


@pytest.mark.parametrize("activation", ACTIVATION_MODULES)
def test_swaps(activation):
    model = model_of(ACTIVATION_MODULES[activation])
    (x,) = random_tensors((5, 6))
    parameters, names = list(model.parameters()), list(model.state_dict())
    before = model(x)
    grads = torch.autograd.grad(before.sum(), parameters)
    report = replace_linear_act(model)
    assert isinstance(model[0], LinearAct) and isinstance(model[1], nn.Identity)
    assert model[0].activation == activation
    assert report.swapped == {"0": activation}
    assert report.left == {"2": "the last layer of its nn.Sequential"}
    assert str(report).splitlines()[0] == f"swapped 0: {activation}"
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)
    assert_all_close(list(torch.autograd.grad(model(x).sum(), parameters)), list(grads))


def test_both_gelus_are_told_apart():
    """PyTorch's default is the erf form."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU(approximate="tanh"))
    assert replace_linear_act(model).swapped == {"0": "gelu_erf", "2": "gelu"}


def test_finds_nested_models_and_keeps_frozen_and_training():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 4)
            self.blocks = nn.ModuleList([model_of(nn.ReLU()) for _ in range(2)])

    model = Model().eval()
    model.blocks[1][0].requires_grad_(False)
    report = replace_linear_act(model)
    assert report.swapped == {"blocks.0.0": "relu", "blocks.1.0": "relu"}
    assert report.left["head"] == "not in an nn.Sequential"
    assert not model.blocks[1][0].weight.requires_grad and not model.blocks[1][0].training


def test_what_is_shared_stays_shared():
    linear, relu = nn.Linear(4, 4), nn.ReLU()
    model = nn.Sequential(linear, relu, linear, relu, linear, nn.Tanh())
    (x,) = random_tensors((3, 4))
    before = model(x)
    report = replace_linear_act(model)
    assert report.swapped == {"0": "relu", "2": "relu", "4": "tanh"}
    assert model[0] is model[2] and model[4].weight is linear.weight
    torch.testing.assert_close(model(x), before)


class Halved(nn.Sequential):
    def forward(self, x):
        return super().forward(x) / 2


class LoudLinear(nn.Linear):
    pass


def hooked(module):
    module.register_forward_hook(lambda *arguments: None)
    return module


LEFT = {
    "ELU": (lambda: model_of(nn.ELU()), "followed by ELU"),
    "a subclass of the layer": (lambda: nn.Sequential(LoudLinear(2, 2), nn.ReLU()), "a LoudLinear"),
    "a Sequential of another forward": (
        lambda: Halved(nn.Linear(2, 2), nn.ReLU()),
        "not in an nn.Sequential",
    ),
    "a hook of the layer": (lambda: nn.Sequential(hooked(nn.Linear(2, 2)), nn.ReLU()), "hooks"),
    "a hook of the activation": (lambda: nn.Sequential(nn.Linear(2, 2), hooked(nn.ReLU())), "hooks"),
    "parametrizations": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.ReLU()),
        "Parametrized",
    ),
    "complex numbers": (
        lambda: nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64), nn.ReLU()),
        "complex64",
    ),
    "the model itself": (lambda: nn.Linear(2, 2), "not in an nn.Sequential"),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves_with_a_reason(name):
    make, reason = LEFT[name]
    model = make()
    report = replace_linear_act(model)
    assert report.swapped == {}
    assert not any(isinstance(module, LinearAct) for module in model.modules())
    assert reason in next(iter(report.left.values()))
    assert str(report).startswith("left ")


def test_swapping_twice_changes_nothing():
    model = model_of(nn.ReLU())
    replace_linear_act(model)
    layer = model[0]
    assert replace_linear_act(model).swapped == {} and model[0] is layer


def test_a_model_without_layers_says_so():
    assert str(replace_linear_act(nn.ReLU())) == "no torch.nn.Linear in the model"
    with pytest.raises(TypeError, match="model is a list"):
        replace_linear_act([nn.Linear(2, 2)])
