"""The model of a training round: what it counts, and what follows from it."""

from dataclasses import replace

import pytest
import torch
from command_line import run

from anchored.pretrain.model.loss import IGNORE_INDEX, logit_loss_and_gradient
from anchored.pretrain.model.tinycomma import TinyComma, flavors
from anchored.tools.bench.pretrain.round import (
    Counts,
    Run,
    fuse_projections,
    logit_bytes,
    scattered_loss_and_gradient,
)
from anchored.tools.bench.pretrain.traffic import counted

NOW = Counts(layer_bytes=200_000, logit_bytes=8, chunk_tokens=16_384, reductions=1)
BEFORE = Counts(layer_bytes=300_000, logit_bytes=16, chunk_tokens=4096, reductions=16)


@pytest.fixture
def tinycomma():
    args = flavors()["tinycomma-1.8b"]
    args.max_seq_len = 2048
    return Run(
        args=args,
        num_parameters=1_758_562_304,
        flops_per_token=1.0183e10,
        num_tokens=32_768,
        num_rounds=16,
        num_gpus=8,
    )


def test_traffic_is_a_read_and_a_write_of_each_buffer_in_each_kernel():
    with counted() as (traffic, compiled):
        rows, weight = torch.empty(64, 32, requires_grad=True), torch.empty(32, 16)
        output = compiled(lambda rows: torch.relu(2 * rows) @ weight)(rows)
        forward = replace(traffic)
        output.backward(torch.empty_like(output))
    size, signs = 4 * 64 * 32, 64 * 32
    assert forward.kernels == 2 * size + signs  # rows in, what is multiplied out
    assert forward.products == size + 4 * 32 * 16 + 4 * 64 * 16
    assert forward.saved == signs + 4 * 64 * 16
    assert (forward.num_products, traffic.num_products) == (1, 2)
    assert traffic.kernels == 2 * forward.kernels and traffic.products == 2 * forward.products


@pytest.mark.parametrize(
    ("logit_loss", "expected"), [(logit_loss_and_gradient, 8), (scattered_loss_and_gradient, 16)]
)
def test_the_loss_reads_a_logit_three_times_and_writes_its_gradient(logit_loss, expected):
    assert logit_bytes(logit_loss, 1000, torch.bfloat16) == pytest.approx(expected, abs=0.1)


def test_what_the_levers_are_compared_with_computes_the_same():
    generator = torch.Generator().manual_seed(5)
    logits = 5 * torch.randn(20, 300, generator=generator)
    labels = torch.randint(300, (20,), generator=generator)
    labels[:3] = IGNORE_INDEX
    pairs = zip(
        logit_loss_and_gradient(logits, labels),
        scattered_loss_and_gradient(logits, labels),
        strict=True,
    )
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    args = flavors()["smoke"]
    args.vocab_size, args.max_seq_len = 50, 16
    model = TinyComma(args)
    model.init_weights()
    token_ids = torch.randint(50, (2, 16), generator=generator)
    plain = model(token_ids)
    for layer in model.layers.values():
        fuse_projections(layer)
    torch.testing.assert_close(model(token_ids), plain, rtol=0, atol=1e-5)


def test_a_round_at_the_peak_and_its_terms_are_those_of_the_arithmetic(tinycomma):
    assert tinycomma.peak_ms == pytest.approx(337.4, abs=0.1)
    terms = tinycomma.term_ms(NOW)
    # 32,768 tokens of 6 (P - E) products at 0.7 and 0.6 of 989 TFLOP/s.
    products = 6 * (1_758_562_304 - 128_256 * 2048) * 32_768 / 989e9
    assert terms["matrix products"] == pytest.approx((products / 0.7, products / 0.6), rel=1e-3)
    assert terms["kernels of the layers"][0] == pytest.approx(200e3 * 24 * 32_768 / 4e9)
    assert terms["passes over logits"][0] == pytest.approx(8 * 128_256 * 32_768 / 4e9)
    total = tinycomma.total_ms(NOW)
    assert total == pytest.approx(tuple(map(sum, zip(*terms.values(), strict=True))))
    # The whole gathered and reduced once in 16 rounds: 6 bytes a weight over NVLink.
    before = tinycomma.term_ms(BEFORE)["collectives that are not hidden"]
    now = terms["collectives that are not hidden"]
    assert before == pytest.approx(tuple(16 * ms for ms in now))
    assert before[0] == pytest.approx(0.5 * 6 * 1_758_562_304 * 7 / 8 / 370e6)


def test_levers_add_up_to_the_difference(tinycomma):
    def total(counts):
        return sum(tinycomma.total_ms(counts))

    fields = ("layer_bytes", "logit_bytes", "chunk_tokens", "reductions")
    won = [
        total(BEFORE) - total(replace(BEFORE, **{field: getattr(NOW, field)})) for field in fields
    ]
    assert all(ms > 0 for ms in won)
    assert sum(won) == pytest.approx(total(BEFORE) - total(NOW))


def test_one_gpu_has_no_modelled_round(capsys):
    status, out, err = run(capsys, "bench", "pretrain", "--modelled")
    assert (status, out) == (1, "") and "gpus must be at least 2 for a modelled round" in err


@pytest.mark.slow
def test_the_table_has_the_counts_of_the_1_8b_model(capsys):
    status, out, _ = run(capsys, "bench", "pretrain", "--modelled", "--gpus", "8")
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert status == 0 and "not measured on a GPU" in out
    before, now = (
        int(cell.replace(",", "")) for cell in lines["rotary embedding in real numbers"][-3:-1]
    )
    # Other releases of torch may fuse a little more or less.
    assert before == pytest.approx(369_017, rel=0.05) and now == pytest.approx(237_977, rel=0.05)
    assert lines["cross entropy without a scatter"][-3:-1] == ["16", "8"]
    assert lines["larger chunks of logits"][-3:-1] == ["4,096", "16,384"]
    assert "12 products a layer in place of 21" in out
