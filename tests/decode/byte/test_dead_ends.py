"""Distributions of bytes against those of all texts, by the word of the `tokenizers` library.

A mask that lets in tokens after which no text can be finished gives wrong ones wherever one of them
might have come; the strings are those where that happens most.
"""

import random
from itertools import product

import pytest
from byte_streams import model_of, stream_of, vocabulary_of
from byte_tokenizers import REGEXES, SMOLLM2_LACKS, STEPS, pre_tokenizer_of, trained
from text_oracle import BYTE_OF, OracleDistributions, TextOracle, worst_error
from tokenizers import Tokenizer, models

# In the first ones random merges have dead ends.
STRINGS = ("'re\t\n", "x  \u3000", "e\u0301's", "\n \t1", "'RE12", "1''", "\u00e9'", "x'\n")
NUM_STRINGS = {"random": 2, "trained": 4}
# Bytes of which most pairs merge, so that many sequences can only go on in a few ways.
CROWDED = "'rReEsS1 \n\tx\u3000\u0301".encode()
# With these, each family of one regex has dead ends in the strings.
SEEDS = {"GPT-2": 4, "cl100k": 4, "Qwen": 4, "o200k": 3}
SEEDS |= dict.fromkeys(STEPS, 4)
NUM_LONGER = 60


def crowded_tokenizer(split, seed: int, missing: frozenset[int] = frozenset()) -> Tokenizer:
    """Random merges: nine of ten pairs of CROWDED bytes, then longer ones; some entries are out of
    the merges' reach and are whole pretokens (ignore_merges). Bytes that are missing have no
    token."""
    source, letter_of = random.Random(seed), {byte: letter for letter, byte in BYTE_OF.items()}
    letters = [letter_of[byte] for byte in dict.fromkeys(CROWDED)]
    pairs = [(left, right) for left in letters for right in letters]
    source.shuffle(pairs)
    merges = pairs[: len(pairs) * 9 // 10]
    pieces = letters + [left + right for left, right in merges]
    while len(pieces) < len(letters) + len(pairs) * 9 // 10 + NUM_LONGER:
        left, right = source.choice(pieces), source.choice(pieces)
        if len(left + right) == 3 and left + right not in pieces:
            merges.append((left, right))
            pieces.append(left + right)
    single = [letter for letter, byte in BYTE_OF.items() if byte not in missing]
    vocab = {piece: i for i, piece in enumerate((*single, *pieces[len(letters) :]))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def beginnings(strings: tuple[str, ...]) -> list[bytes]:
    """The strings cut at every byte."""
    cut = (text.encode()[:end] for text in strings for end in range(1, len(text.encode()) + 1))
    return list(dict.fromkeys(cut))


CASES = [("trained", "GPT-2"), ("random", "o200k")]
SLOW_CASES = [case for case in product(NUM_STRINGS, (*REGEXES, *STEPS)) if case not in CASES]


@pytest.mark.parametrize(
    ("merges", "family"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_distributions_of_bytes_and_of_prompts_are_those_of_all_texts(merges, family):
    if merges == "trained":
        hard_tokenizer = trained(family, 100)
    else:
        hard_tokenizer = crowded_tokenizer(pre_tokenizer_of(family), SEEDS[family])
    check_distributions(hard_tokenizer, beginnings(STRINGS[: NUM_STRINGS[merges]]), family in STEPS)


# The last bytes of the two symbols that \xc3 begins are among them, so that letters alone are left.
MISSING = SMOLLM2_LACKS | {0x97, 0xB7}


@pytest.mark.slow
def test_bytes_without_a_token_have_no_probability():
    tokenizer = crowded_tokenizer(pre_tokenizer_of("GPT-2"), SEEDS["GPT-2"], MISSING)
    check_distributions(tokenizer, beginnings(("'re\t\n", "x\u00ff's", "\n \t1", "1''")), False)


def check_distributions(tokenizer: Tokenizer, texts: list[bytes], has_steps: bool) -> None:
    vocabulary = vocabulary_of(tokenizer)
    model, end = model_of(vocabulary), tokenizer.token_to_id("<|end|>")
    oracle = TextOracle(tokenizer, has_steps=has_steps)
    distributions = OracleDistributions(oracle, model, vocabulary.start_token_ids, end)
    stream, errors = stream_of(model, vocabulary), {}
    for text in texts:
        read = stream.read([list(text)], [0])
        stream.free(0)
        prompt = [distributions.next_symbol(text[:at])[text[at]] for at in range(1, len(text))]
        errors[text] = max(
            worst_error(read.logits[0].tolist(), distributions.next_symbol(text)),
            worst_error(read.token_log_probs[0].tolist(), prompt),
        )
    assert len(errors) > 8
    assert {text: error for text, error in errors.items() if error > 1e-12} == {}
