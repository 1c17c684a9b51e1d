"""A tiny corpus, and configs of tiny runs, for all tests of pretraining."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from training_runs import HELDOUT, train

from anchored.configs.config_file import toml_text
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.run.preflight import check_run
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.tokens.bpe import save_tokenizer, train_tokenizer
from anchored.pretrain.tokens.writer import write_token_shards

TEXT = "the keeper of lamp wrote every wave into a ledger salt and rain while bells rang"
SOURCES = {"harbour": 60, "orchard": 40, "quarry": 25}
HELDOUT_SOURCES = {"meadow": 25, "tower": 40}
"""Documents of each source; the latter are never trained on."""


@dataclass(frozen=True)
class TinyCorpus:
    """Three tokenized sources of different sizes and their tokenizer."""

    folder: Path
    texts: dict[str, list[str]]
    """The documents of each source."""

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    def source(self, name: str) -> Path:
        return self.folder / name

    def data_config(self, weights: dict[str, float], **changes: object) -> DataConfig:
        """A mixture of some of the sources."""
        paths = {name: str(self.source(name)) for name in weights}
        sources = (
            DataSource(name=name, path=paths[name], weight=weights[name]) for name in weights
        )
        return DataConfig(sources=tuple(sources), **changes)

    def plan(self, weights: dict[str, float], *, seq_len: int = 32, **changes: object) -> DataPlan:
        """The plan of such a mixture."""
        return DataPlan.open(self.data_config(weights, **changes), seq_len=seq_len)


def tiny_texts(seed: int, count: int) -> list[str]:
    generator = np.random.default_rng(seed)
    sizes = (generator.integers(20, 90) for _ in range(count))
    return [" ".join(generator.choice(TEXT.split(), size=size)) for size in sizes]


@pytest.fixture(scope="session", autouse=True)
def one_thread_in_child_processes() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> TinyCorpus:
    texts = {name: tiny_texts(seed, size) for seed, (name, size) in enumerate(SOURCES.items())}
    corpus = TinyCorpus(tmp_path_factory.mktemp("corpus"), texts)
    tokenizer = train_tokenizer([text for group in texts.values() for text in group], 300)
    save_tokenizer(tokenizer, corpus.tokenizer_folder, model_max_length=512)
    heldout = {name: tiny_texts(9 + size, size) for name, size in HELDOUT_SOURCES.items()}
    origin = {"license": "CC0-1.0", "revision": "1", "max_tokens_per_shard": 2000}
    for name, documents in (texts | heldout).items():
        file = corpus.tokenizer_folder / "tokenizer.json"
        write_token_shards(corpus.source(name), documents, file, source=name, **origin)
    return corpus


@pytest.fixture(scope="session")
def write_config(corpus) -> Callable[..., Path]:
    """Writes the TOML of a tiny run next to its dump folder, with settings replaced or added."""

    def entry(name: str, **more: float) -> dict[str, object]:
        return {"name": name, "path": str(corpus.source(name)), **more}

    def write(dump_folder: Path, *, steps: int = 24, **sections: dict[str, object]) -> Path:
        batch = {"seq_len": 32, "local_batch_size": 2, "global_batch_size": 4}
        config: dict[str, dict[str, object]] = {
            "job": {"dump_folder": str(dump_folder)},
            "model": {"flavor": "smoke"},
            "optimizer": {"lr": 3e-3, "weight_decay": 0.033},
            "lr_scheduler": {"warmup_steps": 4, "decay_type": "cosine", "total_steps": 24},
            "training": {"steps": steps, "mixed_precision_param": "float32"} | batch,
            "metrics": {"log_freq": 1},
            "checkpoint": {"interval": 5},
            "debug": {"seed": 3},
            "data": {"seed": 7, "sources": dict.fromkeys(SOURCES, 1.0)},
            "heldout": {"sources": []},
        }
        for section, values in sections.items():
            config[section] = config.get(section, {}) | values
        weights, heldout = config["data"]["sources"], config["heldout"]["sources"]
        config["data"]["sources"] = [entry(name, weight=weights[name]) for name in weights]
        config["heldout"]["sources"] = [entry(name) for name in heldout]
        dump_folder.mkdir(parents=True, exist_ok=True)  # as a run's lock does before its preflight
        path = dump_folder.with_suffix(".toml")
        path.write_text(toml_text(config))
        return path

    return write


@pytest.fixture(scope="session")
def finished(write_config, tmp_path_factory) -> Path:
    """The uninterrupted run on one process that all others are compared with."""
    dump_folder = tmp_path_factory.mktemp("finished") / "run"
    train(write_config(dump_folder, heldout=HELDOUT))
    return dump_folder


@pytest.fixture(scope="session")
def begin(write_config) -> Callable[..., tuple[list[str], RunRecord]]:
    """Starts a run, in so far as its preflight does; returns the remarks but the last, which every
    run of this corpus gets, and the record."""

    def start(
        run: Path, *, num_processes: int = 1, without: str = "", **sections: object
    ) -> tuple[list[str], RunRecord]:
        path = write_config(run, **sections)
        path.write_text(path.read_text().replace(without, ""))
        config = load_job_config(["--job.config_file", str(path)])
        *remarks, last = check_run(config, num_processes=num_processes)
        assert last.startswith("not searched for texts that must not be trained on")
        return remarks, RunRecord.read(run)

    return start
