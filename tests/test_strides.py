"""Any strides are right, for every operand: the same bits as on contiguous copies, and nothing written next door."""

import fge
import numpy as np
import pytest
from activation_table import ACTIVATIONS
from designs import TRANSPOSITIONS
from reference import (
    FLOAT32,
    HALVES,
    accumulator,
    assert_all_same_bits,
    assert_same_bits,
    bits_of,
    make_reserve,
    operand_shapes,
    random,
    random_operands,
    rng_for,
)

pytestmark = pytest.mark.usefixtures("path")


def _filler(dtype):
    """What surrounds the elements of a view: a value that poisons whatever reads it."""
    return 0xA5 if dtype == np.uint8 else np.nan


def _within(array, steps, margin=2):
    """A view that equals `array`, with `steps` per axis through a larger array, which is its base."""
    shape = [2 * margin + max(extent, 1) * abs(step) for extent, step in zip(array.shape, steps)]
    base = np.full(shape, _filler(array.dtype), array.dtype)
    index = tuple(slice(margin, margin + extent * abs(step), abs(step)) for extent, step in zip(array.shape, steps))
    view = base[index][tuple(slice(None, None, 1 if step > 0 else -1) for step in steps)]
    view[...] = array
    return view


def _transposed(array):
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def _transposed_slice(array):
    return _within(array.swapaxes(-1, -2), (1,) * array.ndim).swapaxes(-1, -2)


def _steps(last, second_to_last=1):
    return lambda array: _within(array, ((1,) * array.ndim + (second_to_last, last))[-array.ndim :])


LAYOUTS = {
    "gap between rows": _steps(1),
    "every second row": _steps(1, 2),
    "every third column": _steps(3),
    "reversed rows": _steps(1, -1),
    "reversed columns": _steps(-1),
    "reversed both, with steps": _steps(-2, -3),
    "transposed": _transposed,
    "transposed slice": _transposed_slice,
}
VECTOR_LAYOUTS = {"every third": _steps(3), "reversed": _steps(-1), "reversed with a step": _steps(-2)}
SHAPES = ((13, 29, 21), (1, 40, 33), (50, 40, 1), (70, 300, 131))


# Each layout with each shape; the transpositions take turns, so that each meets every layout and every shape.
PROBLEMS = [
    pytest.param(layout, shape, position % 4, id=f"{name}-{'x'.join(map(str, shape))}")
    for row, (name, layout) in enumerate(LAYOUTS.items())
    for position, shape in enumerate(SHAPES, start=row)
]


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture(params=TRANSPOSITIONS, ids=str)
def flags(request):
    return request.param


def operands(m, k, n, dtype, flags, activation):
    """x, y, bias, reserve, out_grad, all contiguous."""
    rng = rng_for(m, k, n, flags)
    x, y, bias = random_operands(rng, m, k, n, dtype, *flags)
    reserve = make_reserve(activation, rng.uniform(-3, 3, (m, n)).astype(dtype), dtype)
    return x, y, bias, reserve, random(rng, (m, n), dtype)


@pytest.mark.parametrize("layout, shape, turn", PROBLEMS)
def test_forward(layout, shape, turn, dtype):
    flags = TRANSPOSITIONS[turn]
    x, y, bias, _, _ = operands(*shape, dtype, flags, "gelu")
    expected = fge.fused_gemm_epilogue(x, y, bias, *flags, "gelu")
    for arguments in ((layout(x), y), (x, layout(y)), (layout(x), layout(y))):
        assert_all_same_bits(fge.fused_gemm_epilogue(*arguments, bias, *flags, "gelu"), expected)


@pytest.mark.parametrize("layout, shape, turn", PROBLEMS)
def test_backward(layout, shape, turn, dtype):
    flags = TRANSPOSITIONS[turn]
    x, y, _, reserve, out_grad = operands(*shape, dtype, flags, "gelu")
    expected = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, "gelu")
    for arguments in (
        (layout(x), y, reserve, out_grad),
        (x, layout(y), reserve, out_grad),
        (x, y, layout(reserve), out_grad),
        (x, y, reserve, layout(out_grad)),
        tuple(map(layout, (x, y, reserve, out_grad))),
    ):
        assert_all_same_bits(fge.fused_gemm_epilogue_grad(*arguments, *flags, "gelu"), expected)


