"""What byte level costs outside the models: the tree, its cache, its masks and its sums."""

import time

import torch

from anchored.decode.byte.byte_row import MAX_DEAD_SLOTS
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.byte.tree_cache import TreeCache
from anchored.decode.byte.tree_marginals import TreeMarginals
from anchored.decode.tokenizer.vocabulary import ByteVocabulary


def tree_work_s(
    vocabulary: ByteVocabulary, text: bytes, *, num_tokens: int, num_bytes: int
) -> float:
    """Seconds of one thread for `num_bytes` bytes behind a context of `num_tokens` tokens.

    text: repeated as often as needed. The model's logits are random ones, drawn before.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_bytes, vocabulary.vocab_size, generator=generator)
    tree = TokenTree(vocabulary)
    place = 0
    while len(tree.trunk()) < num_tokens:
        tree.append(text[place % len(text)])
        place += 1
    cache, marginals = TreeCache(tree), TreeMarginals(tree, tree.trunk()[-1])
    cache.add_trunk()
    start = time.thread_time()
    for row in logits:
        _step(cache, marginals, row[None])
        marginals.append(text[place % len(text)])
        place += 1
    return time.thread_time() - start


def string_work_s(vocabulary: ByteVocabulary, text: bytes) -> float:
    """Seconds of one thread for the tree of a text and the rows of what may follow its nodes."""
    tree = TokenTree(vocabulary)
    start = time.thread_time()
    for byte in text:
        for node in tree.append(byte):
            vocabulary.viability.allowed(tree.standing[node])
    return time.thread_time() - start


def _step(cache: TreeCache, marginals: TreeMarginals, logits: torch.Tensor) -> None:
    wanted, tree = marginals.missing(), cache.tree
    if missing := cache.missing(wanted):
        cache.add(missing)
    if wanted:
        standings = [tree.standing[node] for node in wanted]
        laws = node_laws(tree.vocabulary, standings, logits.expand(len(wanted), -1))
        for node, law in zip(wanted, laws, strict=True):
            marginals.add_law(node, law)
    marginals.log_probs()
    if cache.num_dead > MAX_DEAD_SLOTS:
        cache.compact()
