"""Peaks of allocations whose size is known to the byte."""

import mmap

import pytest
import torch
from fakes import FakeAllocator, make_requests

from paradigms.measure import memory
from paradigms.measure.clock import FakeClock
from paradigms.measure.memory import peak_memory
from paradigms.measure.timeline import record

KB = 1000  # bytes of 250 float32


def floats(num_bytes):
    return torch.ones(num_bytes // 4)


def test_tensors_that_stay_add_up():
    with peak_memory("cpu") as peak:
        kept = [floats(KB) for _ in range(10)]
    assert peak.tensor_bytes == 10 * KB
    assert peak.base_bytes == 0
    del kept


def test_the_peak_outlives_the_temporary_that_made_it():
    with peak_memory("cpu") as peak:
        kept = floats(KB)
        spare = floats(5 * KB)
        del spare
        later = floats(2 * KB)
    assert peak.tensor_bytes == 6 * KB
    del kept, later


def test_temporaries_one_after_the_other_count_once():
    with peak_memory("cpu") as peak:
        for _ in range(20):
            floats(KB)
    assert peak.tensor_bytes == KB


def test_a_temporary_inside_an_expression():
    source = floats(KB)
    with peak_memory("cpu") as peak:
        result = (source + 1) * 2 - 3  # at most source and two results at a time
    assert peak.tensor_bytes == 3 * KB
    assert peak.base_bytes == KB
    del result


def test_views_share_their_storage():
    with peak_memory("cpu") as peak:
        whole = torch.zeros(10, 25)
        views = [whole[3:], whole.T, whole.view(-1), whole[:, ::2], whole.detach(), whole.expand(4, 10, 25)]
    assert peak.tensor_bytes == KB
    del views


def test_a_view_keeps_the_whole_storage_alive():
    with peak_memory("cpu") as peak:
        corner = floats(4 * KB)[:1]
        more = floats(KB)
    assert peak.tensor_bytes == 5 * KB
    del corner, more


def test_in_place_operators_allocate_nothing():
    cache = floats(KB)
    with peak_memory("cpu") as peak:
        cache.add_(1).mul_(2)
        cache[10:20] = cache[30:40]
        cache[5] = cache[6]
        torch.add(cache, 1, out=cache)
    assert peak.tensor_bytes == peak.base_bytes == KB


def test_contiguous_copies_only_what_is_not():
    with peak_memory("cpu") as peak:
        square = torch.zeros(25, 10)
        square.contiguous()
        turned = square.T.contiguous()
    assert peak.tensor_bytes == 2 * KB
    del turned


def test_outputs_of_one_operator_all_count():
    with peak_memory("cpu") as peak:
        values, indices = torch.zeros(100).sort()
    assert peak.tensor_bytes == 100 * (4 + 4 + 8)
    del values, indices


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outputs_of_fused_attention(mode):
    batch, heads, length, width = 2, 3, 16, 8
    query, key, value = (torch.randn(batch, heads, length, width) for _ in range(3))
    with peak_memory("cpu") as peak, mode():
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    size = batch * heads * length * width * 4
    log_sum_exp = batch * heads * length * 4
    assert peak.base_bytes == 3 * size
    assert peak.tensor_bytes == 4 * size + log_sum_exp
    del output


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_temporaries_inside_a_composite_operator(mode):
    source = torch.ones(25, 10)
    with peak_memory("cpu") as peak, mode():
        source.T.reshape(-1).reshape(10, 25).T.flatten()  # two copies, the first dies after the second is made
    assert peak.tensor_bytes == 3 * KB


def test_numbers_as_operands_leave_nothing_behind():
    cache = floats(KB)
    with peak_memory("cpu") as peak:
        for step in range(50):
            cache[step] = 1.5
            cache.mul_(2.5)
    assert peak.base_bytes == KB
    assert peak.tensor_bytes == KB + 4  # the number that an item is set to becomes a tensor for a moment


def test_a_storage_that_is_resized():
    with peak_memory("cpu") as peak:
        grown = floats(KB)
        grown.resize_(1000)
        grown.resize_(10)  # shrinking keeps the storage
        more = floats(KB)
    assert peak.tensor_bytes == 5 * KB
    del more


def test_what_lived_before_counts_however_late_it_is_found():
    early, late = floats(3 * KB), floats(4 * KB)
    with peak_memory("cpu") as peak:
        early.sum()
        spare = floats(2 * KB)
        del spare
        late.sum()
    assert peak.base_bytes == 7 * KB
    assert peak.tensor_bytes == 9 * KB


def test_what_lived_before_and_is_never_touched_can_be_passed_in():
    layer = torch.nn.Linear(25, 10, bias=False)
    with peak_memory("cpu", base=[*layer.parameters(), layer.weight[0]]) as peak:
        kept = floats(KB)
    assert peak.base_bytes == KB
    assert peak.tensor_bytes == 2 * KB
    del kept


def test_what_lived_before_and_dies_makes_room():
    old = floats(4 * KB)
    with peak_memory("cpu", base=[old]) as peak:
        del old
        new = floats(3 * KB)
    assert peak.tensor_bytes == 4 * KB
    del new


def test_literals_are_born_where_they_are_written():
    with peak_memory("cpu") as peak:
        spare = floats(2 * KB)
        del spare
        literal = torch.tensor([1.0] * 250)
    assert peak.base_bytes == 0
    assert peak.tensor_bytes == 2 * KB
    del literal


def test_training_keeps_what_the_backward_pass_needs():
    weight = torch.ones(250, requires_grad=True)
    with peak_memory("cpu") as peak:
        loss = (weight.exp() * weight.exp()).sum()  # two exponentials stay for backward; their product goes
        loss.backward()
        del loss
    assert weight.grad is not None
    assert peak.base_bytes == KB
    assert peak.tensor_bytes >= 4 * KB


def test_each_block_starts_anew():
    with peak_memory("cpu") as first:
        spare = floats(8 * KB)
        del spare
    with peak_memory("cpu") as second:
        spare = floats(KB)
        del spare
    assert (first.tensor_bytes, second.tensor_bytes) == (8 * KB, KB)


def test_nothing_is_watched_after_the_block():
    with peak_memory("cpu") as peak:
        kept = floats(KB)
    more = floats(10 * KB)
    del kept, more
    assert peak.tensor_bytes == KB


def test_a_paradigm_of_known_size():
    paradigm = FakeAllocator(clock=FakeClock())
    requests = make_requests(2, output_len=12)
    with peak_memory("cpu") as peak:
        record(paradigm, requests, clock=paradigm.clock)
    assert peak.base_bytes == 4 * paradigm.weight_len
    assert peak.tensor_bytes == paradigm.peak_bytes(requests)


def test_resident_memory_is_reset_and_grows_with_what_is_touched():
    with peak_memory("cpu") as small:
        pass
    if small.rss_bytes is None:
        pytest.skip("this system does not let a process reset its high-water mark")
    size = 64 * 2**20
    with peak_memory("cpu") as large, mmap.mmap(-1, size) as fresh:  # not from what other tests have freed
        for page in range(0, size, mmap.PAGESIZE):
            fresh[page] = 1
    with peak_memory("cpu") as after:
        pass
    assert large.rss_bytes - small.rss_bytes > 0.9 * size
    assert large.rss_bytes - after.rss_bytes > 0.9 * size


def test_resident_memory_is_unknown_where_it_cannot_be_reset(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    with peak_memory("cpu") as peak:
        pass
    assert peak.rss_bytes is None


def test_columns_of_the_cpu():
    with peak_memory("cpu") as peak:
        floats(KB)
    columns = peak.columns()
    assert columns["peak_tensor_bytes"] == KB
    assert columns["cuda_peak_allocated_bytes"] is columns["cuda_peak_reserved_bytes"] is None
    assert set(columns) == {
        *("peak_tensor_bytes", "peak_rss_bytes", "cuda_peak_allocated_bytes", "cuda_peak_reserved_bytes")
    }


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="device 'meta'"), peak_memory("meta"):
        pass


@pytest.mark.gpu
def test_cuda_peaks_are_reset_and_cover_a_freed_temporary():
    size = 64 * 2**20
    torch.ones(4 * size // 4, device="cuda")  # an earlier cell's peak
    kept = torch.ones(size // 4, device="cuda")
    with peak_memory("cuda", base=[kept]) as peak:
        torch.ones(size // 4, device="cuda")
    assert 2 * size <= peak.cuda_allocated_bytes < 3 * size
    assert peak.cuda_allocated_bytes <= peak.cuda_reserved_bytes < 4 * size
    assert peak.tensor_bytes is None