@pytest.mark.parametrize("needs", ((True, True, True), (False, False, True)), ids=str)
def test_backward_without_an_activation(needs, layout, flags, dtype):
    """Operands without a reserve are read along whichever axis is contiguous; bias_grad sums one of the two."""
    x, y, _, _, out_grad = operands(13, 29, 21, dtype, flags, "none")
    expected = fge.fused_gemm_epilogue_grad(x, y, None, out_grad, *flags, needs=needs)
    got = fge.fused_gemm_epilogue_grad(x, y, None, layout(out_grad), *flags, needs=needs)
    assert_all_same_bits(got, expected)


@pytest.mark.parametrize("activation", ("relu", "sigmoid"))
def test_reserves_of_other_kinds(activation, layout, dtype):
    x, y, _, reserve, out_grad = operands(20, 30, 150, dtype, (False, False), activation)
    expected = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation=activation)
    got = fge.fused_gemm_epilogue_grad(x, y, layout(reserve), out_grad, activation=activation)
    assert_all_same_bits(got, expected)


@pytest.mark.parametrize("x_activation", ("relu", "gelu", "tanh"))
def test_x_reserve(x_activation, layout, flags, dtype):
    x, y, _, _, out_grad = operands(20, 30, 41, dtype, flags, "none")
    x_reserve = make_reserve(x_activation, rng_for("x_reserve").uniform(-3, 3, x.shape).astype(dtype), dtype)
    options = dict(x_activation=x_activation, needs=(True, False, False))
    expected = fge.fused_gemm_epilogue_grad(x, y, None, out_grad, *flags, x_reserve=x_reserve, **options)
    got = fge.fused_gemm_epilogue_grad(x, y, None, out_grad, *flags, x_reserve=layout(x_reserve), **options)
    assert_all_same_bits(got, expected)


@pytest.mark.parametrize("layout", VECTOR_LAYOUTS)
def test_bias(layout, dtype):
    x, y, bias, _, _ = operands(9, 5, 45, dtype, (False, False), "none")
    expected = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
    biases = [(bias, expected)]
    if dtype in HALVES:
        wide = random(rng_for("wide bias"), (45,), FLOAT32)
        biases.append((wide, fge.fused_gemm_epilogue(x, y, wide, activation="gelu")))
    for array, result in biases:
        got = fge.fused_gemm_epilogue(x, y, VECTOR_LAYOUTS[layout](array), activation="gelu")
        assert_all_same_bits(got, result)


@pytest.mark.parametrize("layout, shape, turn", PROBLEMS)
def test_out(layout, shape, turn, dtype):
    """Written where the view points and nowhere else, whatever its strides."""
    activation = ("none", "relu", "gelu", "sigmoid")[turn]
    x, y, bias, _, _ = operands(*shape, dtype, (False, False), "none")
    expected, expected_reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    view = layout(np.full(expected.shape, np.nan, dtype))
    neighbours = neighbours_of(view, view.base)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation, out=view)
    assert out is view
    assert_same_bits(out, expected, "out")
    if ACTIVATIONS[activation].reserve == "out":
        assert_same_bits(reserve, out, "reserve")
    elif expected_reserve is not None:
        assert_same_bits(reserve, expected_reserve, "reserve")
    assert np.isnan(view.base[neighbours].astype(np.float64)).all(), "written outside the view"


def neighbours_of(view, base):
    """A mask of the elements of `base` that don't belong to `view`; the view keeps its contents."""
    kept = view.copy()
    view[...] = 0
    before = bits_of(base).copy()
    view[...] = 1
    mask = bits_of(base) == before
    view[...] = kept
    return mask


