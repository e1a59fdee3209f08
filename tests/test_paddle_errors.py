"""Bad calls raise what Paddle raises, and none ends the process."""

import pytest

paddle = pytest.importorskip("paddle")

import paddle_bad_calls
import processes

import fge.paddle  # noqa: F401


@pytest.mark.parametrize("call", paddle_bad_calls.CALLS, ids=lambda call: call.name)
def test_raises(call):
    with pytest.raises(call.error, match=call.match):
        call.run()


def test_the_next_call_works():
    for call in paddle_bad_calls.CALLS:
        with pytest.raises(call.error):
            call.run()
        out, _ = paddle._C_ops.fused_gemm_epilogue(
            paddle.ones([2, 3]), paddle.ones([3, 8]), paddle.ones([8]), False, False, "gelu"
        )
        assert float(out.sum()) == pytest.approx(16 * 4, rel=1e-3)


def test_no_call_ends_the_process():
    """Each bad call, and each odd but good one, in a process of its own that must end by itself."""
    processes.run_python(processes.TESTS / "paddle_children.py", "no_call_ends_the_process")
