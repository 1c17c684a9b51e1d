"""The benchmark of training: what each lever of a run is worth."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from anchored import AnchoredError
from anchored.configs.config_file import read_config_file, toml_text
from anchored.pretrain.program import launch
from anchored.pretrain.tokens.shards import MANIFEST_NAME, Manifest
from anchored.pretrain.tokens.writer import ShardFiles
from anchored.wrong_words import Refused

from .inputs import BOS_ID, EOS_ID
from .options import BenchPretrainConfig
from .timing import print_table, ratio_cells

DOCUMENT_TOKENS = 1000
"""Tokens of a random document; windows are longer, so that documents meet in them."""
BASELINE = "as configured"
TITLES = ("tokens/s a GPU", "ratio", "error", "MFU", "peak GiB", "last loss", "difference")

Settings = Mapping[str, Mapping[str, Any]]
"""Values by section and key; a value is one that JSON and TOML write alike."""


def run(config: BenchPretrainConfig) -> int:
    """Print a row as each run ends; returns 0."""
    batch_size, _ = batch_shape(config.config)
    every_lever = levers(batch_size)
    if unknown := [name for name in config.levers if name not in every_lever]:
        raise Refused(f"no lever {unknown[0]!r}; known: {', '.join(every_lever)}")
    with tempfile.TemporaryDirectory() as name:
        write_common(config, Path(name))
        print(f"{config.config.stem}, random tokens, {config.gpus} process(es)")
        chosen = {lever: every_lever[lever] for lever in config.levers or every_lever}
        print_table(("", *TITLES), _rows(config, Path(name), chosen), 16, name_width=20)
    return 0


def levers(batch_size: int) -> dict[str, Settings]:
    """Changes to a config whose local batch has that many sequences, by what they do."""
    changes: dict[str, Settings] = {
        "without compile": {"compile": {"enable": False}},
        "all logits at once": {"loss": {"chunk_tokens": 0}},
        "flex attention": {"data": {"mask_documents": True}},
        "half the batch": {"training": {"local_batch_size": max(1, batch_size // 2)}},
        "twice the batch": {"training": {"local_batch_size": 2 * batch_size}},
        "weights resharded": {"parallelism": {"fsdp_reshard_after_forward": "always"}},
    }
    if find_spec("torchao"):
        changes["float8"] = {
            "model": {"converters": ["quantize.linear.float8"]},
            "quantize.linear.float8": {"recipe_name": "rowwise", "filter_fqns": ["output"]},
        }
    return changes


def batch_shape(file: Path) -> tuple[int, int]:
    """Sequences in a local batch and their length. Raises ValueError if a config does not say."""
    training = read_config_file(file).get("training", {})
    try:
        return training["local_batch_size"], training["seq_len"]
    except KeyError as missing:
        raise ValueError(f"{file} must give training.{missing.args[0]}") from None


def write_common(config: BenchPretrainConfig, folder: Path) -> None:
    """Random shards, and common.toml: the config, with what all the runs change of it."""
    batch_size, seq_len = batch_shape(config.config)
    sequences = config.gpus * config.rounds * batch_size
    write_random_shards(
        folder / "shards",
        (config.steps * sequences + 1) * seq_len + 1,
        vocab_size=config.vocab_size,
        generator=np.random.default_rng(0),
    )
    source = {"name": "random", "path": str(folder / "shards"), "weight": 1.0}
    settings: Settings = {
        "job": {"needs_gpu": False},
        "model": {"tokenizer": ""},
        "training": {"steps": config.steps, "global_batch_size": sequences},
        "lr_scheduler": {"warmup_steps": 0},  # the configured one may be longer than these steps
        "checkpoint": {"interval": config.steps, "interval_minutes": 0.0, "milestone_interval": 0},
        "metrics": {"log_freq": 1, "enable_tensorboard": False},
        "heldout": {"sources": []},
        "data": {"verify_checksums": False, "sources": [source]},
    }
    text = toml_text({"base": str(config.config.resolve()), **settings})
    (folder / "common.toml").write_text(text)


def write_random_shards(
    folder: Path, num_tokens: int, *, vocab_size: int, generator: np.random.Generator
) -> None:
    """Make a folder with one shard of `num_tokens` tokens in documents of DOCUMENT_TOKENS.

    folder: must not exist. vocab_size: at least 3, as two tokens are BOS and EOS.
    """
    folder.mkdir(parents=True)
    files = ShardFiles(folder, "00000", input_file="random")
    whole, rest = divmod(num_tokens, DOCUMENT_TOKENS)
    lengths = [DOCUMENT_TOKENS] * whole + [rest] * bool(rest)
    for record, length in enumerate(lengths):
        token_ids = generator.integers(2, vocab_size, size=length, dtype="<u4")
        token_ids[-1], token_ids[0] = EOS_ID, BOS_ID
        files.add(token_ids, record=record, license="none")
    manifest = Manifest(
        source=folder.name,
        revision="random",
        split="train",
        heldout_fraction=0.0,
        licenses={"none": len(lengths)},
        refused_licenses={},
        tokenizer_sha256="random",
        vocab_size=vocab_size,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        num_documents=len(lengths),
        num_empty_documents=0,
        num_invalid_documents=0,
        num_oversized_documents=0,
        max_document_bytes=0,
        num_bytes=0,
        num_tokens=num_tokens,
        shards=(files.close(),),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())


def measure(
    config: BenchPretrainConfig, folder: Path, settings: Settings
) -> list[dict[str, float]]:
    """The counted steps' lines of metrics.jsonl, of training with these settings over common.toml.

    Raises AnchoredError if the run fails.
    """
    with tempfile.TemporaryDirectory(dir=folder) as dump_folder:
        job = {"dump_folder": dump_folder}
        file = folder / "run.toml"
        file.write_text(toml_text({"base": "common.toml", "job": job, **settings}))
        launch(file, num_processes=config.gpus)
        text = (Path(dump_folder) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()][config.skipped_steps :]


def _rows(
    config: BenchPretrainConfig, folder: Path, chosen: dict[str, Settings]
) -> Iterator[tuple[str, ...]]:
    """Rows as each run ends: the config as it is, the levers."""
    baseline = measure(config, folder, {})
    yield (BASELINE, *_cells(config, baseline, baseline))
    for name, settings in chosen.items():
        try:
            yield (name, *_cells(config, measure(config, folder, settings), baseline))
        except AnchoredError as error:  # as a rule it does not fit, which is a result too
            yield (f"{name:<20}  {str(error).splitlines()[-1]}",)


def _cells(
    config: BenchPretrainConfig, steps: list[dict[str, float]], baseline: list[dict[str, float]]
) -> tuple[str, ...]:
    # Both runs read the same tokens in the same steps, so that steps are compared one by one.
    speeds, baseline_speeds = ([step["tokens_per_s"] for step in run] for run in (steps, baseline))
    last = steps[-1]  # a device that cannot tell its MFU or its memory tells neither in any step
    return (
        f"{median(speeds) / config.gpus:,.0f}",
        *ratio_cells(speeds, baseline_speeds, 3),
        f"{median(step['mfu'] for step in steps):.1%}" if "mfu" in last else "-",
        f"{max(step['peak_memory_gib'] for step in steps):.1f}"
        if "peak_memory_gib" in last
        else "-",
        f"{last['loss']:.4f}",
        f"{last['loss'] - baseline[-1]['loss']:.1e}",
    )