def test_accumulate_into(layout, flags, dtype):
    x, y, _, reserve, out_grad = operands(20, 30, 41, dtype, flags, "gelu")
    for kept_in in {dtype, accumulator(dtype)}:
        contiguous = [np.ones(shape, kept_in) for shape in (x.shape, y.shape, (41,))]
        views = [layout(contiguous[0]), layout(contiguous[1]), VECTOR_LAYOUTS["every third"](contiguous[2])]
        fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, "gelu", accumulate_into=tuple(contiguous))
        got = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, "gelu", accumulate_into=tuple(views))
        assert all(one is other for one, other in zip(got, views))
        assert_all_same_bits(views, contiguous)
        for view in views:
            if view.base.size > view.size:
                neighbours = view.base[neighbours_of(view, view.base)]
                assert np.isnan(neighbours.astype(np.float64)).all(), "written outside the view"


def test_out_inside_a_wider_array(dtype):
    x, y, bias, _, _ = operands(6, 5, 20, dtype, (False, False), "none")
    expected, _ = fge.fused_gemm_epilogue(x, y, bias)
    big = np.full((6, 30), 7, dtype)
    fge.fused_gemm_epilogue(x, y, bias, out=big[:, 3:23])
    assert_same_bits(big[:, 3:23], expected)
    assert (big[:, :3] == 7).all() and (big[:, 23:] == 7).all()


def test_broadcast_operands(dtype):
    """Stride 0 in any axis of any input."""
    rng = rng_for("broadcast")
    row, column = random(rng, (1, 30), dtype), random(rng, (30, 1), dtype)
    three = np.broadcast_to(np.asarray(3, dtype), (30,))
    one = np.broadcast_to(np.ones((), dtype), (30, 30))
    views = [np.broadcast_to(row, (30, 30)), np.broadcast_to(column, (30, 30)), one]
    for x in views:
        for y in views:
            for flags in TRANSPOSITIONS:
                got = fge.fused_gemm_epilogue(x, y, three, *flags, "gelu")
                expected = fge.fused_gemm_epilogue(x.copy(), y.copy(), three.copy(), *flags, "gelu")
                assert_all_same_bits(got, expected, "forward")
                got = fge.fused_gemm_epilogue_grad(x, y, views[0], one, *flags, "gelu")
                expected = fge.fused_gemm_epilogue_grad(x.copy(), y.copy(), views[0].copy(), one.copy(), *flags, "gelu")
                assert_all_same_bits(got, expected, "backward")


def test_batches_that_do_not_flatten(dtype):
    """Leading axes whose strides aren't multiples of one another can't be seen as one axis of rows."""
    rng = rng_for("batches")
    y, bias = random(rng, (9, 13), dtype), random(rng, (13,), dtype)
    big = random(rng, (4, 10, 9), dtype)
    views = (big[:, ::2], big[::2, :5], big[::-1, ::3], big.swapaxes(0, 1), np.broadcast_to(big[:1], (3, 10, 9)))
    for x in views:
        got, reserve = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
        assert_all_same_bits((got, reserve), fge.fused_gemm_epilogue(x.copy(), y, bias, activation="gelu"))
        out_grad = random(rng, (got.shape[1], got.shape[0], 13), dtype).swapaxes(0, 1)
        grads = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation="gelu")
        expected = fge.fused_gemm_epilogue_grad(x.copy(), y, reserve, out_grad.copy(), activation="gelu")
        assert_all_same_bits(grads, expected)


def test_out_with_leading_axes_that_do_not_flatten(dtype):
    rng = rng_for("out batches")
    x, y = random(rng, (4, 5, 9), dtype), random(rng, (9, 13), dtype)
    big = np.full((4, 10, 20), 7, dtype)
    out, _ = fge.fused_gemm_epilogue(x, y, out=big[:, ::2, 3:16])
    assert_same_bits(out, fge.fused_gemm_epilogue(x, y)[0])
    big[:, ::2, 3:16] = 7
    assert (big == 7).all()


