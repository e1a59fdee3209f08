"""Every wrong argument of every public function gives the documented exception, which names it, and nothing is written.

ValueError for shapes, values and overlap; TypeError for dtypes and things that are no arrays.
"""

import numpy as np
import pytest
from activation_table import ACTIVATIONS
from reference import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, relu_bits_width

import fge

M, K, N = 3, 4, 5
SENTINEL = 7


def whole(shape, dtype=FLOAT32):
    return np.ones(shape, dtype)


def overlapping(kind):
    """Arguments that share memory with the output: `kind` names the input that does."""
    memory = whole(200)
    shapes = {"x": (M, K), "y": (K, N), "bias": (N,)}
    start = 8  # the output begins within the input, not at its start
    arguments = {name: whole(shape) for name, shape in shapes.items()}
    size = int(np.prod(shapes[kind]))
    arguments[kind] = memory[:size].reshape(shapes[kind])
    start = size - 1
    arguments["out"] = memory[start : start + M * N].reshape(M, N)
    return arguments


def read_only(array):
    array.flags.writeable = False
    return array


def self_overlapping(shape, dtype=FLOAT32):
    """Writable, and its rows share memory."""
    memory = np.zeros(sum(shape), dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, (memory.itemsize,) * len(shape))


FORWARD_DEFAULTS = dict(x=whole((M, K)), y=whole((K, N)), bias=whole(N), activation="relu")

NOT_ARRAYS = (None, 3.5, "text", [[1.0] * K] * M)
WRONG_DTYPES = ("int32", "int64", "uint8", "bool", "complex64", "object", ">f4", "<U3", "longdouble")

