"""Numbers as they are shown, in the table and in the plots alike."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three digits and the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value * 1e9:.0f} ns"


def gigaflops(rate: float) -> str:
    """A rate in GFLOP/s, without the unit."""
    return _three_digits(rate / 1e9)


def ratio(value: float) -> str:
    """A ratio of times; one just below 1 isn't rounded to it, since a loss is a loss."""
    digits = 3 if 0.995 <= value < 1 else 2
    return f"{value:.{digits}f}x"


def share(value: float | None) -> str:
    """A share in per cent; a dash where it isn't known."""
    return "-" if value is None else f"{value:.0%}"


def _three_digits(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
