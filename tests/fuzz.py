"""Random problems for the operator, and the check of one: `make fuzz SECONDS=600 SEED=1` goes on with them for a time.

A problem is drawn by hypothesis: sizes around those of every tile, panel and step, dtypes, memory layouts of every kind,
special values, transpositions, activations, engines, instruction sets, threads. Its check compares forward and backward
with the reference in float64.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
from activation_table import ACTIVATIONS
from conftest import PATHS
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from reference import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    HALVES,
    Bounded,
    backward,
    check_reserve,
    flushes_bfloat16,
    forward,
    make_reserve,
    matrix_shape,
    operand_shapes,
    out_shape,
    random,
)

import fge

SIZES = (
    0,
    1,
    2,
    3,
    5,
    6,
    7,
    8,
    9,
    13,
    14,
    15,
    16,
    17,
    27,
    28,
    29,
    31,
    32,
    33,
    42,
    47,
    48,
    49,
    63,
    64,
    65,
    95,
    96,
    97,
    111,
    112,
    113,
)
LARGER = (127, 128, 129, 144, 224, 255, 256, 257, 300, 439, 440, 441, 511, 512, 513, 1023, 1025, 1200)
MOST_PRODUCTS = 3_000_000
LAYOUTS = (
    "contiguous",
    "transposed",
    "gaps",
    "steps",
    "reversed",
    "repeated rows",
    "repeated columns",
    "off by an element",
    "off by a byte",
)
SPECIALS = ("none", "none", "none", "nan", "inf", "zeros", "subnormal", "large", "scales")


@dataclass(frozen=True)
class Problem:
    m: int
    k: int
    n: int
    batch: int  # leading axis of x; 0 for a matrix
    dtype: np.dtype
    activation: str
    x_activation: str
    trans_x: bool
    trans_y: bool
    bias: str  # "none", "own" or "float32"
    layouts: tuple[str, str, str, str]  # of x, y, bias, out_grad
    out_layout: str
    special: str
    accumulate: tuple[str, str, str]  # "no", "own" or "float32"
    needs: tuple[bool, bool, bool]
    path: tuple[str, str]
    threads: int
    values: int  # seed


def _sizes(draw):
    m, k, n = (draw(st.sampled_from(SIZES + LARGER)) for _ in range(3))
    while m * k * n > MOST_PRODUCTS:  # the largest becomes a small one
        largest = max(m, k, n)
        m, k, n = (size % 37 if size == largest else size for size in (m, k, n))
    return m, k, n


@st.composite
def problems(draw):
    m, k, n = _sizes(draw)
    dtype = draw(st.sampled_from(DTYPES))
    half = dtype in HALVES
    names = st.sampled_from(sorted(ACTIVATIONS))
    return Problem(
        m,
        k,
        n,
        draw(st.sampled_from((0, 0, 1, 3))),
        dtype,
        draw(names),
        draw(st.one_of(st.just("none"), names)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(("none", "own", "float32") if half else ("none", "own"))),
        tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(4)),
        draw(
            st.sampled_from(
                ("new", "contiguous", "transposed", "gaps", "steps", "reversed", "off by an element")
            )
        ),
        draw(st.sampled_from(SPECIALS)),
        tuple(
            draw(st.sampled_from(("no", "no", "own", "float32") if half else ("no", "no", "own")))
            for _ in range(3)
        ),
        tuple(draw(st.sampled_from((True, True, True, False))) for _ in range(3)),
        draw(st.sampled_from(PATHS)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2**32 - 1)),
    )


def laid_out(array, layout, filler=np.nan):
    """Equal elements in another layout. "repeated" has strides of zero, and so elements of its own."""
    if layout == "transposed" and array.ndim > 1:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "repeated rows" and array.ndim > 1 and array.shape[-2]:
        return np.broadcast_to(array[..., :1, :], array.shape)
    if layout == "repeated columns" and array.shape[-1]:
        return np.broadcast_to(array[..., :1], array.shape)
    if layout == "off by a byte":
        room = np.zeros(array.nbytes + 1, np.uint8)
        view = room[1:].view(array.dtype) if array.nbytes else np.empty(0, array.dtype)
        view = view.reshape(array.shape)
        view[...] = array
        return view
    if layout in ("gaps", "steps", "reversed", "off by an element"):
        step, margin = {"gaps": (1, 3), "steps": (2, 1), "reversed": (-1, 1), "off by an element": (1, 0)}[
            layout
        ]
        room = np.full([extent * abs(step) + 2 * margin for extent in array.shape], filler, array.dtype)
        if layout == "off by an element":
            view = np.full(array.size + 1, filler, array.dtype)[1:].reshape(array.shape)
        else:
            view = room[
                tuple(slice(margin, margin + extent * abs(step), abs(step)) for extent in array.shape)
            ]
            if step < 0:
                view = view[(slice(None, None, -1),) * array.ndim]
        view[...] = array
        return view
    return array


def with_specials(array, rng, special, dtype):
    """Some elements replaced."""
    tiny, largest = {"bfloat16": (2.0**-133, 3e38)}.get(str(dtype)) or (
        np.finfo(dtype).tiny / 8,
        float(np.finfo(dtype).max),
    )
    large = (
        largest / 4 if dtype == FLOAT16 else largest**0.5 / 256
    )  # sums of products stay in the accumulator's range
    if special == "none" or array.size == 0:
        return array
    if special == "scales":
        return (array.astype(np.float64) * 2.0 ** rng.integers(-8, 8, array.shape)).astype(dtype)
    chosen = {
        "nan": (np.nan,),
        "inf": (np.inf, -np.inf),
        "zeros": (0.0, -0.0),
        "subnormal": (tiny, -tiny),
        "large": (large, -large),
    }[special]
    some = rng.random(array.shape) < 0.02
    return np.where(some, rng.choice(chosen, array.shape), array.astype(np.float64)).astype(dtype)


def assert_matches(actual, expected, what, range_of):
    """Within the bound where that is finite; where the sums hold an infinity or NaN, the same of either. Where a sum may leave
    the accumulator's range on the way, anything is right."""
    actual = actual.astype(np.float64)
    value, bound = (
        np.broadcast_to(expected.value, actual.shape),
        np.broadcast_to(expected.bound, actual.shape),
    )
    checked = np.isfinite(bound) & np.isfinite(value) & (np.abs(value) + bound < range_of)
    with np.errstate(invalid="ignore"):
        wrong = checked & ~(np.abs(actual - value) <= bound)
    wrong |= np.isnan(value) & ~np.isnan(actual)
    wrong |= np.isinf(value) & ~(actual == value)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} wrong, first at {at}: got {actual[at]!r}, expected {value[at]!r} +- {bound[at]:.3g}"
        )


