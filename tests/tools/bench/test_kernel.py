"""The kernel benchmark: its baseline is right, and its table has a row for every batch size."""

import torch

from anchored.kernels import reference
from anchored.tools.bench.kernel import BenchKernelConfig, paper_projection, run


def test_the_baseline_finds_the_weight_of_the_reference():
    generator = torch.Generator().manual_seed(0)
    safe, risky = (torch.randn(8, 200, generator=generator) for _ in range(2))
    budget = torch.tensor([0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 9.0])
    weight, log_probs = paper_projection(risky, safe, budget)
    expected = reference.project_kl(risky, safe, budget).nan_to_num(0.0)
    torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-4)
    tilted = reference.tilted_log_probs(risky, safe, weight)
    torch.testing.assert_close(log_probs.double(), tilted, rtol=0, atol=1e-5)


def test_the_table_has_a_row_for_every_batch_size(capsys):
    assert run(BenchKernelConfig(batch_sizes=(1, 3), vocab_size=500)) == 0
    printed, charges = capsys.readouterr().out.split("\n\n")
    header, _, titles, *rows = printed.splitlines()
    assert f"torch {torch.__version__}, 1 thread" in header
    assert "our over" in titles
    assert [row.split()[0] for row in rows] == ["1", "3"]
    _, titles, *rows = charges.splitlines()
    assert "times mean" in titles
    expected = [[size, charge] for size in "13" for charge in ("mean", "worst", "drawn")]
    assert [row.split()[:2] for row in rows] == expected
