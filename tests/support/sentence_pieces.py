"""Small SentencePiece-style tokenizers with byte fallback, in the styles of published models."""

import json
from functools import cache
from itertools import product

from byte_tokenizers import WORKS
from hard_strings import draw_hard_strings
from text_oracle import CONTINUATIONS, TextOracle, num_missing
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

MARK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
RUNS = [MARK * 2, MARK * 4, "\n\n", "\n\n\n", "<b>"]
"""Added tokens of Gemma's kind: runs of marks, which merges make too, of line ends, and a tag."""
REPLACE = normalizers.Replace(" ", MARK)
STYLES = {
    # (normalizer, pretokenizer, added tokens)
    "Llama 2": (normalizers.Sequence([normalizers.Prepend(MARK), REPLACE]), None, []),
    "Phi-3": (
        normalizers.Sequence([normalizers.Prepend(MARK), REPLACE]),
        None,
        [AddedToken("<|end|>", rstrip=True, normalized=False)],
    ),
    "Gemma": (
        REPLACE,
        pre_tokenizers.Split(" ", "merged_with_previous"),
        [AddedToken(text, normalized=False) for text in RUNS],
    ),
    "Mistral": (None, pre_tokenizers.Metaspace(MARK, "first", False), []),
    "TinyLlama": (None, pre_tokenizers.Metaspace(MARK, "always", False), []),
    "words": (None, pre_tokenizers.Metaspace(MARK, "always", True), []),
    "Yi": (REPLACE, None, []),
}


@cache
def sentence_piece(style: str, num_tokens: int = 1400) -> Tokenizer:
    """Trained on words, as SentencePiece is, with some merges over words and runs of spaces."""
    normalizer, cut, added = STYLES[style]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    if style == "words":
        trained.pre_tokenizer = cut
    else:
        trained.normalizer = REPLACE
        trained.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens, limit_alphabet=120, special_tokens=SPECIAL, show_progress=False
    )
    works = [path.read_text()[:20_000] for path in sorted(WORKS.glob("*.txt"))[:2]]
    trained.train_from_iterator([*works, *draw_hard_strings(1500, seed=0)], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    names = [*SPECIAL, *BYTES, *(name for name in model["vocab"] if name not in SPECIAL)]
    if style != "words":
        for left, right in ((MARK, MARK), (MARK * 2, MARK * 2), (".", MARK), ("\n", "\n")):
            if left in names and right in names and left + right not in names:
                names.append(left + right)
                merges.append((left, right))
    vocab = {name: token for token, name in enumerate(names)}
    unknown = {"unk_token": "<unk>", "fuse_unk": True}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, **unknown))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if cut is not None:
        tokenizer.pre_tokenizer = cut
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(added)
    return tokenizer


def text_of(style: str, text: str) -> str:
    """The text that the tokens of a text spell."""
    if style in ("Gemma", "Yi") or not text:
        return text
    has_space = style in ("Mistral", "TinyLlama", "words") and text.startswith(" ")
    return text if has_space else " " + text


class SentencePieceOracle(TextOracle):
    """Decide which token sequences occur in texts, by the library's word.

    A sequence of whole characters occurs if it is the tokenization of its text; one that ends
    inside a character, if it begins that of its text with some end of that character.
    """

    def __init__(self, style: str, tokenizer: Tokenizer) -> None:
        self._has_prefix, self._library = style in ("Llama 2", "Phi-3"), tokenizer
        unwritten = {*SPECIAL, "<|end|>"}
        self.bytes_of = {
            token: bytes([BYTES.index(name)]) if name in BYTES else name.replace(MARK, " ").encode()
            for name, token in tokenizer.get_vocab().items()
            if name not in unwritten
        }
        self._followers: dict[tuple[int, ...], list[int]] = {}

    def followers(self, path: tuple[int, ...]) -> list[int]:
        """The tokens with which a sequence that occurs may go on."""
        if path not in self._followers:
            self._followers[path] = [t for t in self.bytes_of if self._occurs((*path, t))]
        return self._followers[path]

    def _occurs(self, path: tuple[int, ...]) -> bool:
        text = self.text(path)
        if (missing := num_missing(text)) is None:
            return False
        # Two missing bytes leave 4,096 ends, of which a few show what any does.
        choices = [CONTINUATIONS, range(0x80, 0xC0, 13), range(0x80, 0xC0, 13)][:missing]
        ends = map(bytes, product(*choices))
        tokenizations = (self.tokens(text + end) for end in ends)
        return any(tokens is not None and tokens[: len(path)] == path for tokens in tokenizations)

    def tokens(self, spelled: bytes) -> tuple[int, ...] | None:
        """Read without the space that a normalizer puts before a text."""
        if self._has_prefix:
            return super().tokens(spelled[1:]) if spelled.startswith(b" ") else None
        return super().tokens(spelled)
