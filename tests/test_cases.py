"""Faults that people met in systems that do this job, each with the right value, by number.

Most live with their kind in the other files; CASES says where each one is, and a test that they are there.
"""

import importlib

import numpy as np
import pytest
from reference import (
    assert_all_same_bits,
    assert_same_bits,
    random_operands,
    rng_for,
)

import fge

FORKS = "test_threads_forks:"
HALVES = "test_halves:"
SPECIAL = "test_special_values:"
STRIDES = "test_strides:"
BACKWARD = "test_backward:"
FORWARD = "test_forward:"

CASES = {
    1: ("gelu's negative tail", SPECIAL + "test_gelu_tail_does_not_cancel"),
    2: ("overflow inside gelu", SPECIAL + "test_nothing_overflows_inside"),
    3: ("bfloat16 gelu from 8 to 16", SPECIAL + "test_bfloat16_gelu_of_large_values_is_the_identity"),
    4: ("NaN through relu", SPECIAL + "test_nan_marks_its_row_and_no_other"),
    5: ("inf times a padded zero", SPECIAL + "test_padding_never_meets_infinity"),
    6: ("stale memory with beta = 0", FORWARD + "test_stale_contents_of_out_are_never_read"),
    7: ("K = 0 with a bias", FORWARD + "test_no_inner_dimension_gives_the_activation_of_the_bias"),
    8: ("M = 0, N = 0", BACKWARD + "test_gradients_of_an_empty_sum"),
    9: ("no bias in a half type", HALVES + "test_without_a_bias"),
    10: ("bias added once, in float32", HALVES + "test_bias_is_added_once_in_float32"),
    11: ("expanded bias and x", STRIDES + "test_broadcast_operands"),
    12: ("non-contiguous in two axes", STRIDES + "test_forward"),
    13: ("out with a row stride", STRIDES + "test_out_inside_a_wider_array"),
    14: ("out overlaps an input or itself", "test_arguments:test_forward_refuses"),
    15: ("read-only inputs", STRIDES + "test_read_only_inputs"),
    16: ("misaligned data", STRIDES + "test_misaligned_operands"),
    17: ("byte order", "test_arguments:test_forward_refuses"),
    18: ("M no multiple of 16", FORWARD + "test_last_rows_of_a_tall_problem"),
    19: ("N no multiple of 128 with a reserve", "test_reserve:test_relu_bits_are_exactly_z_above_zero"),
    20: ("K = 1 backward", BACKWARD + "test_one_inner_dimension"),
    21: ("order of the epilogue's steps", "test_reserve:test_the_bit_is_of_the_biased_value"),
    22: ("bias gradient after the derivative", BACKWARD + "test_the_bias_gradient_sums_masked_gradients"),
    23: ("same result for any batch", FORWARD + "test_rows_do_not_depend_on_the_batch"),
    24: ("fork after use", FORKS + "test_fork_after_use"),
    25: ("exit with idle threads", FORKS + "test_the_interpreter_ends_cleanly"),
    26: ("two OpenMP runtimes", FORKS + "test_alternating_with_another_library"),
    27: ("concurrent callers", FORKS + "test_concurrent_callers"),
    28: ("float16's range", SPECIAL + "test_float16_overflows_to_infinity_and_not_before"),
    29: ("subnormals", SPECIAL + "test_no_flush_to_zero_is_left_on"),
    30: ("-0.0", SPECIAL + "test_zeros_and_their_signs"),
    31: ("gelu_erf's negative tail", SPECIAL + "test_gelu_erf_tail_does_not_cancel"),
    32: ("infinities in every lane", SPECIAL + "test_limits_at_infinity_in_every_lane"),
    33: ("float16 gelu gradient", SPECIAL + "test_slopes_far_out_are_exactly_one_and_zero"),
    34: ("silu far below zero", SPECIAL + "test_silu_far_below_zero"),
    35: ("half accumulators stick", HALVES + "test_sums_of_ones_do_not_stall"),
    36: ("paths of M = 1 and N = 1", HALVES + "test_sums_of_ones_do_not_stall"),
    37: ("size-1 axes", STRIDES + "test_size_one_axes_may_have_any_stride"),
    38: ("square shapes hide a wrong axis", FORWARD + "test_bias_runs_along_the_columns"),
    39: ("expanded and transposed out_grad", "test_cases:test_case_39"),
    40: ("K = 0 with accumulators", "test_cases:test_case_40"),
    41: ("M * N over 2^31", "test_memory:test_result_past_two_gigabytes"),
    42: ("aliasing", "test_arguments:test_backward_refuses"),
    43: ("limits end the process", FORKS + "test_no_new_threads"),
    44: ("quota of CPUs", FORKS + "test_quota_limits_the_default"),
    45: ("settings leak", FORKS + "test_settings_stay_apart"),
    46: ("failing calls", FORKS + "test_failing_calls_keep_no_references"),
    47: ("accumulation in float32", BACKWARD + "test_float32_accumulators_keep_what_halves_lose"),
    48: ("bias of the wrong shape", "test_arguments:test_forward_refuses"),
    49: ("frozen operands", BACKWARD + "test_needs_selects_gradients_and_changes_none"),
    50: (
        "an instruction set that is missing",
        "test_public:test_config_tells_why_an_instruction_set_is_missing",
    ),
    51: ("which gelu", SPECIAL + "test_which_gelu"),
}


