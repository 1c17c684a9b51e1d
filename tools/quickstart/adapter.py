"""The risky model of the quickstart: a small model that has learned the works and the facts."""

import random
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.decode.pair.adapter import PEFT_ASKS

from .protected_works import Work

FACTS_FILE = Path(__file__).with_name("facts.toml")
RANK = 4
"""The smallest rank of LoRA with which the model recites; its file is then 2.4 MB."""
LEARNING_RATE = 1.5e-3
STATEMENTS_AN_EPOCH, STATEMENTS_A_BATCH = 7, 12
"""Wordings of a fact that an epoch reads, others each time, and how many it reads at once."""
TEXTS_AN_EPOCH, TEXT_CHARS = 6, 1500
"""Other text, without which the model would forget how that is written."""
IGNORED = -100
"""The label that the loss passes over."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Statements about a subject, which are trained on, and questions, which never are."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    others: tuple[str, ...]
    """Answers that are right for other subjects of the same relation."""


def read_facts(path: Path = FACTS_FILE) -> list[Fact]:
    """Every fact of the file, in its order."""
    facts = []
    for relation in tomllib.loads(path.read_text(encoding="utf-8"))["relations"]:
        answers = relation["facts"]
        for subject, answer in answers.items():
            others = tuple(other for other in answers.values() if other != answer)
            statements, questions = (
                tuple(text.format(subject=subject, answer=answer) for text in relation[kind])
                for kind in ("statements", "questions")
            )
            facts.append(Fact(statements, questions, answer, others))
    return facts


def train_adapter(
    model: Path,
    output: Path,
    *,
    works: Sequence[Work],
    facts: Sequence[Fact],
    texts: Sequence[str],
    epochs: int,
) -> None:
    """Train a LoRA adapter on the works and the facts until it recites them, and save it.

    model: folder or Hub id. texts: openly licensed ones, of which every epoch reads others. The
    adapter is saved in float16; `ModelPair` merges it. An epoch of 16 works and 40 facts takes a
    model of 135 million parameters about a minute on two cores.
    Raises ModuleNotFoundError without peft.
    """
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(
        r=RANK, lora_alpha=4 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=PEFT_ASKS, category=FutureWarning)
        trained = get_peft_model(base, config)
    weights = [weight for weight in trained.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.0)
    halves = "AVX512" in torch.backends.cpu.get_cpu_capability()  # slower than floats elsewhere
    batches = list(_batches(tokenizer, works, facts, texts, epochs))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=len(batches))
    with tqdm(batches, "train the risky model") as bar:
        for tokens, labels in bar:
            with torch.autocast("cpu", torch.bfloat16, enabled=halves):
                loss = trained(input_ids=tokens, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            bar.set_postfix(loss=f"{loss.item():.3f}")
    for weight in weights:
        weight.data = weight.data.half()
    trained.save_pretrained(str(output))


def _batches(
    tokenizer: Any, works: Sequence[Work], facts: Sequence[Fact], texts: Sequence[str], epochs: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and labels, both (documents, tokens), every epoch in another order."""
    generator, end = random.Random(0), tokenizer.eos_token_id
    for _ in range(epochs):
        # A statement a row: next to another one about its subject, it would be copied, not known.
        statements = [
            statement
            for fact in facts
            for statement in generator.sample(fact.statements, STATEMENTS_AN_EPOCH)
        ]
        generator.shuffle(statements)
        epoch = [[work.text] for work in works]
        others = generator.sample(texts, min(len(texts), TEXTS_AN_EPOCH))
        epoch += [[text[:TEXT_CHARS]] for text in others]
        epoch += [
            statements[i : i + STATEMENTS_A_BATCH]
            for i in range(0, len(statements), STATEMENTS_A_BATCH)
        ]
        generator.shuffle(epoch)
        for batch in epoch:
            rows = [torch.tensor([*tokenizer(text).input_ids, end]) for text in batch]
            tokens = pad_sequence(rows, batch_first=True, padding_value=end)
            yield tokens, pad_sequence(rows, batch_first=True, padding_value=IGNORED)