# Each row: the arguments that replace the defaults, the exception, and what its text says.
FORWARD = {
    **{f"x is {value!r:.10}": (dict(x=value), TypeError, r"\bx\b") for value in NOT_ARRAYS},
    **{f"y is {value!r:.10}": (dict(y=value), TypeError, r"\by\b") for value in NOT_ARRAYS},
    **{f"bias is {value!r:.10}": (dict(bias=value), TypeError, r"\bbias\b") for value in NOT_ARRAYS[1:]},
    **{f"out is {value!r:.10}": (dict(out=value), TypeError, r"\bout\b") for value in NOT_ARRAYS[1:]},
    **{f"x of {name}": (dict(x=np.zeros((M, K), name)), TypeError, r"\bx\b") for name in WRONG_DTYPES},
    **{f"y of {name}": (dict(y=np.zeros((K, N), name)), TypeError, r"\by\b") for name in WRONG_DTYPES},
    **{f"bias of {name}": (dict(bias=np.zeros(N, name)), TypeError, r"\bbias\b") for name in WRONG_DTYPES},
    **{f"out of {name}": (dict(out=np.zeros((M, N), name)), TypeError, r"\bout\b") for name in WRONG_DTYPES},
    "both of int64": (dict(x=whole((M, K), "int64"), y=whole((K, N), "int64")), TypeError, r"\bx\b.*int64"),
    "y of another dtype": (
        dict(y=whole((K, N), FLOAT64)),
        TypeError,
        r"(?s)(?=.*\bx\b.*float32)(?=.*\by\b.*float64)",
    ),
    "bias of another dtype": (
        dict(bias=whole(N, FLOAT64)),
        TypeError,
        r"(?=.*\bbias\b.*float64)(?=.*\bx\b.*float32)",
    ),
    "half bias": (dict(bias=whole(N, FLOAT16)), TypeError, r"\bbias\b.*float16"),
    "float32 bias for float64": (
        dict(x=whole((M, K), FLOAT64), y=whole((K, N), FLOAT64), bias=whole(N)),
        TypeError,
        r"\bbias\b.*float32",
    ),
    "bias of the other half type": (
        dict(x=whole((M, K), FLOAT16), y=whole((K, N), FLOAT16), bias=whole(N, BFLOAT16)),
        TypeError,
        r"\bbias\b.*bfloat16",
    ),
    "float64 bias for a half type": (
        dict(x=whole((M, K), FLOAT16), y=whole((K, N), FLOAT16), bias=whole(N, FLOAT64)),
        TypeError,
        r"\bbias\b.*float64",
    ),
    "two half types": (
        dict(x=whole((M, K), FLOAT16), y=whole((K, N), BFLOAT16), bias=None),
        TypeError,
        r"(?=.*\bx\b.*float16)(?=.*\by\b.*bfloat16)",
    ),
    "x of rank 0": (dict(x=whole(())), ValueError, r"\bx\b.*\(\)"),
    "x of rank 1": (dict(x=whole(K)), ValueError, r"\bx\b.*\(4,\)"),
    "y of rank 1": (dict(y=whole(K)), ValueError, r"\by\b.*\(4,\)"),
    "y of rank 3": (dict(y=whole((1, K, N))), ValueError, r"\by\b.*\(1, 4, 5\)"),
    "K differs": (dict(y=whole((K + 1, N))), ValueError, r"(?=.*\bx\b.*\(3, 4\))(?=.*\by\b.*\(5, 5\))"),
    "K differs with trans_x": (dict(trans_x=True), ValueError, r"(?=.*\bx\b.*\(3, 4\))(?=.*trans_x)"),
    "K differs with trans_y": (dict(trans_y=True), ValueError, r"(?=.*\by\b.*\(4, 5\))(?=.*trans_y)"),
    **{
        f"bias of shape {shape}": (dict(bias=whole(shape)), ValueError, r"\bbias\b has shape \(.*\(5,\)")
        for shape in ((N, 1), (1, N), (N - 1,), (N + 1,), (1,), (), (0,))
    },
    "bias of M": (dict(bias=whole(M)), ValueError, r"\bbias\b"),
    "no such activation": (
        dict(activation="swish"),
        ValueError,
        "(?s)'swish'" + "".join(f"(?=.*{a})" for a in fge.activations()),
    ),
    "capitals": (dict(activation="ReLU"), ValueError, "'ReLU'"),
    **{
        f"activation {text!r}": (dict(activation=text), ValueError, needed)
        for text, needed in {
            "relu(1)": "relu takes no number",
            "leaky_relu()": "takes one number",
            "leaky_relu(0.1, 2)": "takes one number",
            "leaky_relu(nan)": "finite",
            "leaky_relu(inf)": "finite",
            "leaky_relu(0.1": "takes one number",
            "leaky_relu(0.1) ": "behind its parenthesis",
            "leaky_relu(0,1)": "takes one number",
            "clamp(1)": "takes two numbers",
            "clamp(2, 1)": "first isn't above",
            "clamp(nan, 1)": "first isn't above",
            "clamp(-1, 1)(2, 3)": "behind its parenthesis",
            "swish(1)": "must be one of",
            "": "must be one of",
            "relu\0": "must be one of",
        }.items()
    },
    "activation is None": (dict(activation=None), (TypeError, ValueError), "activation"),
    "activation is a number": (dict(activation=1), (TypeError, ValueError), "activation"),
    "activation is a list": (dict(activation=["relu"]), (TypeError, ValueError), "activation"),
    "out of another shape": (dict(out=np.zeros((N, M), FLOAT32)), ValueError, r"\bout\b.*\(5, 3\).*\(3, 5\)"),
    "out of another rank": (dict(out=np.zeros((1, M, N), FLOAT32)), ValueError, r"\bout\b.*\(1, 3, 5\)"),
    "out flattened": (
        dict(x=whole((2, M, K)), out=np.zeros((2 * M, N), FLOAT32)),
        ValueError,
        r"\bout\b.*\(6, 5\).*\(2, 3, 5\)",
    ),
    "out of another dtype": (dict(out=np.zeros((M, N), FLOAT64)), TypeError, r"\bout\b.*float64"),
    "out is read-only": (dict(out=read_only(np.zeros((M, N), FLOAT32))), ValueError, r"\bout\b"),
    "out is broadcast": (dict(out=self_overlapping((M, N))), ValueError, r"\bout\b"),
    "out repeats a row": (
        dict(out=np.lib.stride_tricks.as_strided(np.zeros(N, FLOAT32), (M, N), (0, 4))),
        ValueError,
        r"\bout\b",
    ),
    **{
        f"out overlaps {name}": (overlapping(name), ValueError, rf"\bout\b.*\b{name}\b")
        for name in ("x", "y", "bias")
    },
}


def snapshot(arguments):
    """Copies of the memory of every array among the arguments, tuples included; the base where there is one."""
    arrays = []
    for value in arguments.values():
        arrays += [
            item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, np.ndarray)
        ]
    owners = [array if array.base is None else array.base for array in arrays]
    return [(owner, owner.tobytes()) for owner in owners if isinstance(owner, np.ndarray)]


