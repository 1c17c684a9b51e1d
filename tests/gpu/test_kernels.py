"""The projection on a GPU: bounds, draws, bits, sizes, graphs; small in Triton's interpreter."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from drawn_tokens import follows
from logit_kinds import KINDS, divergence_of, project_drawn, random_budgets, random_logits

from anchored.kernels.gpu.launch import project as launched_projection
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PROJECTS = pytest.mark.parametrize("project", [project_kl, project_max, project_drawn])
REFERENCE_ERROR = 1e-12
"""Nats; rounding of the float64 reference."""
SHORTFALL = 1e-5
"""Share of a budget that a projection may leave unused, and the least in nats, as it promises."""
LEAST_SHORTFALL = 1e-7
NUM_REPLAYS = 100_000
"""Of one graph: a launch that waits for programs which never come would hang here."""

FULL = SimpleNamespace(
    shapes=((64, 1), (64, 17), (256, 257), (32, 1025), (16, 32_000), (4, 128_256)),
    extreme_shapes=(
        *((1, 1), (1024, 257), (1, 262_144), (64, 128_256), (1024, 4097), (3, 513), (70_000, 17)),
    ),
    batch_shape=(48, 20_000),
    num_draws=50_000,
)
"""Rows and tokens of the logits for a GPU, seconds a test; draws are from 257 tokens."""

SMALL = SimpleNamespace(
    shapes=((2, 17), (1, 1025)),
    extreme_shapes=((1, 1), (3, 513)),
    batch_shape=(3, 70),
    num_draws=24,
)
"""The interpreter's, which takes a millisecond for what a GPU does in a nanosecond."""


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request) -> torch.device:
    """The device that kernels run on."""
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("Triton compiles where there is a CUDA device, and is interpreted elsewhere")
    return torch.device(request.param)


@pytest.fixture
def sizes(device) -> SimpleNamespace:
    return FULL if device.type == "cuda" else SMALL


def logit_cases(shape, device, seed):
    """Kind, risky and safe logits of every kind, the dtypes in turn; the same ones anywhere."""
    for index, kind in enumerate(KINDS):
        generator = torch.Generator().manual_seed(seed + index)
        dtype = DTYPES[index % len(DTYPES)]
        risky, safe = random_logits(kind, *shape, generator)
        yield kind, risky.to(device, dtype), safe.to(device, dtype)


def generic(shape, device, seed):
    generator = torch.Generator().manual_seed(seed)
    return [logits.float().to(device) for logits in random_logits("generic", *shape, generator)]


def budgets_of(num_rows, device):
    return random_budgets(num_rows, torch.Generator().manual_seed(num_rows)).to(device)


def assert_within_budgets(project, projection, risky, safe, budget):
    """True divergence <= spend <= budget; returns the divergence."""
    divergence = divergence_of(project, projection, risky, safe)
    assert (divergence - projection.spend).max().item() <= REFERENCE_ERROR
    assert bool((projection.spend <= budget).all())
    return divergence


@PROJECTS
def test_spends_cover_the_divergence_and_draws_are_those_of_the_torch_backend(
    project, device, sizes
):
    num_rows = num_different = 0
    for shape in sizes.shapes:
        rows = torch.arange(shape[0])
        keyed, budget = (rows.to(device), rows.to(device)), budgets_of(shape[0], device)
        for kind, risky, safe in logit_cases(shape, device, seed=shape[1]):
            ours, theirs = (
                project(risky, safe, budget, keyed=keyed, backend=backend)
                for backend in ("triton", "torch")
            )
            undrawn = project(risky, safe, budget, backend="triton")
            divergence = assert_within_budgets(project, undrawn, risky, safe, budget)
            assert bool((undrawn.spend / SPEND_QUANTUM).frac().eq(0).all())
            if kind == "huge":  # there the weights may differ, and a shortfall is not promised
                continue
            binds = (undrawn.weight < 1.0) & ~undrawn.is_safe_only
            allowed = torch.clamp(SHORTFALL * budget, min=LEAST_SHORTFALL)
            assert bool((budget - divergence <= allowed)[binds].all()), kind
            num_different += int((ours.token_ids != theirs.token_ids).sum())
            num_rows += shape[0]
    # Both use budgets up to 1e-5, by which the probability of another token may differ too.
    assert num_different <= max(1, num_rows // 1000)


def test_tokens_follow_the_distribution_returned(device, sizes):
    """Of 257 symbols; false alarm once in a million."""
    num_draws = sizes.num_draws
    risky, safe = generic((1, 257), device, seed=7)
    rows = (num_draws, 257)
    uniform = uniforms(torch.full((num_draws,), 5), torch.arange(num_draws)).to(device)
    budget = torch.full((num_draws,), 0.05, dtype=torch.float64, device=device)
    drawn = project_kl(risky.expand(rows), safe.expand(rows), budget, uniform, backend="triton")
    one = project_kl(risky, safe, budget[:1], backend="triton")
    assert follows(drawn.token_ids.cpu(), one.log_probs()[0].double().exp().cpu())


def test_a_row_has_the_same_bits_alone_and_in_a_batch(device, sizes):
    """Alone, many programs share it."""
    risky, safe = generic(sizes.batch_shape, device, seed=11)
    rows = torch.arange(len(risky))
    budget, uniform = budgets_of(len(risky), device), uniforms(rows, rows).to(device)
    whole = project_kl(risky, safe, budget, uniform, backend="triton")
    for row in rows.tolist():
        one = slice(row, row + 1)
        alone = project_kl(risky[one], safe[one], budget[one], uniform[one], backend="triton")
        for name in ("spend", "weight", "token_ids"):
            assert torch.equal(getattr(alone, name), getattr(whole, name)[one]), (row, name)


def test_the_largest_and_smallest_sizes_with_odd_strides(device, sizes):
    """As many as 70,000 rows, more than a grid has in its second dimension; V up to 262,144."""
    for num_rows, vocab_size in sizes.extreme_shapes:
        wide = torch.randn(num_rows, vocab_size + 3, device=device, dtype=torch.bfloat16)
        risky, safe = 3.0 * wide[:, 1:-2], wide[:, 2:-1]
        budget = torch.full((num_rows,), 0.2, dtype=torch.float64, device=device)
        projection = project_kl(risky, safe, budget, backend="triton")
        assert_within_budgets(project_kl, projection, risky, safe, budget)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a CUDA device")
def test_a_cuda_graph_replays_the_launch_with_other_budgets():
    """vLLM captures its steps; each replay here is the launch itself, and none of many hangs."""
    device, shape = torch.device("cuda", 0), (4, 128_256)
    risky, safe = generic(shape, device, seed=19)
    rows = torch.arange(shape[0])
    uniform = uniforms(rows, rows).to(device)
    budget = torch.zeros(shape[0], dtype=torch.float64, device=device)
    launch = partial(launched_projection, risky, safe, budget, uniform, charge="mean")
    launch()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        projection = launch()
    trials = (0.0, 0.01, 0.3, 2.0)
    for index in range(NUM_REPLAYS):
        budget.fill_(trials[index % len(trials)])
        graph.replay()
    for nats in trials:
        budget.fill_(nats)
        graph.replay()
        replayed = projection.spend.clone()
        assert torch.equal(replayed, launch().spend)