@pytest.mark.parametrize("stride", (0, 2**40, -(2**40)))
def test_size_one_axes_may_have_any_stride(stride, dtype):
    """numpy leaves the stride of an axis of length 1 undefined; as a leading dimension it would be absurd."""
    rng = rng_for("size one")

    def with_strides(array):
        strides = [stride if extent == 1 else own for extent, own in zip(array.shape, array.strides)]
        return np.lib.stride_tricks.as_strided(array, strides=strides)

    for m, k, n in ((1, 20, 30), (20, 1, 30), (20, 30, 1), (1, 1, 30), (1, 1, 1)):
        for flags in TRANSPOSITIONS:
            x, y, bias = random_operands(rng, m, k, n, dtype, *flags)
            out_grad = random(rng, (m, n), dtype)
            got = fge.fused_gemm_epilogue(with_strides(x), with_strides(y), with_strides(bias), *flags, "gelu")
            expected = fge.fused_gemm_epilogue(x, y, bias, *flags, "gelu")
            assert_all_same_bits(got, expected, f"forward {m}x{k}x{n}")
            inputs = with_strides(x), with_strides(y), with_strides(got[1]), with_strides(out_grad)
            grads = fge.fused_gemm_epilogue_grad(*inputs, *flags, "gelu")
            expected = fge.fused_gemm_epilogue_grad(x, y, got[1], out_grad, *flags, "gelu")
            assert_all_same_bits(grads, expected, f"backward {m}x{k}x{n}")
            out = with_strides(np.full((m, n), np.nan, dtype))
            fge.fused_gemm_epilogue(x, y, bias, *flags, "gelu", out=out)
            assert_same_bits(out, got[0], "out")


def misaligned(array, offset):
    """A copy that starts `offset` bytes past an aligned address."""
    buffer = np.zeros(array.nbytes + 128, np.uint8)
    start = -buffer.ctypes.data % 64 + offset
    view = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("offset", (1, 2, 4, 20))
def test_misaligned_operands(offset, dtype):
    """Aligned for the element is always right. Anything less is right too, or a TypeError that says so."""
    inputs = operands(33, 40, 65, dtype, (False, False), "gelu")
    x, y, bias, reserve, out_grad = (misaligned(array, offset) for array in inputs)
    out = misaligned(np.zeros((33, 65), dtype), offset)
    try:
        fge.fused_gemm_epilogue(x, y, bias, activation="gelu", out=out)
        grads = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation="gelu")
    except TypeError as error:
        assert offset % dtype.itemsize, "an aligned array was refused"
        assert "align" in str(error)
        return
    assert_same_bits(out, fge.fused_gemm_epilogue(*inputs[:3], activation="gelu")[0])
    expected = fge.fused_gemm_epilogue_grad(inputs[0], inputs[1], *inputs[3:], activation="gelu")
    assert_all_same_bits(grads, expected)


def test_read_only_inputs(dtype):
    inputs = operands(20, 30, 41, dtype, (False, False), "gelu")
    expected = fge.fused_gemm_epilogue(*inputs[:3], activation="gelu")
    expected_grads = fge.fused_gemm_epilogue_grad(*inputs[:2], *inputs[3:], activation="gelu")
    for array in inputs:
        array.flags.writeable = False
    assert_all_same_bits(fge.fused_gemm_epilogue(*inputs[:3], activation="gelu"), expected)
    got = fge.fused_gemm_epilogue_grad(*inputs[:2], *inputs[3:], activation="gelu")
    assert_all_same_bits(got, expected_grads)


def test_memory_mapped_inputs(tmp_path, dtype):
    x, y, bias, _, _ = operands(20, 30, 41, dtype, (False, False), "none")
    mapped = []
    for name, array in (("x", x), ("y", y), ("bias", bias)):
        array.tofile(tmp_path / name)
        mapped.append(np.memmap(tmp_path / name, dtype, mode="r", shape=array.shape))
    got = fge.fused_gemm_epilogue(*mapped, activation="gelu")
    assert_all_same_bits(got, fge.fused_gemm_epilogue(x, y, bias, activation="gelu"))


def test_fresh_results_are_contiguous(flags, dtype):
    x, y, bias, reserve, out_grad = operands(20, 30, 41, dtype, flags, "gelu")
    results = fge.fused_gemm_epilogue(x, y, bias, *flags, "gelu")
    results += fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, "gelu")
    assert all(result.flags.c_contiguous for result in results)
    assert [result.shape for result in results[2:]] == [*operand_shapes(20, 30, 41, *flags), (41,)]
