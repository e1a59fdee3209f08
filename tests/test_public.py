"""The names around the operator: what there is to choose from, and what is chosen."""

import inspect
import io

import numpy as np
import pytest
from processes import run_child, run_python

import fge

FUNCTIONS = (
    "activations",
    "bfloat16_from_uint16",
    "bfloat16_to_uint16",
    "config",
    "engine",
    "engines",
    "fused_gemm_epilogue",
    "fused_gemm_epilogue_grad",
    "get_num_threads",
    "isa",
    "isas",
    "relu_bits_shape",
    "set_num_threads",
    "show_config",
    "threads",
    "unpack_relu_bits",
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_public_and_documented(name):
    assert name in fge.__all__
    assert callable(getattr(fge, name))
    assert getattr(fge, name).__doc__


def test_parameters_come_in_the_documented_order():
    """The positional order is that of Paddle's operators, so that a caller can move between them."""
    forward = list(inspect.signature(fge.fused_gemm_epilogue).parameters)
    assert forward == [
        "x",
        "y",
        "bias",
        "trans_x",
        "trans_y",
        "activation",
        "save_reserve",
        "out",
        "residual",
        "residual_at",
    ]
    backward = list(inspect.signature(fge.fused_gemm_epilogue_grad).parameters)
    assert backward[:7] == ["x", "y", "reserve", "out_grad", "trans_x", "trans_y", "activation"]
    assert backward[7:] == ["needs", "x_activation", "x_reserve", "accumulate_into", "residual_at"]
    for function, count in ((fge.fused_gemm_epilogue, 6), (fge.fused_gemm_epilogue_grad, 7)):
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
        assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds[count:])
        assert all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds[:count])


def test_tables_are_tuples_of_names():
    for table in (fge.activations(), fge.engines(), fge.isas()):
        assert isinstance(table, tuple)
        assert table and all(isinstance(name, str) for name in table)
        assert len(set(table)) == len(table)
    assert "blas" in fge.engines() and set(fge.engines()) <= {"blas", "native"}
    assert "portable" in fge.isas() and set(fge.isas()) <= {
        "amx",
        "avx512_bf16",
        "avx512",
        "avx2",
        "portable",
    }
    assert fge.activations()[0] == "none"


@pytest.mark.parametrize(
    "m, n, expected", ((3, 1, (3, 16)), (0, 128, (0, 16)), (5, 129, (5, 32)), (2, 0, (2, 0)))
)
def test_relu_bits_shape(m, n, expected):
    shape = fge.relu_bits_shape(m, n)
    assert isinstance(shape, tuple)
    assert shape == expected


def test_unpack_relu_bits_reads_the_documented_layout():
    bits = np.zeros((2, 32), np.uint8)
    bits[0, 0] = 0b00000101
    bits[1, 16] = 0b00000010
    unpacked = fge.unpack_relu_bits(bits, 130)
    assert unpacked.shape == (2, 130) and unpacked.dtype == np.bool_
    assert np.argwhere(unpacked).tolist() == [[0, 0], [0, 2], [1, 129]]


def test_unpack_relu_bits_takes_strided_bits():
    bits = np.random.default_rng(0).integers(0, 256, (6, 32), np.uint8)
    assert np.array_equal(fge.unpack_relu_bits(bits[::-2], 129), fge.unpack_relu_bits(bits[::-2].copy(), 129))


def test_show_config_prints_what_config_returns(capsys):
    fge.show_config()
    printed = capsys.readouterr().out
    config = fge.config()
    assert isinstance(config, dict) and config
    for name in ("float32", "float64", "float16", "bfloat16", *fge.engines(), *fge.isas()):
        assert name in printed, f"show_config doesn't mention {name}"
    for title, value in config.items():
        expected = value if isinstance(value, str) else title
        assert expected.lower() in printed.lower(), f"show_config doesn't print {title}"


def test_show_config_writes_to_a_file(capsys):
    file = io.StringIO()
    fge.show_config(file)
    assert file.getvalue()
    assert capsys.readouterr().out == ""


def test_config_follows_the_settings():
    with fge.threads(3):
        three = str(fge.config())
    with fge.threads(2):
        two = str(fge.config())
    assert three != two


def test_config_tells_why_an_instruction_set_is_missing():
    """Whoever bought a CPU for it wants to know."""
    printed = io.StringIO()
    fge.show_config(printed)
    for isa in ("amx", "avx512", "avx2"):
        assert isa in printed.getvalue().lower()


def test_module_is_a_program_that_prints_the_configuration():
    assert "bfloat16" in run_python("-m", "fge").stdout


def test_import_is_light():
    run_child("import_is_light")


@pytest.mark.parametrize("name", fge.engines() + ("auto",))
def test_engine_context_is_nested_and_restored(name):
    before = fge.config()
    with fge.engine(name):
        inside = fge.config()
        with fge.engine("blas"):
            pass
        assert fge.config() == inside
    assert fge.config() == before


@pytest.mark.parametrize("name", fge.isas() + ("auto",))
def test_isa_context_is_nested_and_restored(name):
    before = fge.config()
    with fge.isa(name):
        inside = fge.config()
        with fge.isa("portable"):
            pass
        assert fge.config() == inside
    assert fge.config() == before


@pytest.mark.parametrize(
    "context, name", ((fge.engine, "blas"), (fge.isa, "portable")), ids=("engine", "isa")
)
def test_contexts_end_with_an_exception(context, name):
    before = fge.config()
    with pytest.raises(ZeroDivisionError), context(name):
        raise ZeroDivisionError
    assert fge.config() == before


@pytest.mark.parametrize("variable, names", (("FGE_ENGINE", fge.engines()), ("FGE_ISA", fge.isas())))
def test_environment_forces_what_the_contexts_force(variable, names):
    for name in names:
        run_child("environment_forces", name, env={variable: name})


@pytest.mark.parametrize("variable", ("FGE_ENGINE", "FGE_ISA"))
def test_a_wrong_environment_is_reported(variable):
    """A misspelt name must not silently run something else."""
    run_child("wrong_environment_is_reported", variable, env={variable: "warp-drive"})