def assert_refused(function, arguments, error, text):
    before = snapshot(arguments)
    with pytest.raises(error, match=text):
        function(**arguments)
    assert all(owner.tobytes() == contents for owner, contents in before), (
        "memory was written before the refusal"
    )


@pytest.mark.parametrize("row", FORWARD)
def test_forward_refuses(row):
    changes, error, text = FORWARD[row]
    arguments = FORWARD_DEFAULTS | changes
    arguments.setdefault("out", np.full((M, N), SENTINEL, FLOAT32))
    assert_refused(fge.fused_gemm_epilogue, arguments, error, text)


def test_out_equal_to_x_is_refused():
    square = whole((4, 4))
    assert_refused(
        fge.fused_gemm_epilogue, dict(x=square, y=whole((4, 4)), out=square), ValueError, r"\bout\b.*\bx\b"
    )
    assert_refused(
        fge.fused_gemm_epilogue, dict(x=square, y=whole((4, 4)), out=square.T), ValueError, r"\bout\b.*\bx\b"
    )


def test_interleaved_memory_is_no_overlap():
    """`out` may be the odd columns of an array whose even columns are x."""
    memory = whole((4, 8))
    out, _ = fge.fused_gemm_epilogue(memory[:, ::2], whole((4, 4)), out=memory[:, 1::2])
    assert (memory[:, 1::2] == 4).all() and (memory[:, ::2] == 1).all()


def test_the_wrong_bias_is_explained():
    with pytest.raises(ValueError) as info:
        fge.fused_gemm_epilogue(whole((8, 4)), whole((4, 128)), whole(127))
    assert (
        str(info.value)
        == "bias has shape (127,); it must have shape (N,) = (128,) to match y of shape (4, 128)"
    )


BITS = np.zeros((M, relu_bits_width(N)), np.uint8)
X_BITS = np.zeros((M, relu_bits_width(K)), np.uint8)
BACKWARD_DEFAULTS = dict(
    x=whole((M, K)), y=whole((K, N)), reserve=BITS, out_grad=whole((M, N)), activation="relu"
)
GELU = dict(activation="gelu", reserve=whole((M, N)))
GRAD_SHAPES = {"x": (M, K), "y": (K, N), "bias": (N,)}


def into(position, array):
    """accumulate_into with one array."""
    return dict(accumulate_into=tuple(array if i == position else None for i in range(3)))


def accumulator_on(name):
    """Arguments in which the accumulator of y_grad lies on the input `name`."""
    arguments = BACKWARD_DEFAULTS | GELU | dict(x_activation="gelu", x_reserve=whole((M, K)))
    memory = whole(100)
    size = arguments[name].size
    arguments[name] = memory[:size].reshape(arguments[name].shape)
    return arguments | into(1, memory[size - 1 : size - 1 + K * N].reshape(K, N))


MISSING = (
    r"'{}' needs the reserve that the forward returned; got None \(was it called with save_reserve=False\?\)"
)