def check(p: Problem):
    """On the problem's engine and instruction set, which are of the whole process."""
    with fge.engine(p.path[0]), fge.isa(p.path[1]):
        check_on_default_path(p)


def check_on_default_path(p: Problem):
    with fge.threads(p.threads), np.errstate(all="ignore"):
        _check(p)


def _check(p):
    rng = np.random.default_rng(p.values)
    special = p.special
    if special in ("inf", "subnormal") and p.dtype == BFLOAT16 and flushes_bfloat16():
        special = "none" if special == "subnormal" else "inf"
    range_of = {"float16": 65000.0, "float64": 1e300}.get(str(p.dtype), 3e38)
    x_shape, y_shape = operand_shapes(p.m, p.k, p.n, p.trans_x, p.trans_y)
    if p.batch:
        x_shape = (p.batch, *x_shape)
    scale = max(p.k, 1) ** -0.5

    def made(shape, dtype, layout, factor=1.0):
        array = (random(rng, shape, np.float64) * factor).astype(dtype)
        return laid_out(with_specials(array, rng, special, dtype), layout)

    x, y = made(x_shape, p.dtype, p.layouts[0]), made(y_shape, p.dtype, p.layouts[1], scale)
    bias_dtype = {"none": None, "own": p.dtype, "float32": FLOAT32}[p.bias]
    bias = None if bias_dtype is None else made((p.n,), bias_dtype, p.layouts[2])
    copies = [None if array is None else array.copy() for array in (x, y, bias)]
    flags = dict(trans_x=p.trans_x, trans_y=p.trans_y)

    shape = out_shape(x, y, **flags)
    out = None if p.out_layout == "new" else laid_out(np.zeros(shape, p.dtype), p.out_layout)
    got, reserve = fge.fused_gemm_epilogue(x, y, bias, **flags, activation=p.activation, out=out)
    expected = forward(x, y, bias, **flags, activation=p.activation)
    assert out is None or got is out
    assert_matches(got, expected.out, "out", range_of)
    if special in ("none", "scales", "zeros"):
        check_reserve(reserve, got, expected, p.activation)
    no_reserve, nothing = fge.fused_gemm_epilogue(
        x, y, bias, **flags, activation=p.activation, save_reserve=False
    )
    assert nothing is None
    assert np.array_equal(
        no_reserve.view(f"u{p.dtype.itemsize}"), np.ascontiguousarray(got).view(f"u{p.dtype.itemsize}")
    ), "save_reserve changes out"

    _check_backward(p, rng, made, x, y, bias, flags, shape, special, range_of)
    for array, copy in zip((x, y, bias), copies):
        if array is not None:
            assert np.ascontiguousarray(array).tobytes() == copy.tobytes(), "an input was written to"


