"""Forwards over the nodes of a token tree."""

import pytest
import torch
from tiny_models import tiny_llama

from anchored.decode.byte.path_sums import PathSums
from anchored.decode.byte.tree_cache import TreeBackbone, TreeCache
from anchored.decode.models.attention import row_attention
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

TEXT = "the harbour's  12345 \n\n\t caf\u00e9 "


@pytest.mark.parametrize("family", ["cl100k"])
def test_the_order_of_siblings_changes_nothing(tokenizer):
    """Nodes beside the trunk computed backwards, as far as parents allow, have the same states."""
    vocabulary = ByteVocabulary(tokenizer, [tokenizer.token_to_id("<|end|>")])
    model = tiny_llama(1, vocab_size=vocabulary.vocab_size).eval()
    tree = PathSums(vocabulary, TEXT.encode()).tree
    first, second = (states_beside_the_trunk(model, tree, sign) for sign in (1, -1))
    assert len(first) > 10 and list(first) != list(second)
    for node, state in first.items():
        torch.testing.assert_close(second[node], state, rtol=1e-10, atol=1e-12)


@torch.inference_mode()
def states_beside_the_trunk(model, tree, sign: int) -> dict[int, torch.Tensor]:
    """Hidden states by node, siblings in the order of sign * node."""
    cache, backbone = TreeCache(tree), TreeBackbone(model, row_attention(model), 1)
    trunk = cache.add_trunk()
    start = list(tree.vocabulary.start_token_ids)
    backbone.read([start + [tree.token[node] for node in trunk]], [0])
    beside = [node for node in range(1, len(tree)) if node not in trunk]
    beside.sort(key=lambda node: (tree.depth[node], sign * node))
    forward = cache.add(beside)
    slots = torch.from_numpy(cache.slot_positions())
    (hidden,) = backbone.forward([0], [forward], [slots])
    return dict(zip(forward.nodes, hidden, strict=True))