BACKWARD = {
    **{
        f"{name} is {value!r:.10}": ({name: value}, TypeError, rf"\b{name}\b")
        for name in ("x", "y", "out_grad")
        for value in NOT_ARRAYS
    },
    **{
        f"{name} of {dtype}": (
            {name: np.zeros(BACKWARD_DEFAULTS[name].shape, dtype)},
            TypeError,
            rf"\b{name}\b",
        )
        for name in ("x", "y", "out_grad")
        for dtype in (*WRONG_DTYPES, "float64", "float16")
    },
    "x of rank 1": (dict(x=whole(K)), ValueError, r"\bx\b.*\(4,\)"),
    "y of rank 3": (dict(y=whole((1, K, N))), ValueError, r"\by\b.*\(1, 4, 5\)"),
    "K differs": (dict(y=whole((K + 1, N))), ValueError, r"(?=.*\bx\b.*\(3, 4\))(?=.*\by\b.*\(5, 5\))"),
    **{
        f"out_grad of shape {shape}": (dict(out_grad=whole(shape)), ValueError, r"\bout_grad\b.*\(3, 5\)")
        for shape in ((N, M), (M, 1), (1, N), (M * N,), (1, M, N), ())
    },
    "no such activation": (
        dict(activation="swish"),
        ValueError,
        "(?s)'swish'" + "".join(f"(?=.*{a})" for a in fge.activations()),
    ),
    "no such x_activation": (dict(x_activation="swish"), ValueError, "x_activation.*'swish'"),
    **{
        f"no reserve of {name}": (
            dict(activation=name, reserve=None),
            ValueError,
            "activation " + MISSING.format(name.partition("(")[0]),
        )
        for name, entry in ACTIVATIONS.items()
        if entry.reserve != "none"
    },
    **{
        f"no x_reserve of {name}": (
            dict(x_activation=name),
            ValueError,
            f"x_activation '{name.partition(chr(40))[0]}' needs",
        )
        for name, entry in ACTIVATIONS.items()
        if entry.reserve != "none"
    },
    "reserve is a list": (dict(reserve=[[1] * 16] * M), TypeError, r"\breserve\b"),
    "bits of another dtype": (dict(reserve=BITS.astype(np.int8)), TypeError, r"\breserve\b.*int8.*uint8"),
    "bits as z": (dict(reserve=whole((M, N))), TypeError, r"\breserve\b.*float32.*uint8"),
    "bits as bools": (dict(reserve=whole((M, N), bool)), TypeError, r"\breserve\b.*bool.*uint8"),
    "bits without padding": (dict(reserve=BITS[:, :1]), ValueError, r"\breserve\b.*\(3, 1\).*\(3, 16\)"),
    "bits of fewer rows": (dict(reserve=BITS[:2]), ValueError, r"\breserve\b.*\(2, 16\).*\(3, 16\)"),
    "bits of batches": (
        dict(x=whole((2, M, K)), out_grad=whole((2, M, N)), reserve=np.zeros((2, M, 16), np.uint8)),
        ValueError,
        r"\breserve\b.*\(2, 3, 16\).*\(6, 16\)",
    ),
    "z of another dtype": (
        GELU | dict(reserve=whole((M, N), FLOAT64)),
        TypeError,
        r"\breserve\b.*float64.*float32",
    ),
    "z as bits": (GELU | dict(reserve=BITS), TypeError, r"\breserve\b.*uint8.*float32"),
    "z of another shape": (
        GELU | dict(reserve=whole((N, M))),
        ValueError,
        r"\breserve\b.*\(5, 3\).*\(3, 5\)",
    ),
    "z broadcast": (GELU | dict(reserve=whole((1, N))), ValueError, r"\breserve\b.*\(1, 5\).*\(3, 5\)"),
    "z flattened": (
        GELU | dict(x=whole((2, M, K)), out_grad=whole((2, M, N)), reserve=whole((2 * M, N))),
        ValueError,
        r"\breserve\b.*\(6, 5\).*\(2, 3, 5\)",
    ),
    "x_reserve of out's shape": (
        dict(x_activation="gelu", x_reserve=whole((M, N))),
        ValueError,
        r"\bx_reserve\b.*\(3, 5\).*\(3, 4\)",
    ),
    "x_reserve of another dtype": (
        dict(x_activation="gelu", x_reserve=X_BITS),
        TypeError,
        r"\bx_reserve\b.*uint8",
    ),
    "x bits of a transposed x": (
        dict(x=whole((K, M)), trans_x=True, x_activation="relu", x_reserve=X_BITS),
        ValueError,
        r"\bx_reserve\b.*\(3, 16\).*\(4, 16\)",
    ),
    "two needs": (dict(needs=(True, True)), ValueError, r"\bneeds\b"),
    "five needs": (dict(needs=(True,) * 5), ValueError, r"\bneeds\b"),
    "four accumulators for three needs": (
        dict(accumulate_into=(None,) * 4),
        ValueError,
        r"\baccumulate_into\b",
    ),
    "no such residual_at": (dict(residual_at="x"), ValueError, "residual_at is 'x'; it must be 'z'"),
    "needs is a bool": (dict(needs=True), TypeError, r"\bneeds\b"),
    "needs is None": (dict(needs=None), TypeError, r"\bneeds\b"),
    "two accumulators": (dict(accumulate_into=(None, None)), ValueError, r"\baccumulate_into\b"),
    "accumulate_into is None": (dict(accumulate_into=None), TypeError, r"\baccumulate_into\b"),
    **{
        f"accumulator {i} {what}": (into(i, make(shape)), error, r"\baccumulate_into\b" + text)
        for i, shape in enumerate(GRAD_SHAPES.values())
        for what, make, error, text in (
            ("is a list", lambda shape: whole(shape).tolist(), TypeError, ""),
            ("is float64", lambda shape: whole(shape, FLOAT64), TypeError, ".*float64"),
            ("is float16", lambda shape: whole(shape, FLOAT16), TypeError, ".*float16"),
            ("is int32", lambda shape: whole(shape, "int32"), TypeError, ".*int32"),
            ("is byte-swapped", lambda shape: whole(shape, ">f4"), TypeError, ""),
            ("is read-only", lambda shape: read_only(whole(shape)), ValueError, ""),
            ("has another shape", lambda shape: whole((*shape, 1)), ValueError, ""),
            (
                "is broadcast",
                lambda shape: np.lib.stride_tricks.as_strided(whole(1), shape, (0,) * len(shape)),
                ValueError,
                "",
            ),
        )
    },
    **{
        f"an accumulator overlaps {name}": (
            accumulator_on(name),
            ValueError,
            rf"\baccumulate_into\b.*\b{name}\b",
        )
        for name in ("x", "y", "reserve", "out_grad", "x_reserve")
    },
    "float32 accumulators of float64": (
        dict(
            x=whole((M, K), FLOAT64),
            y=whole((K, N), FLOAT64),
            out_grad=whole((M, N), FLOAT64),
            **into(0, whole((M, K))),
        ),
        TypeError,
        r"\baccumulate_into\b.*float32",
    ),
}


