"""Tokens and ledgers of a pair in vLLM on a GPU are the Decoder's: tests/vllm has the CPU's."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'anchored[vllm]'")

import torch
from vllm_pair import KINDS, assert_same_as_decoder


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.filterwarnings("default")  # vLLM's many warnings are not ours
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_decoders_and_ledgers_verify(kind, tmp_path):
    sizes = {"shapes": ("tiny", "small"), "vocab_size": 2048, "num_requests": 200}
    assert_same_as_decoder(kind, tmp_path, torch.device("cuda", 0), num_apart=1, **sizes)
