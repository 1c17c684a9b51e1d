"""A checkpoint of a run as a Hugging Face folder: config, tokenizer and safetensors."""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import GenerationConfig, LlamaConfig

from .. import text_tables
from ..durable_files import new_folder
from .plan.data_plan import epochs_read, tokens_read
from .run.checkpoints import checkpoint_step, damage
from .run.record import RunRecord
from .tokens.decontamination import search_summary
from .tokens.tokenizer import (
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    check_tokenizer,
    template,
    tokenizer_config,
)

_MAX_LICENSES = 4
_PACKAGES = ("torch", "torchtitan", "transformers")
_LIMITS = """## Limits

A base model: it continues text and follows no instructions. As the safe model of a pair for
Anchored Decoding it is only as safe as the licenses above are right. Training sequences held parts
of several documents, {masking}.
"""


def model_card(
    record: RunRecord, *, step: int, title: str, max_position_embeddings: int = 0
) -> str:
    """Markdown with every stage's data plan, tokens and licenses by source, and settings.

    step: of the checkpoint. max_position_embeddings: of config.json, where it is not the length of
    a training sequence.
    """
    shape = dict(record.model)
    shape["tokens of a training sequence"] = trained_length = shape["max_position_embeddings"]
    shape["max_position_embeddings"] = max_position_embeddings or trained_length
    stages = record.stages(step)
    begin = "" if record.bos_id is None else "began with the tokenizer's `bos_token` and "
    sections = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n",
        f"# {title}\n",
        f"A Llama-style language model, pretrained with torchtitan in {len(stages)} stage(s). "
        f"Its data was tokenized by a `tokenizer.json` with sha256 "
        f"`{record.tokenizer_sha256}`. Every document {begin}ended with its `eos_token`.\n",
        _table(("shape", "value"), sorted(shape.items())),
    ]
    for number, (stage, last_step) in enumerate(stages, start=1):
        sections.append(f"## Stage {number}: {last_step:,} steps\n")
        sections += _stage_sections(stage, last_step)
    is_masked = [bool(stage.identity.get("data.mask_documents")) for stage, _ in stages]
    masking = f"without a mask between them{', in some stages' * any(is_masked)}"
    if all(is_masked):
        masking = "and attention did not cross from one to another"
    return "\n".join([*sections, _LIMITS.format(masking=masking)])


def _stage_sections(stage: RunRecord, step: int) -> list[str]:
    """The data that a stage read, its searches, its settings, its forks and its starts."""
    data = stage.data
    read, epochs = tokens_read(data, step), epochs_read(data, step)
    total = sum(read.values())
    rows = [
        (
            source["name"],
            f"{source['origin']} @ {source['revision']}",
            f"{count:,}",
            f"{count / total:.2%}" if total else "-",
            f"{epochs[source['name']]:.2f}",
            _licenses(source["licenses"]),
        )
        for source, count in zip(data["sources"], read.values(), strict=True)
    ]
    searches = [
        (source["name"], search_summary(search) if search else "not searched")
        for source in data["sources"]
        for search in [source.get("decontamination")]
    ]
    head = ("source", "origin", "tokens read", "share", "epochs", "licenses (documents)")
    sections = [
        f"{total:,} tokens in sequences of {data['seq_len']:,}; weights count "
        f"{data['weight_unit']}; data plan `{data['plan_hash']}`.\n\n{_table(head, rows)}",
        _table(("source", "texts that must not be in it"), searches),
        _table(("setting", "value"), sorted(stage.identity.items())),
    ]
    if stage.forks:
        forked = ("went on, as another run, after step", "steps of data left out", "settings")
        sections.append(_table(forked, [_fork_row(fork) for fork in stage.forks]))
    if stage.starts:
        started = ("started after step", "processes", "first machine", *_PACKAGES)
        starts = [_start_row(start, start["environment"]) for start in stage.starts]
        sections.append(_table((*started, "CUDA", "driver", "commit"), starts))
    return sections


def _fork_row(fork: dict[str, Any]) -> tuple[Any, ...]:
    changed = (f"{key}: {old}, then {new}" for key, (old, new) in fork["settings"].items())
    return fork["step"], fork["skip_steps"], ", ".join(changed)


def _start_row(start: dict[str, Any], environment: dict[str, Any]) -> tuple[Any, ...]:
    devices = (f"{count} {name}" for name, count in Counter(environment["devices"]).items())
    return (
        start["step"],
        start["num_processes"],
        ", ".join(devices) or "cpu",
        *(environment["packages"][name] for name in _PACKAGES),
        environment["cuda"] or "-",
        environment["driver"] or "-",
        (environment["git_commit"] or "-")[:12],
    )