@pytest.mark.parametrize("row", BACKWARD)
def test_backward_refuses(row):
    changes, error, text = BACKWARD[row]
    assert_refused(fge.fused_gemm_epilogue_grad, BACKWARD_DEFAULTS | changes, error, text)


@pytest.mark.parametrize("first, second", ((0, 1), (0, 2), (1, 2)))
def test_accumulators_must_not_overlap_one_another(first, second):
    memory = whole(100)
    shapes = list(GRAD_SHAPES.values())
    size = int(np.prod(shapes[first]))
    arrays = [whole(shape) for shape in shapes]
    arrays[first] = memory[:size].reshape(shapes[first])
    arrays[second] = memory[size - 1 :][: int(np.prod(shapes[second]))].reshape(shapes[second])
    arguments = BACKWARD_DEFAULTS | dict(accumulate_into=tuple(arrays))
    assert_refused(fge.fused_gemm_epilogue_grad, arguments, ValueError, r"accumulate_into.*accumulate_into")


def test_earlier_accumulators_stay_untouched_when_a_later_one_is_wrong():
    arrays = (np.full((M, K), SENTINEL, FLOAT32), np.full((K, N), SENTINEL, FLOAT32), whole(N, FLOAT64))
    arguments = BACKWARD_DEFAULTS | dict(accumulate_into=arrays)
    assert_refused(fge.fused_gemm_epilogue_grad, arguments, TypeError, r"accumulate_into")


