"""Byte-level streams of tiny models, and texts to feed them."""

import copy
from collections.abc import Iterable
from functools import cache

import torch
from tiny_models import FAMILIES
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.settings import UNWARPED
from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.row_stream import ModelRunner
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.vocabulary import ByteVocabulary
from anchored.decode.warpers import Warpers

ENDS = ("<|end|>", "<|endoftext|>", "<|end_of_text|>")
PROMPT = "the harbour's  12345 \n\n\t caf\u00e9 "
CONTINUATION = " I'll  go\n\u4e2d 12!"


@cache
def vocabulary_of(tokenizer: Tokenizer) -> ByteVocabulary:
    ends = map(tokenizer.token_to_id, ENDS)
    return ByteVocabulary(tokenizer, [end for end in ends if end is not None])


def model_of(vocabulary: ByteVocabulary, name: str = "llama", seed: int = 1):
    config = copy.deepcopy(FAMILIES[name])
    config.update({"vocab_size": vocabulary.vocab_size, "max_position_embeddings": 1024})
    if name == "llama4_text":
        config.floor_scale = 1025
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).double().eval()


def stream_of(model, vocabulary: ByteVocabulary, **changes) -> ByteStream:
    runner = ModelRunner(model, vocabulary.vocab_size)
    changes.setdefault("warp", Warpers(UNWARPED, vocabulary.stop_columns))
    return ByteStream(runner, row_attention(model), vocabulary, num_rows=3, **changes)


def bytes_of(vocabulary: ByteVocabulary, text: str) -> list[int]:
    return list(vocabulary.normalize(text))


def grown(vocabulary: ByteVocabulary, text: Iterable[int]) -> TokenTree:
    tree = TokenTree(vocabulary)
    for byte in text:
        tree.append(byte)
    return tree


def path_of(tree: TokenTree, node: int) -> list[int]:
    """The tokens of a node, first to last."""
    tokens = []
    while node != ROOT_NODE:
        tokens.append(tree.token[node])
        node = tree.parent[node]
    return tokens[::-1]


def closed_path(tree: TokenTree) -> list[int] | None:
    """The tokenization of the whole text, if the text may end here."""
    may_end = tree.vocabulary.viability.may_end
    ends = (h.node for h in tree.heads if h.prefix == ROOT and may_end(tree.state[h.node]))
    return next((path_of(tree, node) for node in ends), None)


def feed(stream: ByteStream, texts: dict[int, list[int]]) -> dict[int, Tensor]:
    """Feed whole texts to some rows in one call; returns (bytes, 257) by row."""
    logits = stream.feed([*texts], [*texts.values()], max(map(len, texts.values())))
    pairs = zip(texts.items(), logits, strict=True)
    return {row: values[len(values) - len(text) :] for (row, text), values in pairs}


def feed_byte_by_byte(stream: ByteStream, row: int, text: list[int]) -> Tensor:
    return torch.cat([feed(stream, {row: [byte]})[row] for byte in text])


def assert_same(actual: Tensor, expected: Tensor, *, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual.exp(), expected.exp(), rtol=rtol, atol=0)
