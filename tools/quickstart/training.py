"""The three training runs of a quickstart, and their export as Hugging Face folders."""

import json
import tomllib
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.eval.plots import LossCurve
from anchored.pretrain.export import export_checkpoint
from anchored.pretrain.launch import launch

from .data import CONTEXT_LENGTH
from .folders import Folders
from .preset import RUNS, Preset, run_config

FINAL_RUNS = {"safe": "safe-stage2", "risky": "risky"}


def train(folders: Folders, preset_name: str, run: str) -> None:
    """Train one run as a process of its own; an interrupted run resumes at its checkpoint."""
    config = folders.run_config(run)
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(run_config(preset_name, run, folders.root))
    launch(config)


def export(folders: Folders, preset: Preset) -> None:
    """Export the models that are not there yet and load both back with transformers."""
    for model, run in FINAL_RUNS.items():
        if not folders.model(model).exists():  # an export appears only when it is complete
            export_checkpoint(
                final_checkpoint(folders, run),
                folders.tokenizer(preset.tokenizer_owner(model)),
                folders.model(model),
                max_position_embeddings=CONTEXT_LENGTH,
            )
        loaded = AutoModelForCausalLM.from_pretrained(folders.model(model))
        tokenizer = AutoTokenizer.from_pretrained(folders.model(model))
        if loaded.config.vocab_size != len(tokenizer):
            raise ValueError(f"{folders.model(model)} does not load back as it was written")


def final_checkpoint(folders: Folders, run: str) -> Path:
    """Folder of the last step's checkpoint of a run."""
    steps = tomllib.loads(folders.run_config(run).read_text())["training"]["steps"]
    return folders.run(run) / "checkpoint" / f"step-{steps}"


def loss_curves(folders: Folders) -> list[LossCurve]:
    """All training losses, from the metrics that the runs recorded.

    The safe model's second stage goes on where its first ended.
    """
    curves: list[LossCurve] = []
    for run in RUNS:
        lines = (folders.run(run) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        first_step = curves[0].steps[-1] if run == "safe-stage2" else 0
        curves.append(
            LossCurve(
                label=run.replace("-stage", ", stage "),
                role="risky" if run == "risky" else "safe",
                steps=[first_step + record["step"] for record in records],
                losses_nats=[record["loss"] for record in records],
            )
        )
    return curves
