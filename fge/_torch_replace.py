"""`replace_linear_act`: finds the layers of a model that `LinearAct` can take over."""

from dataclasses import dataclass, field

import torch
from torch import nn

from fge._torch_module import LinearAct

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_NAMES = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
}

# What a module may carry besides its parameters, and a LinearAct in its place would lose.
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class Replacements:
    """What `replace_linear_act` did. `print` shows a line for each Linear of the model."""

    #: name of each Linear that was swapped -> its activation
    swapped: dict[str, str] = field(default_factory=dict)
    #: name of each Linear that was left -> why
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"swapped {name}: {activation}" for name, activation in self.swapped.items()]
        lines += [f"left    {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines) or "no torch.nn.Linear in the model"


def replace_linear_act(model: nn.Module) -> Replacements:
    """Swap a `LinearAct` in for each Linear that a supported activation follows in an nn.Sequential of `model`.

    The model is changed in place. The LinearAct has the Linear's place, name and parameters (the same objects, so
    optimizers and a state_dict go on to fit), and an nn.Identity has the activation's, so positions stay.

    Supported are nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.GELU() (as "gelu_erf"), nn.GELU(approximate="tanh") (as
    "gelu"), nn.LeakyReLU, nn.ReLU6, nn.Hardtanh (as "clamp") and nn.Hardswish, themselves and not subclasses. A Linear is left where it isn't quite that, carries hooks or
    parametrizations, or its parameters are of another dtype or device.

    Returns
    -------
    Replacements : names of the layers swapped, and of those left with the reasons. Layers that occur under
        several names are listed under the first.

    TypeError where `model` isn't an nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    report = Replacements()
    made = {}  # a Linear that occurs twice stays one layer
    reasons = {}
    for prefix, sequential in list(model.named_modules()):
        # a subclass that goes through its layers in a way of its own may look at what is between them
        if not isinstance(sequential, nn.Sequential) or type(sequential).forward is not nn.Sequential.forward:
            continue
        names = list(sequential._modules)
        for place, name in enumerate(names):
            linear = sequential._modules[name]
            if not isinstance(linear, nn.Linear):
                continue
            full_name = f"{prefix}.{name}" if prefix else name
            following = sequential._modules[names[place + 1]] if place + 1 < len(names) else None
            activation = _activation(following)
            reason = _reason(linear, following, activation)
            if reason:
                reasons[linear] = reason
                continue
            layer = made.setdefault((linear, activation), LinearAct.from_linear(linear, activation))
            sequential._modules[name] = layer
            sequential._modules[names[place + 1]] = nn.Identity()
            report.swapped[full_name] = activation
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            report.left[name] = reasons.get(module, "not in an nn.Sequential")
    return report


def _activation(module):
    """fge's name of an activation module, or None."""
    if type(module) is nn.GELU:
        return {"none": "gelu_erf", "tanh": "gelu"}.get(module.approximate)
    if type(module) is nn.LeakyReLU:
        return f"leaky_relu({float(module.negative_slope)!r})"
    if type(module) is nn.Hardtanh:
        return f"clamp({float(module.min_val)!r}, {float(module.max_val)!r})"
    return _NAMES.get(type(module))


def _reason(linear, following, activation):
    """Why a Linear and the module that follows can't be swapped; None where they can."""
    if following is None:
        return "the last layer of its nn.Sequential"
    if activation is None:
        return f"followed by {type(following).__name__}, which is no supported activation"
    if type(linear) is not nn.Linear:
        return f"a {type(linear).__name__}, which may compute something else"
    if any(getattr(module, hooks, None) for module in (linear, following) for hooks in _HOOKS):
        return "it or its activation carries hooks"
    if set(linear._parameters) != {"weight", "bias"} or linear._buffers or linear._modules:
        return "it carries parametrizations"
    if "forward" in vars(linear) or "forward" in vars(following):
        return "its forward or that of its activation was replaced"
    if linear.weight.dtype not in _DTYPES:
        return f"its parameters are {linear.weight.dtype}"
    if linear.weight.device.type not in ("cpu", "meta"):
        return f"its parameters are on {linear.weight.device}"
    return None
