"""A tiny corpus, and configs of tiny runs, for all tests of pretraining."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from anchored.pretrain.tokens.writer import write_token_shards

TEXT = "the keeper of lamp wrote every wave into a ledger salt and rain while bells rang"
SOURCES = {"harbour": 60, "orchard": 40, "quarry": 25}


@dataclass(frozen=True)
class TinyCorpus:
    """Three tokenised sources of different sizes and their tokenizer."""

    folder: Path

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    def source(self, name: str) -> Path:
        return self.folder / name


def tiny_texts(seed: int, count: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [
        " ".join(generator.choice(TEXT.split(), size=generator.integers(20, 90)))
        for _ in range(count)
    ]


def tiny_tokenizer(texts: list[str], vocab_size: int = 300) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread_in_child_processes() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> TinyCorpus:
    corpus = TinyCorpus(tmp_path_factory.mktemp("corpus"))
    texts = {name: tiny_texts(seed, count) for seed, (name, count) in enumerate(SOURCES.items())}
    corpus.tokenizer_folder.mkdir()
    tokenizer_file = corpus.tokenizer_folder / "tokenizer.json"
    tiny_tokenizer([text for group in texts.values() for text in group]).save(str(tokenizer_file))
    for name, documents in texts.items():
        write_token_shards(
            corpus.source(name),
            documents,
            tokenizer_file,
            source=name,
            licence="CC0-1.0",
            revision="1",
            max_tokens_per_shard=2000,
        )
    return corpus


@pytest.fixture(scope="session")
def write_config(corpus) -> Callable[..., Path]:
    """Writes the TOML of a tiny run beside its dump folder; lines given replace or extend it."""

    def write(dump_folder: Path, *, steps: int = 24, **sections: dict[str, object]) -> Path:
        config: dict[str, dict[str, object]] = {
            "job": {"dump_folder": str(dump_folder)},
            "model": {"flavor": "smoke"},
            "optimizer": {"lr": 3e-3, "weight_decay": 0.033},
            "lr_scheduler": {"warmup_steps": 4, "decay_type": "cosine", "total_steps": 24},
            "training": {
                "steps": steps,
                "seq_len": 32,
                "local_batch_size": 2,
                "global_batch_size": 4,
                "mixed_precision_param": "float32",
            },
            "metrics": {"log_freq": 1},
            "checkpoint": {"interval": 5},
            "debug": {"seed": 3},
            "data": {"seed": 7},
        }
        for section, values in sections.items():
            config[section] = config.get(section, {}) | values
        sources = config["data"].pop("sources", dict.fromkeys(SOURCES, 1.0))
        heldout = config.get("heldout", {}).pop("sources", [])
        text = "".join(_table(section, values) for section, values in config.items())
        for name, weight in sources.items():
            path = str(corpus.source(name))
            text += _table("[data.sources]", {"name": name, "path": path, "weight": weight})
        for name in heldout:
            text += _table("[heldout.sources]", {"name": name, "path": str(corpus.source(name))})
        path = dump_folder.with_suffix(".toml")
        path.write_text(text)
        return path

    return write


def _table(name: str, values: dict[str, object]) -> str:
    lines = [f"[{name}]"]
    for key, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"