def _check_backward(p, rng, made, x, y, bias, flags, shape, special, range_of):
    # an infinity times a bit of 0 is 0 here, and times a slope that may as well be 0 either is right
    plain = special in ("none", "scales", "zeros") or p.activation == p.x_activation == "none"
    grad_special = special if plain else "none"
    rows = (int(np.prod(shape[:-1])), shape[-1])
    z = rng.normal(size=rows) * 3
    reserve = make_reserve(p.activation, z, p.dtype)
    if reserve is not None and ACTIVATIONS[p.activation].reserve != "bits":
        reserve = reserve.reshape(shape)
    x_reserve = make_reserve(p.x_activation, rng.normal(size=matrix_shape(x)), p.dtype)
    if x_reserve is not None and ACTIVATIONS[p.x_activation].reserve != "bits":
        x_reserve = x_reserve.reshape(x.shape)
    if not plain:
        x, y = (
            np.where(np.isfinite(a.astype(np.float64)), np.clip(a.astype(np.float64), -1, 1), 0).astype(
                p.dtype
            )
            for a in (x, y)
        )
    out_grad = laid_out(with_specials(random(rng, shape, p.dtype), rng, grad_special, p.dtype), p.layouts[3])

    kept = []
    for how, like in zip(p.accumulate, (x.shape, y.shape, (p.n,)), strict=True):
        kept.append(None if how == "no" else random(rng, like, FLOAT32 if how == "float32" else p.dtype))
    kept = [array if wanted else None for array, wanted in zip(kept, p.needs)]
    expected = backward(
        x, y, reserve, out_grad, **flags, activation=p.activation, x_activation=p.x_activation, x_reserve=x_reserve,
        initial=[None if array is None else array.copy() for array in kept],
    )  # fmt: skip
    got = fge.fused_gemm_epilogue_grad(
        x, y, reserve, out_grad, **flags, activation=p.activation, needs=p.needs, x_activation=p.x_activation,
        x_reserve=x_reserve, accumulate_into=tuple(kept),
    )  # fmt: skip
    for name, one, wanted, into, right in zip(
        ("x_grad", "y_grad", "bias_grad"), got, p.needs, kept, expected, strict=True
    ):
        assert (one is not None) == wanted
        if wanted:
            assert into is None or one is into
            assert_matches(one, Bounded(right.value, right.bound), name, range_of)


def fuzz(seconds: float, first_seed: int, per_round: int = 500) -> int:
    """Problems tried until the time is over or one fails, which raises."""
    tried = 0

    def one(problem):
        nonlocal tried
        tried += 1
        check(problem)

    end, number = time.monotonic() + seconds, first_seed
    while time.monotonic() < end:
        once = settings(
            max_examples=per_round,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        seed(number)(once(given(problems())(one)))()
        number += 1
        print(f"{tried} problems, seed {number - 1} done", flush=True)
    return tried


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, default=500, help="problems of one seed; at least one round is tried")
    asked = parser.parse_args()
    fuzz(asked.seconds, asked.seed, asked.round)
