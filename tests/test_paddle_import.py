"""What the import does and doesn't: order, missing or untested Paddle, other users of the process."""

import itertools
import sys

import processes
import pytest


def run(program):
    return processes.run_python("-W", "ignore", "-c", program)


def needs_paddle():
    pytest.importorskip("paddle")


def test_fge_alone_needs_no_paddle():
    run("import sys, fge\nassert not any(name.split('.')[0] == 'paddle' for name in sys.modules)")


def test_missing_paddle_says_what_to_install():
    run(
        "import sys; sys.modules['paddle'] = None\n"
        "import fge\n"
        "try: import fge.paddle\n"
        "except ImportError as error: assert 'pip install paddlepaddle' in str(error), error\n"
        "else: raise AssertionError('imported')\n"
        "assert fge.fused_gemm_epilogue is not None"
    )


@pytest.mark.parametrize("version", ("2.6.2", "3.3.2", "4.0.0", "0.0.0"))
def test_untested_version_is_refused(version):
    needs_paddle()
    run(
        f"import paddle; paddle.__version__ = {version!r}\n"
        "try: import fge.paddle\n"
        f"except ImportError as error: assert {version!r} in str(error) and '3.3.1' in str(error), error\n"
        "else: raise AssertionError('imported')\n"
        "assert not hasattr(paddle._legacy_C_ops, 'fused_gemm_epilogue')"
    )


def test_missing_functions_are_named():
    needs_paddle()
    run(
        "import ctypes, paddle\n"
        "from fge import _paddle\n"
        "try: _paddle.register(ctypes.CDLL(None)._handle)\n"
        "except LookupError as error: assert 'PD_' in str(error), error\n"
        "else: raise AssertionError('registered')"
    )


def test_importing_again_changes_nothing():
    needs_paddle()
    run(
        "import importlib, fge.paddle, paddle\n"
        "before = paddle._C_ops.fused_gemm_epilogue\n"
        "importlib.reload(fge.paddle)\n"
        "assert paddle._C_ops.fused_gemm_epilogue is before\n"
        "print(before(paddle.ones([2, 3]), paddle.ones([3, 8]), paddle.ones([8]), False, False, 'relu')[0])"
    )


USES = {
    "paddle": "a = paddle.matmul(paddle.ones([64, 64]), paddle.ones([64, 64])); assert float(a[0, 0]) == 64",
    "torch": "b = torch.ones(64, 64) @ torch.ones(64, 64); assert float(b[0, 0]) == 64",
    "fge.paddle": (
        "x = paddle.ones([64, 64]); "
        "c, _ = paddle._C_ops.fused_gemm_epilogue(x, x, paddle.ones([64]), False, False, 'relu'); "
        "assert float(c[0, 0]) == 65"
    ),
}


@pytest.mark.parametrize("order", tuple(itertools.permutations(USES)), ids=" ".join)
def test_any_order_of_imports(order):
    """Each library works after the others, in turns."""
    needs_paddle()
    pytest.importorskip("torch")
    lines = [f"import {name}" for name in order] + ["import paddle"]
    run("\n".join([*lines, "for _ in range(50):", *(f"    {USES[name]}" for name in order)]))


def test_concurrent_callers():
    needs_paddle()
    processes.run_python(processes.TESTS / "paddle_children.py", "concurrent_callers")


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this platform")
@pytest.mark.skipif(sys.platform == "darwin", reason="Paddle's libraries don't survive a fork on macOS")
def test_fork_after_use():
    needs_paddle()
    processes.run_python(processes.TESTS / "paddle_children.py", "fork_after_use", timeout=60)