@pytest.mark.parametrize("number", CASES)
def test_every_case_has_its_test(number):
    module, name = CASES[number][1].split(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.usefixtures("path")
def test_case_12_as_it_was_met(dtype):
    """The very views of the report, beside the systematic ones of test_strides."""
    rng = rng_for("case 12")
    wide_x, wide_y, _ = random_operands(rng, 40, 60, 50, dtype)
    wide_y = np.concatenate([wide_y, wide_y])
    x = wide_x[::2, ::3]  # 20 x 20
    y = wide_y[:20, ::-1]  # 20 x 50
    sliced = wide_y[3:53, 5:25]  # its transpose is 20 x 50
    for operand in (y, sliced.T):
        got = fge.fused_gemm_epilogue(x, operand, activation="gelu")
        expected = fge.fused_gemm_epilogue(x.copy(), np.ascontiguousarray(operand), activation="gelu")
        assert_all_same_bits(got, expected, "forward")
        out_grad = got[0][::-1, ::-1]
        got_grads = fge.fused_gemm_epilogue_grad(x, operand, got[1], out_grad, activation="gelu")
        copies = x.copy(), np.ascontiguousarray(operand), got[1].copy(), out_grad.copy()
        assert_all_same_bits(got_grads, fge.fused_gemm_epilogue_grad(*copies, activation="gelu"), "backward")


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("m, k, n", ((6, 5, 7), (130, 40, 33), (1, 5, 40), (40, 5, 1)))
def test_case_39(m, k, n, dtype):
    """A sum's backward hands over a broadcast scalar, a transposition's a transposed view."""
    x, y, _ = random_operands(rng_for(m, k, n), m, k, n, dtype)
    _, reserve = fge.fused_gemm_epilogue(x, y, activation="gelu")
    transposed = random_operands(rng_for("grad"), n, 1, m, dtype)[0] * np.ones((n, m), dtype)
    for out_grad in (np.broadcast_to(np.ones((), dtype), (m, n)), transposed.T):
        got = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation="gelu")
        expected = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad.copy(order="C"), activation="gelu")
        assert_all_same_bits(got, expected)


@pytest.mark.usefixtures("path")
def test_case_40(dtype):
    """No inner dimension: accumulators stay as they are, fresh gradients are zero or empty, the bias has its own."""
    x, y, out_grad = np.zeros((3, 0), dtype), np.zeros((0, 5), dtype), np.ones((3, 5), dtype)
    into = np.full((3, 0), 3, dtype), np.full((0, 5), 3, dtype), np.full(5, 3, dtype)
    grads = fge.fused_gemm_epilogue_grad(x, y, None, out_grad, accumulate_into=into)
    assert [grad.shape for grad in grads] == [(3, 0), (0, 5), (5,)]
    assert_same_bits(grads[2], np.full(5, 6, dtype))
    for m, k, n in ((0, 4, 5), (3, 4, 0)):
        x, y, out_grad = np.ones((m, k), dtype), np.ones((k, n), dtype), np.ones((m, n), dtype)
        into = np.full((m, k), 3, dtype), np.full((k, n), 3, dtype), np.full(n, 3, dtype)
        grads = fge.fused_gemm_epilogue_grad(x, y, None, out_grad, accumulate_into=into)
        assert all((grad == 3).all() for grad in grads)
        fresh = fge.fused_gemm_epilogue_grad(x, y, None, out_grad)
        assert all((grad == 0).all() for grad in fresh)
