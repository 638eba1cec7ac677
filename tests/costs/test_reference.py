"""Published measurements: predicted within what is promised, and by no constant of their own."""

from statistics import median

import numpy as np
import pytest

from paradigms.costs import datasheet
from paradigms.costs.reference import derived, models
from paradigms.costs.reference.predictions import predictions
from paradigms.costs.reference.rows import rows
from paradigms.costs.reference.table import BOUNDS, errors, markdown, summary
from paradigms.costs.sheets import sheet_of
from paradigms.costs.speculation import speed_up, tokens_per_target_forward


@pytest.fixture(scope="module")
def predicted():
    return predictions()


@pytest.mark.parametrize("group", BOUNDS)
def test_groups_keep_their_promise(predicted, group):
    found = [abs(error) for error in errors([row for row in predicted if row.group == group])]
    largest_median, largest = BOUNDS[group]
    assert found and median(found) <= largest_median and max(found) <= largest


def test_every_published_row_is_predicted_or_gave_a_constant(predicted):
    def count(source, metric):
        return sum(row.source == source and row.metric == metric for row in predicted)

    assert count("llada_8b_step_time", "step_s") == len(rows("llada_8b_step_time")) - 2
    assert count("llama3_8b_decode_time", "tpot_s") == 2 * len(rows("llama3_8b_decode_time"))  # by two constants
    assert count("llama3_8b_end_to_end", "e2e_s") == len(rows("llama3_8b_end_to_end"))
    assert count("gpt_fast_decode", "tpot_s") == len(rows("gpt_fast_decode")) - 2
    assert count("speculative_decoding_t5xxl", "speed_up") == len(rows("speculative_decoding_t5xxl"))
    assert count("ssm_scope_generation_time", "tpot_s") == len(rows("ssm_scope_generation_time")) - 1
    attention = [row for row in rows("ssm_scope_memory") if row["model"] in models.QWEN25]
    assert count("ssm_scope_memory", "kv_bytes") == len(attention) == 24


def test_rows_that_gave_constants_come_out_exactly():
    device = derived.on("a6000", derived.eager_of_llada())
    for row in derived.llada_ends():
        seconds = device.forward_s(models.LLADA_8B, derived.llada_shape(row), dtype="bfloat16", execution="eager")
        assert seconds == pytest.approx(row["step_ms"] / 1e3)


def test_constants_are_shares():
    eager, compiled = derived.eager(), derived.compiled()
    assert 0.4 < eager.products < 0.9 and 0.5 < eager.bandwidth < 1
    assert 1e-6 < compiled.fused_kernel_s < 2e-5 and 1e-6 < eager.operator_s < 1e-4


def test_another_device_reaches_the_same_share_of_its_bandwidth():
    """The share that LLaDA's rows imply on an A6000 is the one that gpt-fast states for bf16 on an A100."""
    stated = rows("gpt_fast_decode")[0]["achieved_gb_per_s"] * 1e9 / sheet_of("a100").bytes_per_s
    assert derived.eager().bandwidth == pytest.approx(stated, abs=0.03)


def test_spread_holds_nine_of_ten_timed_rows(predicted):
    found = [abs(row.error) for row in predicted if row.unit != "B"]
    assert np.percentile(found, 90) <= datasheet.SPREAD


def test_table_names_group_error_and_constants(predicted):
    text = markdown(predicted)
    assert len(summary(predicted)) == len({row.group for row in predicted})
    assert "Llama-3-8B decode" in text and "llada_8b_step_time, 1,069 and 3,085 positions" in text


@pytest.mark.parametrize(("num_drafted", "tokens"), [(1, 1.851), (3, 3.192), (5, 4.163)])
def test_tokens_of_a_target_forward(num_drafted, tokens):
    """Figures of the formula at a = 0.851, as simulated rejection sampling gives them within its noise."""
    assert tokens_per_target_forward(0.851, num_drafted) == pytest.approx(tokens, abs=0.002)
    assert tokens_per_target_forward(0.851, num_drafted) == pytest.approx((1 - 0.851 ** (num_drafted + 1)) / 0.149)


def test_drafting_at_the_ends():
    assert tokens_per_target_forward(1.0, 4) == 5 and tokens_per_target_forward(0.0, 4) == 1
    assert speed_up(0.5, 2, target_s=1.0, draft_s=0.25) == pytest.approx(1.75 / 1.5)
    with pytest.raises(ValueError, match=r"acceptance=1\.5"):
        tokens_per_target_forward(1.5, 2)
    with pytest.raises(ValueError, match="num_drafted=0"):
        tokens_per_target_forward(0.5, 0)