WITH_BITS = np.zeros((2, 16), np.uint8)
OTHERS = {
    "relu_bits_shape of negative rows": (fge.relu_bits_shape, (-1, 5), ValueError, r"\bm\b"),
    "relu_bits_shape of negative columns": (fge.relu_bits_shape, (5, -1), ValueError, r"\bn\b"),
    "relu_bits_shape of a float": (fge.relu_bits_shape, (2.0, 5), TypeError, r"\bm\b"),
    "relu_bits_shape of a float column": (fge.relu_bits_shape, (2, 5.5), TypeError, r"\bn\b"),
    "relu_bits_shape of text": (fge.relu_bits_shape, ("2", 5), TypeError, r"\bm\b"),
    "unpack a list": (fge.unpack_relu_bits, ([[0] * 16], 5), TypeError, r"\bbits\b"),
    "unpack int8": (fge.unpack_relu_bits, (WITH_BITS.astype(np.int8), 5), TypeError, r"\bbits\b.*int8"),
    "unpack one row": (fge.unpack_relu_bits, (WITH_BITS[0], 5), ValueError, r"\bbits\b.*\(16,\)"),
    "unpack too narrow": (fge.unpack_relu_bits, (WITH_BITS, 129), ValueError, r"\bbits\b.*\(2, 16\)"),
    "unpack too wide": (
        fge.unpack_relu_bits,
        (np.zeros((2, 32), np.uint8), 128),
        ValueError,
        r"\bbits\b.*\(2, 32\)",
    ),
    "unpack negative columns": (fge.unpack_relu_bits, (WITH_BITS, -1), ValueError, r"\bn\b"),
    "unpack a float": (fge.unpack_relu_bits, (WITH_BITS, 5.0), TypeError, r"\bn\b"),
    "from uint16 of a list": (fge.bfloat16_from_uint16, ([1, 2],), TypeError, r"\ba\b"),
    "from uint16 of int16": (fge.bfloat16_from_uint16, (np.zeros(3, np.int16),), TypeError, r"\ba\b.*int16"),
    "from uint16 byte-swapped": (fge.bfloat16_from_uint16, (np.zeros(3, ">u2"),), TypeError, r"\ba\b"),
    "to uint16 of a list": (fge.bfloat16_to_uint16, ([1.0],), TypeError, r"\ba\b"),
    "to uint16 of float16": (fge.bfloat16_to_uint16, (np.zeros(3, FLOAT16),), TypeError, r"\ba\b.*float16"),
    "negative threads": (fge.set_num_threads, (-1,), ValueError, r"\bn\b"),
    "no threads": (fge.set_num_threads, (0,), ValueError, r"\bn\b"),
    "threads of a float": (fge.set_num_threads, (2.0,), TypeError, r"\bn\b"),
    "threads of text": (fge.set_num_threads, ("2",), TypeError, r"\bn\b"),
    "threads of a bool": (fge.set_num_threads, (True,), TypeError, r"\bn\b"),
}


@pytest.mark.parametrize("row", OTHERS)
def test_other_functions_refuse(row):
    function, arguments, error, text = OTHERS[row]
    before = fge.get_num_threads()
    with pytest.raises(error, match=text):
        function(*arguments)
    assert fge.get_num_threads() == before


CONTEXTS = {
    "threads(-1)": (fge.threads, -1, ValueError, r"\bn\b"),
    "threads(0)": (fge.threads, 0, ValueError, r"\bn\b"),
    "threads(None)": (fge.threads, None, TypeError, r"\bn\b"),
    "threads('2')": (fge.threads, "2", TypeError, r"\bn\b"),
    "engine('warp')": (fge.engine, "warp", ValueError, r"engine.*'warp'.*blas"),
    "engine(None)": (fge.engine, None, TypeError, "engine"),
    "engine(1)": (fge.engine, 1, TypeError, "engine"),
    "isa('sse9')": (fge.isa, "sse9", ValueError, r"isa.*'sse9'.*portable"),
    "isa(None)": (fge.isa, None, TypeError, "isa"),
    "isa('AVX2')": (fge.isa, "AVX2", ValueError, "isa.*'AVX2'"),
}


@pytest.mark.parametrize("row", CONTEXTS)
def test_contexts_refuse(row):
    context, argument, error, text = CONTEXTS[row]
    before = fge.config()
    with pytest.raises(error, match=text):
        with context(argument):
            pytest.fail("the context was entered")
    assert fge.config() == before


@pytest.mark.parametrize("name", sorted({"avx512_bf16", "avx512", "avx2", "amx"} - set(fge.isas())))
def test_an_instruction_set_that_this_machine_lacks_is_refused(name):
    with pytest.raises((ValueError, RuntimeError), match=name):
        with fge.isa(name):
            pytest.fail("the context was entered")


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="transpose_x"):
        fge.fused_gemm_epilogue(whole((M, K)), whole((K, N)), transpose_x=True)


def test_keyword_only_arguments_are_not_positional():
    with pytest.raises(TypeError):
        fge.fused_gemm_epilogue(whole((M, K)), whole((K, N)), whole(N), False, False, "relu", False)


def test_a_masked_array_is_refused_rather_than_unmasked():
    with pytest.raises(TypeError, match=r"\bx\b.*mask"):
        fge.fused_gemm_epilogue(np.ma.masked_array(whole((M, K)), whole((M, K), bool)), whole((K, N)))


def test_the_call_after_a_refusal_works():
    for changes, error, _ in FORWARD.values():
        with pytest.raises(error):
            fge.fused_gemm_epilogue(**FORWARD_DEFAULTS | changes)
    out, _ = fge.fused_gemm_epilogue(**FORWARD_DEFAULTS)
    assert (out == K + 1).all()
