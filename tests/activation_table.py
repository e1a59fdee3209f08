"""What the tests know about each activation, independently of the package: formula, derivative, reserve.

Each formula is written once, over a namespace `m` of mathematical functions, and evaluated either by numpy in
float64 (enough to judge float32) or by mpmath with 60 digits (to judge float64).
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
from scipy import special

DIGITS = 60
FLOAT64 = SimpleNamespace(exp=np.exp, erfc=special.erfc, tanh=np.tanh, sqrt=np.sqrt, pi=np.pi, number=float)
_mp = mpmath.mp.clone()
_mp.dps = DIGITS
EXACT = SimpleNamespace(exp=_mp.exp, erfc=_mp.erfc, tanh=_mp.tanh, sqrt=_mp.sqrt, pi=_mp.pi, number=_mp.mpf)

# From here on outwards every function of the table equals its limit in double precision. Within, no formula below
# meets inf * 0, and mpmath is spared exponentials of astronomical arguments.
SATURATION = 1000.0


def _sigmoid(m, t):
    return 1 / (1 + m.exp(-t))


def _gelu_exponent(m, z):
    return 2 * m.sqrt(2 / m.number(m.pi)) * (z + m.number("0.044715") * z * z * z)


def _gelu(m, z):
    # 0.5 z (1 + tanh u) = z / (1 + exp(-2u)), without the cancellation in the negative tail.
    return z / (1 + m.exp(-_gelu_exponent(m, z)))


def _gelu_slope(m, z):
    exponent = _gelu_exponent(m, z)
    exponent_slope = 2 * m.sqrt(2 / m.number(m.pi)) * (1 + 3 * m.number("0.044715") * z * z)
    return _sigmoid(m, exponent) + z * _sigmoid(m, exponent) * _sigmoid(m, -exponent) * exponent_slope


def _normal_cdf(m, z):
    return m.erfc(-z / m.sqrt(m.number(2))) / 2


def _gelu_erf(m, z):
    return z * _normal_cdf(m, z)


def _gelu_erf_slope(m, z):
    return _normal_cdf(m, z) + z * m.exp(-z * z / 2) / m.sqrt(2 * m.number(m.pi))


def _silu(m, z):
    return z * _sigmoid(m, z)


def _silu_slope(m, z):
    return _sigmoid(m, z) * (1 + z * _sigmoid(m, -z))


def _sigmoid_slope(m, out):
    return out * (1 - out)


def _tanh(m, z):
    return m.tanh(z)


def _tanh_slope(m, out):
    return (1 - out) * (1 + out)


def _leaky_relu(alpha):
    return lambda m, z: z * (z > 0) + m.number(alpha) * z * (z <= 0)


def _leaky_relu_slope(alpha):
    return lambda m, bit: bit + m.number(alpha) * (1 - bit)


def _clamp(lo, hi):
    return lambda m, z: z * ((lo < z) & (z < hi)) + lo * (z <= lo) + hi * (z >= hi)


def _sqrelu(m, z):
    return z * (z > 0) * z


def _sqrelu_slope(m, z):
    return 2 * z * (z > 0)


def _hardswish(m, z):
    return z * ((-3 < z) & (z < 3)) * (z + 3) / 6 + z * (z >= 3)


def _hardswish_slope(m, z):
    return ((-3 < z) & (z < 3)) * (2 * z + 3) / m.number(6) + (z >= 3)


def _identity(m, z):
    return z


def _relu(m, z):
    return z * (z > 0)


def _one(m, z):
    return 0 * z + 1


IDENTITY = "identity"


@dataclass(frozen=True)
class Activation:
    """One activation.

    `slope_formula` takes what the forward reserves: z, out, or the bit (as 0 or 1). `below` and `above` are the
    limits at -inf and +inf; IDENTITY stands for z itself. `max_slope` bounds |derivative|, so that an error e in z
    changes the output by at most max_slope * e; a function of the largest |z| in question where it has no bound. An
    `exact` activation rounds nothing, nor does its derivative. One that `saturates` is at its limits from SATURATION on. The bit is set strictly between `edges`.
    """

    name: str
    reserve: str  # "none", "bits", "z" or "out"
    formula: Callable[[Any, Any], Any]
    slope_formula: Callable[[Any, Any], Any]
    below: Any
    above: Any
    max_slope: Any
    exact: bool = False
    edges: tuple[float, float] = (0.0, np.inf)

    saturates: bool = True

    def _last(self):
        """Where the limits begin."""
        return SATURATION if self.saturates else np.finfo(np.float64).max

    def spread(self, z, error):
        """The most by which act(z) changes where z changes by `error`."""
        return (self.max_slope(np.abs(z) + error) if callable(self.max_slope) else self.max_slope) * error

    def bit(self, z):
        low, high = self.edges
        return (low < np.asarray(z)) & (np.asarray(z) < high)

    def forward(self, z):
        """act(z) in float64, NaN for NaN."""
        z = np.asarray(z, np.float64)
        last = self._last()
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            inside = self.formula(FLOAT64, np.clip(z, -last, last))
        result = np.where(z > last, self._limit(self.above, z), inside)
        return np.where(z < -last, self._limit(self.below, z), result)

    def forward_exact(self, z):
        """act(z) for one finite double, as an mpmath number."""
        if abs(z) > self._last():
            return _mp.mpf(self._limit(self.above if z > 0 else self.below, z))
        return self.formula(EXACT, _mp.mpf(z))

    def slope(self, reserved):
        """The derivative in float64 from what was reserved."""
        last = self._last()
        with np.errstate(over="ignore", under="ignore"):
            return self.slope_formula(FLOAT64, np.clip(np.asarray(reserved, np.float64), -last, last))

    def slope_exact(self, reserved):
        return self.slope_formula(EXACT, _mp.mpf(min(max(reserved, -self._last()), self._last())))

    def reserved(self, z):
        """What the forward keeps for the derivative, unrounded: the bit, z, or out."""
        return {"none": z, "bits": self.bit(z), "z": z, "out": self.forward(z)}[self.reserve]

    @staticmethod
    def _limit(limit, z):
        return z if limit is IDENTITY else limit


_ENTRIES = (
    Activation("none", "none", _identity, _one, IDENTITY, IDENTITY, 1.0, exact=True),
    Activation("relu", "bits", _relu, _identity, 0.0, IDENTITY, 1.0, exact=True),
    Activation("gelu", "z", _gelu, _gelu_slope, -0.0, IDENTITY, 1.13),
    Activation("gelu_erf", "z", _gelu_erf, _gelu_erf_slope, -0.0, IDENTITY, 1.13),
    Activation("silu", "z", _silu, _silu_slope, -0.0, IDENTITY, 1.1),
    Activation("sigmoid", "out", _sigmoid, _sigmoid_slope, 0.0, 1.0, 0.25),
    Activation("tanh", "out", _tanh, _tanh_slope, -1.0, 1.0, 1.0),
    Activation(
        "leaky_relu",
        "bits",
        _leaky_relu(0.01),
        _leaky_relu_slope(0.01),
        IDENTITY,
        IDENTITY,
        1.0,
        saturates=False,
    ),
    Activation("relu6", "bits", _clamp(0, 6), _identity, 0.0, 6.0, 1.0, exact=True, edges=(0, 6)),
    Activation("clamp", "bits", _clamp(-1, 1), _identity, -1.0, 1.0, 1.0, exact=True, edges=(-1, 1)),
    Activation("sqrelu", "z", _sqrelu, _sqrelu_slope, 0.0, IDENTITY, lambda z: 2 * z, saturates=False),
    Activation("hardswish", "z", _hardswish, _hardswish_slope, -0.0, IDENTITY, 1.5),
    # with numbers of their own
    Activation(
        "leaky_relu(0.3)",
        "bits",
        _leaky_relu(0.3),
        _leaky_relu_slope(0.3),
        IDENTITY,
        IDENTITY,
        1.0,
        saturates=False,
    ),
    Activation(
        "leaky_relu(2)",
        "bits",
        _leaky_relu(2),
        _leaky_relu_slope(2),
        IDENTITY,
        IDENTITY,
        2.0,
        saturates=False,
    ),
    Activation(
        "clamp(-0.5, 20)", "bits", _clamp(-0.5, 20), _identity, -0.5, 20.0, 1.0, exact=True, edges=(-0.5, 20)
    ),
)
ACTIVATIONS = {entry.name: entry for entry in _ENTRIES}
ROUNDED = tuple(entry.name for entry in _ENTRIES if not entry.exact)
CURVED = tuple(name for name in ROUNDED if ACTIVATIONS[name].reserve != "bits")
