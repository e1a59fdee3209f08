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
    changes the output by at most max_slope * e. An `exact` activation rounds nothing, nor does its derivative.
    """

    name: str
    reserve: str  # "none", "bits", "z" or "out"
    formula: Callable[[Any, Any], Any]
    slope_formula: Callable[[Any, Any], Any]
    below: Any
    above: Any
    max_slope: float
    exact: bool = False

    def forward(self, z):
        """act(z) in float64, NaN for NaN."""
        z = np.asarray(z, np.float64)
        if self.exact:
            with np.errstate(invalid="ignore"):  # relu of inf: 0 * inf is replaced by the limit below
                inside = self.formula(FLOAT64, z)
        else:
            with np.errstate(over="ignore", under="ignore"):
                inside = self.formula(FLOAT64, np.clip(z, -SATURATION, SATURATION))
        result = np.where(z > SATURATION, self._limit(self.above, z), inside)
        return np.where(z < -SATURATION, self._limit(self.below, z), result)

    def forward_exact(self, z):
        """act(z) for one finite double, as an mpmath number."""
        if abs(z) > SATURATION:
            return _mp.mpf(self._limit(self.above if z > 0 else self.below, z))
        return self.formula(EXACT, _mp.mpf(z))

    def slope(self, reserved):
        """The derivative in float64 from what was reserved."""
        with np.errstate(over="ignore", under="ignore"):
            return self.slope_formula(
                FLOAT64, np.clip(np.asarray(reserved, np.float64), -SATURATION, SATURATION)
            )

    def slope_exact(self, reserved):
        return self.slope_formula(EXACT, _mp.mpf(min(max(reserved, -SATURATION), SATURATION)))

    def reserved(self, z):
        """What the forward keeps for the derivative, unrounded: the bit, z, or out."""
        return {"none": z, "bits": np.asarray(z) > 0, "z": z, "out": self.forward(z)}[self.reserve]

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
)
ACTIVATIONS = {entry.name: entry for entry in _ENTRIES}
CURVED = tuple(entry.name for entry in _ENTRIES if not entry.exact)