def _licenses(licenses: dict[str, int]) -> str:
    common = sorted(licenses.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{name} ({count:,})" for name, count in common[:_MAX_LICENSES]]
    if rest := [count for _, count in common[_MAX_LICENSES:]]:
        named.append(f"{len(rest)} more ({sum(rest):,})")
    return ", ".join(named)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return text_tables.markdown(head, rows, numbers=False) + "\n"


Dtype = Literal["float32", "bfloat16", "float16"]

_TOKENIZER_LICENSE = "LICENSE"


def export_checkpoint(
    checkpoint: Path,
    tokenizer_folder: Path,
    output: Path,
    *,
    max_position_embeddings: int = 0,
    dtype: Dtype = "float32",
) -> None:
    """Write a Hugging Face folder from one checkpoint; it appears only when it is complete.

    checkpoint: a step folder inside the dump folder of a run, two levels below its run.json.
    tokenizer_folder: holds the tokenizer.json that the run's data was tokenized by. Of its other
        files only the license is copied: ends and chat templates are those of some other model.
    max_position_embeddings: 0, or at least the training length: rotary embeddings go on beyond
        it without new weights, at a quality that training did not see.
    transformers loads the result as LlamaForCausalLM; in float32 its logits agree with the trained
    model's to 1e-4. Padding is done with the end-of-text token; config.json names none, whose
    embedding would never be trained further. README.md is the model card.
    Raises: ValueError if the output exists, the checkpoint is missing or incomplete, or the
    tokenizer is another one.
    """
    if output.exists():
        raise ValueError(f"export writes a new folder, and {output} exists")
    step = checkpoint_step(checkpoint)
    if reason := damage(checkpoint):
        raise ValueError(f"{checkpoint} is not a complete checkpoint: {reason}")
    record = RunRecord.read(checkpoint.resolve().parents[1])
    check_tokenizer(tokenizer_folder / TOKENIZER_NAME, record.tokenizer_sha256)
    config = _llama_config(record, max_position_embeddings, dtype)
    length = config.max_position_embeddings
    with new_folder(output) as folder:
        config.save_pretrained(folder)
        ids = {"bos_token_id": record.bos_id, "eos_token_id": record.eos_id}
        GenerationConfig(**ids, pad_token_id=record.eos_id).save_pretrained(folder)
        _write_tokenizer(tokenizer_folder, folder, record, length)
        card = model_card(record, step=step, title=output.name, max_position_embeddings=length)
        (folder / "README.md").write_text(card)
        weights = llama_weights(checkpoint, record.model, getattr(torch, dtype))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _llama_config(record: RunRecord, max_position_embeddings: int, dtype: Dtype) -> LlamaConfig:
    shape = dict(record.model)
    trained_length = shape.pop("max_position_embeddings")
    if max_position_embeddings and max_position_embeddings < trained_length:
        raise ValueError(
            f"max_position_embeddings must be 0 or at least the training length "
            f"{trained_length}, got {max_position_embeddings}"
        )
    return LlamaConfig(
        rope_parameters={"rope_type": "default", "rope_theta": float(shape.pop("rope_theta"))},
        max_position_embeddings=max_position_embeddings or trained_length,
        tie_word_embeddings=False,
        bos_token_id=record.bos_id,
        eos_token_id=record.eos_id,
        architectures=["LlamaForCausalLM"],
        dtype=dtype,
        **shape,
    )


def _write_tokenizer(tokenizer_folder: Path, output: Path, record: RunRecord, length: int) -> None:
    """Write a tokenizer that begins prompts as the documents of training began."""
    for name in (TOKENIZER_NAME, _TOKENIZER_LICENSE):
        if (tokenizer_folder / name).is_file():
            shutil.copy(tokenizer_folder / name, output)
    tokenizer = Tokenizer.from_file(str(output / TOKENIZER_NAME))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    names = {token_id: name for name, token_id in tokenizer.get_vocab().items()}
    begin, end = None if record.bos_id is None else names[record.bos_id], names[record.eos_id]
    expected = [] if begin is None else [begin]
    expected += tokenizer.encode("a", add_special_tokens=False).tokens
    if tokenizer.encode("a").tokens != expected:
        tokenizer.post_processor = template(tokenizer, begin)
        tokenizer.save(str(output / TOKENIZER_NAME))
    settings = tokenizer_config(begin, end, max_length=length) | {"pad_token": end}
    (output / TOKENIZER_CONFIG_NAME).write_text(json.dumps(settings, indent=2) + "\n")


_LLAMA_NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "norm": "model.norm",
    "output": "lm_head",
}
"""transformers' names of the weights of a checkpoint, those of a layer by their place in it."""


def llama_weights(
    checkpoint: Path, model: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Read a step folder's model weights, and nothing else of it, for LlamaForCausalLM.

    model: the shape, in the names of a Hugging Face config.
    Returns: contiguous CPU tensors.
    Raises: ValueError if a weight is not finite.
    """
    # 1. Of the optimizer's and the run's states nothing is read.
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
        and name.split(".")[0] in ("layers", *_LLAMA_NAMES)
    }
    with warnings.catch_warnings():
        # no_dist asks for exactly what the warning says is assumed.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(weights, checkpoint_id=checkpoint, no_dist=True)
    if lost := [name for name, weight in weights.items() if not weight.isfinite().all()]:
        raise ValueError(f"checkpoint {checkpoint} holds {lost[0]}, which is not finite")
    # 2. Other names, and other rows of queries and keys: in training the rotary embedding turns the
    # pairs (0, 1), (2, 3), ... of a head, in transformers (0, D / 2), (1, D / 2 + 1), ...
    exported = {}
    for name, weight in weights.items():
        *layer, part = name.removesuffix(".weight").split(".", 2)
        if part in ("attention.wq", "attention.wk"):
            pairs = weight.unflatten(0, (model["num_attention_heads"], -1, 2))
            weight = pairs.transpose(1, 2).flatten(0, 2)
        whole = ".".join([*(["model", *layer] if layer else []), _LLAMA_NAMES[part], "weight"])
        exported[whole] = weight.to(dtype).contiguous()
    return exported
