"""A small pair whose tokenizers differ, trained on this package's own text: for benchmarks."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import anchored
from anchored.decode.tokenizer.vocabulary import ByteVocabulary
from anchored.pretrain.tokens.bpe import SplitRule, pre_tokenizer

from ..options import Shape
from ..random_inputs import random_llama

END = "<|endoftext|>"
RULES: dict[str, SplitRule] = {"safe": "gpt2", "risky": "llama3"}
AREAS = ("decode", "kernels", "pretrain", "eval", "tools")
SUFFIXES = (".py", ".txt", ".md")
HELD_OUT_EVERY = 10
HELD_OUT = "held_out.txt"
BATCH_SIZE, SEQ_LEN = 4, 128
PUBLISHED = {
    "safe": ("gpt2", END, END),
    "risky": ("llama3", "<|begin_of_text|>", "<|end_of_text|>"),
}
"""Folder, first and last token of the tokenizers that belong to released models."""
LEARNING_RATE = 2e-3


class ByteModel:
    """A Llama and its tokenizer, as text and as bytes."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: Tokenizer, begin: str = END, end: str = END
    ) -> None:
        """begin, end: the tokens before and behind a text; ValueError if there is no such token."""
        self.model, self.tokenizer = model.eval(), tokenizer
        self._special = {"bos_token": begin, "eos_token": end}
        begin_id, end_id = (_token_id(tokenizer, token) for token in (begin, end))
        self.vocabulary = ByteVocabulary(tokenizer, [end_id], begin_id)

    def pretrained_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer as transformers has it."""
        return PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, **self._special)


@dataclass(frozen=True, slots=True)
class BytePair:
    """Both models by "safe" (GPT-2's pre-tokenizer) and "risky" (Llama 3's), and unseen text."""

    models: dict[str, ByteModel]
    held_out: bytes


def trained_pair(
    *,
    vocab_sizes: tuple[int, int],
    train_steps: int,
    context_length: int,
    shape: Shape = "small",
    seed: int = 0,
) -> BytePair:
    """Train both models for `train_steps` steps of 512 tokens."""
    files = sorted(_text_files())
    texts = [path.read_text() for place, path in enumerate(files) if place % HELD_OUT_EVERY]
    models = {}
    for place, (name, rule) in enumerate(RULES.items()):
        tokenizer = _trained_tokenizer(rule, vocab_sizes[place], texts)
        end = _token_id(tokenizer, END)
        token_ids = [token for text in texts for token in [end, *tokenizer.encode(text).ids]]
        model = _random_llama(tokenizer.get_vocab_size(), context_length, seed + place, shape)
        _train(model, torch.tensor(token_ids), train_steps, seed + place)
        models[name] = ByteModel(model, tokenizer)
    return BytePair(models, _held_out())


def published_pair(
    folder: Path, *, context_length: int, shape: Shape = "small", seed: int = 0
) -> BytePair:
    """Models of random weights with the tokenizers of GPT-2 and Llama 3.

    folder: holds gpt2/tokenizer.json and llama3/tokenizer.json; FileNotFoundError without them.
    """
    models = {}
    for place, (name, (owner, begin, end)) in enumerate(PUBLISHED.items()):
        path = folder / owner / "tokenizer.json"
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}")
        tokenizer = Tokenizer.from_file(str(path))
        size, end_id = tokenizer.get_vocab_size(), _token_id(tokenizer, end)
        model = _random_llama(size, context_length, seed + place, shape, end_id=end_id)
        models[name] = ByteModel(model, tokenizer, begin, end)
    return BytePair(models, _held_out())


def _held_out() -> bytes:
    files = sorted(_text_files())[::HELD_OUT_EVERY]
    return "\n".join(path.read_text() for path in files).encode()


def save_pair(pair: BytePair, folder: Path) -> None:
    """Write both models, their tokenizers and the unseen text."""
    for name, each in pair.models.items():
        each.model.save_pretrained(folder / name)
        each.tokenizer.save(str(folder / name / "tokenizer.json"))
    (folder / HELD_OUT).write_bytes(pair.held_out)


def load_pair(folder: Path) -> BytePair:
    """What `save_pair` wrote. Raises ValueError for another folder."""
    if not (folder / HELD_OUT).is_file():
        raise ValueError(f"{folder} holds no trained pair: name a new folder")
    models = {
        name: ByteModel(
            LlamaForCausalLM.from_pretrained(folder / name),
            Tokenizer.from_file(str(folder / name / "tokenizer.json")),
        )
        for name in RULES
    }
    return BytePair(models, (folder / HELD_OUT).read_bytes())


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return token_id


def _text_files() -> list[Path]:
    root = Path(anchored.__file__).parent
    found = (path for area in AREAS for path in (root / area).rglob("*"))
    return [path for path in found if path.suffix in SUFFIXES]


def _trained_tokenizer(rule: SplitRule, vocab_size: int, texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(rule)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _random_llama(
    vocab_size: int,
    context_length: int,
    seed: int,
    shape: Shape,
    *,
    end_id: int = 0,  # END is the first
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return random_llama(shape, vocab_size, context_length, eos_token_id=end_id)


def _train(model: LlamaForCausalLM, token_ids: torch.Tensor, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, max(steps, 1))
    for _ in range(steps):
        starts = torch.randint(len(token_ids) - SEQ_LEN, (BATCH_SIZE, 1), generator=generator)
        batch = token_ids[starts + torch.arange(SEQ_LEN)]
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
