"""Small tokenizers in the styles of the field: how their tokens become text differs."""

import string

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

BEGIN, END, TURN = "<s>", "</s>", "<|turn|>"
WORDS = ["the", "keeper", "once", "upon", "a", "time", "s", "."]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\u2581"


def _finished(
    tokenizer: Tokenizer, decoder: decoders.Decoder, **options
) -> PreTrainedTokenizerFast:
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([BEGIN, END, TURN])
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, **options
    )


def _fallback(
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    decoder: decoders.Decoder,
) -> PreTrainedTokenizerFast:
    """A BPE of words that begin with U+2581 and of bytes."""
    words = [SPACE + word for word in WORDS] + [SPACE, SPACE * 2, *string.ascii_lowercase, "."]
    vocab, merges = {token: i for i, token in enumerate(dict.fromkeys(BYTES + words))}, []
    vocab[SPACE * 2] = vocab.get(SPACE * 2, len(vocab))
    for word in WORDS:
        whole = SPACE + word
        for end in range(1, len(whole)):
            vocab.setdefault(whole[: end + 1], len(vocab))
            merges.append((whole[:end], whole[end]))
    tokenizer = Tokenizer(models.BPE(vocab, list(dict.fromkeys(merges)), byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return _finished(tokenizer, decoder)


def llama2() -> PreTrainedTokenizerFast:
    """A space before every text, whose decoder takes the first one away; bytes as a fallback."""
    return _fallback(
        normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
        None,
        decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )


def metaspace() -> PreTrainedTokenizerFast:
    """Mistral's later form: a space before a text that begins with none."""
    split = {"replacement": SPACE, "prepend_scheme": "first", "split": False}
    steps = [decoders.ByteFallback(), decoders.Metaspace(**split)]
    return _fallback(None, pre_tokenizers.Metaspace(**split), decoders.Sequence(steps))


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's: every byte is a letter, tokens are strings of bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [("\u0120", "t"), ("t", "h"), ("\u00e2", "\u013a"), ("s", "\u00e2")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _finished(tokenizer, decoders.ByteLevel())


def word_piece(*, cleans_up: bool = False) -> PreTrainedTokenizerFast:
    """BERT's: words, and "##" before the later parts of one."""
    letters, endings = string.ascii_lowercase, ["n't", "'s", "'ve"]
    tokens = ["[UNK]", *WORDS, *letters, *"?!,'", *endings, *(f"##{letter}" for letter in letters)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    decoder = decoders.WordPiece(cleanup=False)
    return _finished(tokenizer, decoder, clean_up_tokenization_spaces=cleans_up)


def cleaned_up() -> PreTrainedTokenizerFast:
    """BERT's, with the spaces before punctuation taken away by transformers."""
    return word_piece(cleans_up=True)


STYLES = {
    style.__name__: style for style in (llama2, metaspace, byte_level, word_piece, cleaned_up)
}
