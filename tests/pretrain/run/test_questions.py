"""Questions put to the weights in training are answered as by the exported model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_runs import train
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.pretrain.export import export_checkpoint
from anchored.pretrain.job_config import QuestionSource, load_job_config
from anchored.pretrain.run.preflight import check_run
from anchored.pretrain.run.questions import QuestionSuite, read_questions

# Of 5 + 2 choices, so that two processes have an odd number of rows; of unlike lengths.
QUESTIONS = [
    ("the keeper of lamp", ["wrote", "every wave into a ledger", "salt", "and rain while", "of"]),
    ("salt and", ["rain", "the keeper wrote"]),
]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    lines = [
        json.dumps({"question": question, "choices": choices, "answer": place})
        for place, (question, choices) in enumerate(QUESTIONS)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@torch.no_grad()
def figures_of(model, tokenizer):
    """Accuracy and nats a byte, by transformers: a choice is what follows its question's tokens."""
    num_right, nats, num_bytes = 0, 0.0, 0
    for place, (question, choices) in enumerate(QUESTIONS):
        given = [tokenizer.bos_token_id, *tokenizer.encode(question, add_special_tokens=False)]
        losses = []
        for choice in choices:
            ids = tokenizer.encode(f"{question} {choice}", add_special_tokens=False)
            row = torch.tensor([[tokenizer.bos_token_id, *ids]])
            assert row[0, : len(given)].tolist() == given
            log_probs = model(row).logits[0, :-1].double().log_softmax(-1)
            taken = log_probs.gather(-1, row[0, 1:, None])[len(given) - 1 :]
            losses.append(-taken.sum().item())
        lengths = [len(f" {choice}".encode()) for choice in choices]
        each = [loss / length for loss, length in zip(losses, lengths, strict=True)]
        num_right += each.index(min(each)) == place
        nats, num_bytes = nats + losses[place], num_bytes + lengths[place]
    return {"accuracy": num_right / len(QUESTIONS), "nats_per_byte": nats / num_bytes}


@pytest.mark.parametrize(
    ("num_processes", "settings"),
    [(1, {}), pytest.param(2, {"loss": {"chunk_tokens": 24}}, marks=pytest.mark.slow)],
)
def test_answers_are_those_of_the_exported_model(
    num_processes, settings, questions, write_config, corpus, tmp_path
):
    run = tmp_path / "run"
    asked = {"interval": 2, "questions": [{"name": "tiny", "path": str(questions)}]}
    # Steps at this rate teach enough for some answers to be right.
    config_file = write_config(
        run,
        steps=4,
        model={"tokenizer": str(corpus.tokenizer_folder)},
        heldout=asked,
        optimizer={"lr": 1e-2},
        **settings,
    )
    train(config_file, num_processes=num_processes)
    lines = [json.loads(line) for line in (run / "heldout.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4] and lines[0]["losses"] == {}
    export_checkpoint(run / "checkpoint" / "step-4", corpus.tokenizer_folder, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    expected = figures_of(model, AutoTokenizer.from_pretrained(tmp_path / "model"))
    assert lines[1]["questions"]["tiny"] == pytest.approx(expected, abs=1e-5)
    assert lines[0]["questions"] != lines[1]["questions"]
    said = f"questions/tiny/nats_per_byte {lines[1]['questions']['tiny']['nats_per_byte']:.4f}"
    assert said in (run / "train.log").read_text()
    (folder,) = (run / "tb").iterdir()
    (event,) = EventAccumulator(str(folder)).Reload().Scalars("questions/tiny/nats_per_byte")[1:]
    assert event.value == pytest.approx(expected["nats_per_byte"], abs=1e-5)


def test_a_long_answer_is_no_worse_for_its_length(questions, corpus):
    source = QuestionSource(name="tiny", path=str(questions))
    suite = QuestionSuite(source, tokenizer=str(corpus.tokenizer_folder), seq_len=32)
    # " wrote", the right one of the first 5, has 1 nat a byte, " every wave into a ledger" 0.96.
    nats = np.array([6.0, 24.0, 5.5, 16.0, 4.0, 6.0, 15.0])
    assert suite._figures(nats)["accuracy"] == 0.5
    assert suite._figures(nats + np.eye(7)[1] * 2)["accuracy"] == 1.0
    assert suite._figures(nats)["nats_per_byte"] == pytest.approx((6 + 15) / (6 + 17))


def test_our_own_questions_have_one_right_answer_at_every_place():
    own = read_questions(Path(QuestionSource(name="own").path))
    assert len(own) > 100
    assert len({one.question for one in own}) == len(own)
    for one in own:
        assert len({choice.lower() for choice in one.choices}) == 4
    counts = [sum(one.answer == place for one in own) for place in range(4)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "questions.jsonl:2 is no question with choices and answer"),
        ('{"question": "a"}', "is no question with choices and answer: KeyError('choices')"),
        ('{"question": "a", "choices": ["b"], "answer": 0}', "needs a question and at least 2"),
        ('{"question": "a", "choices": ["b", 3], "answer": 0}', "choices, all texts"),
        (
            '{"question": "a", "choices": ["b", "c"], "answer": 2}',
            "answer must be in [0, 2), got 2",
        ),
        (json.dumps({"question": "wave " * 40, "choices": ["b", "c"], "answer": 0}), "32"),
        (None, "do not exist"),
    ],
)
def test_what_is_no_question_is_refused_before_training(
    line, message, questions, write_config, corpus, tmp_path
):
    if line is None:
        questions.unlink()
    else:
        questions.write_text(questions.read_text().splitlines()[0] + "\n" + line)
    asked = {"questions": [{"name": "tiny", "path": str(questions)}]}
    model = {"tokenizer": str(corpus.tokenizer_folder)}
    path = write_config(tmp_path / "run", heldout=asked, model=model)
    config = load_job_config(["--job.config_file", str(path)])
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        check_run(config, num_processes=1)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_questions_need_a_tokenizer(questions, write_config, tmp_path):
    asked = {"questions": [{"name": "tiny", "path": str(questions)}]}
    path = write_config(tmp_path / "run", heldout=asked)
    config = load_job_config(["--job.config_file", str(path)])
    with pytest.raises(ValueError, match=r"need model\.tokenizer"):
        check_run(config, num_processes=1)
