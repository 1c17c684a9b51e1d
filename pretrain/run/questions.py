"""Multiple-choice questions put to the weights while they train, by the probability of answers."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..job_config import JobConfig, QuestionSource
from ..model.loss import IGNORE_INDEX
from ..tokens.encoder import DocumentEncoder, tokenizer_file

_ROW_TOKENS = 128  # lengths are rounded up to it, as attention on a GPU likes them


@dataclass(frozen=True, slots=True)
class Question:
    """The beginning of a sentence, and ways to end it of which one is right."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """Place of the right one, from 0."""


def read_questions(path: Path) -> list[Question]:
    """JSON lines of "question", "choices" and "answer", the place of the right choice from 0.

    Raises: ValueError naming the line that is none of this, FileNotFoundError without the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"questions {path} do not exist")
    lines = path.read_text(encoding="utf-8").splitlines()
    questions = [_question(line, f"{path}:{place}") for place, line in enumerate(lines, 1)]
    if not questions:
        raise ValueError(f"{path} holds no questions")
    return questions


def _question(line: str, name: str) -> Question:
    try:
        table = json.loads(line)
        question, choices, answer = table["question"], table["choices"], table["answer"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is no question with choices and answer: {error!r}") from None
    texts = [question, *choices] if isinstance(choices, list) else []
    if len(texts) < 3 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"{name} needs a question and at least 2 choices, all texts")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise ValueError(f"{name}: answer must be in [0, {len(choices)}), got {answer!r}")
    return Question(question, tuple(choices), answer)


@dataclass(frozen=True, slots=True)
class _Row:
    """One choice behind its question, as token ids."""

    ids: list[int]
    num_given: int
    """Of the ids, those before the choice."""
    num_bytes: int


class QuestionSuite:
    """One file of questions; the same figures on any number of processes.

    A choice is scored by its log-probability behind begin token, question and a space, divided by
    its UTF-8 bytes with that space: long answers are no worse for their length. What is answered
    is the choice of the highest score. Source: acc_norm of lm-eval, in bytes of text.
    """

    def __init__(self, source: QuestionSource, *, tokenizer: str, seq_len: int) -> None:
        """tokenizer: a tokenizer.json or its folder. seq_len: most tokens that the model takes.

        Raises: ValueError or FileNotFoundError with one line about a file that cannot be used.
        """
        self.name = source.name
        self._questions = read_questions(Path(source.path))
        encoder = DocumentEncoder(tokenizer_file(tokenizer))
        self._rows = [row for one in self._questions for row in _rows(one, encoder)]
        longest = max(len(row.ids) for row in self._rows) - 1
        if longest > seq_len:
            raise ValueError(
                f"{source.path} holds a question of {longest} tokens with its answer, more than "
                f"training.seq_len {seq_len}"
            )
        self._row_len = min(seq_len, -(-longest // _ROW_TOKENS) * _ROW_TOKENS)

    def measure(
        self, batch_loss: Callable[[Tensor, Tensor], Tensor], device: torch.device
    ) -> dict[str, float]:
        """The share answered rightly, and the right answers' nats a byte; on all processes.

        batch_loss: summed cross entropy of (1, n) inputs and labels on `device`, in nats.
        """
        nats = torch.zeros(len(self._rows), dtype=torch.float64, device=device)
        world_size, rank = dist.get_world_size(), dist.get_rank()
        # Sharded weights demand as many forwards of every process: some are of no row.
        for first in range(0, len(self._rows), world_size):
            place = first + rank
            inputs, labels = self._tensors(place)
            loss = batch_loss(inputs.to(device), labels.to(device))
            if place < len(self._rows):
                nats[place] = loss
        dist.all_reduce(nats)
        return self._figures(nats.cpu().numpy())

    def _tensors(self, place: int) -> tuple[Tensor, Tensor]:
        inputs = torch.zeros(1, self._row_len, dtype=torch.int64)
        labels = torch.full_like(inputs, IGNORE_INDEX)
        if place < len(self._rows):
            row = self._rows[place]
            ids = torch.tensor(row.ids)
            inputs[0, : len(ids) - 1] = ids[:-1]
            labels[0, row.num_given - 1 : len(ids) - 1] = ids[row.num_given :]
        return inputs, labels

    def _figures(self, nats: np.ndarray) -> dict[str, float]:
        num_bytes = np.array([row.num_bytes for row in self._rows])
        counts = [len(one.choices) for one in self._questions]
        firsts = np.cumsum([0, *counts[:-1]])
        right = firsts + [one.answer for one in self._questions]
        scores = np.split(-nats / num_bytes, firsts[1:])
        is_right = [
            int(score.argmax()) == one.answer
            for score, one in zip(scores, self._questions, strict=True)
        ]
        return {
            "accuracy": float(np.mean(is_right)),
            "nats_per_byte": float(nats[right].sum() / num_bytes[right].sum()),
        }


def question_suites(config: JobConfig) -> list[QuestionSuite]:
    """The suites that a run's config names.

    Raises: ValueError or FileNotFoundError with one line about one that cannot be used.
    """
    if config.heldout.questions and not config.model.tokenizer:
        raise ValueError("heldout.questions need model.tokenizer, the folder of the tokenizer")
    return [
        QuestionSuite(source, tokenizer=config.model.tokenizer, seq_len=config.training.seq_len)
        for source in config.heldout.questions
    ]


def _rows(question: Question, encoder: DocumentEncoder) -> Iterator[_Row]:
    given = [encoder.bos_id, *encoder.ids(question.question)]
    for choice in question.choices:
        text = f" {choice}"
        yield _Row([*given, *encoder.ids(text)], len(given), len(text.encode()))
