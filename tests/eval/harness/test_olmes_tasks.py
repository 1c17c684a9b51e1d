"""The task files of configs/eval/tasks: questions, choices and answers of a document each."""

import json
from pathlib import Path

import pytest

import anchored
from anchored.eval.harness.tasks import task_manager

pytest.importorskip("lm_eval")

FOLDER = Path(anchored.__file__).parent / "configs" / "eval" / "tasks"
FALLS = ["rain", "salt", "wood"]
ABC = {"text": FALLS, "label": ["A", "B", "C"]}
WIKIHOW = {"activity_label": "Bells", "ctx_a": "[header] Ring [title] Pull.", "ctx_b": "the rope"}
WIKIHOW |= {"endings": ["swings.", "sings."], "label": "1"}
SIQA = {"context": "Sam rowed.", "question": "Why?", "label": "3"}
SIQA |= {"answerA": "to sleep", "answerB": "to sing", "answerC": "to fish"}
WINO = {"sentence": "The _ rang twice.", "option1": "lamp", "option2": "bell", "answer": "2"}
RAIN, SWINGS = ("Question: What falls?", FALLS), ["swings.", "sings."]
PIQA = {"goal": "Ring", "sol1": "Pull.", "sol2": "Push.", "label": 1}
BOOLQ = {"passage": "Rain falls.", "question": "does rain fall", "answer": True}
CASES = {
    "arc_easy": ({"question": "What falls?", "choices": ABC, "answerKey": "A"}, 0, *RAIN),
    "arc_challenge": ({"question": "What falls?", "choices": ABC, "answerKey": "C"}, 2, *RAIN),
    "commonsense_qa": ({"question": "What falls?", "choices": ABC, "answerKey": "B"}, 1, *RAIN),
    "openbookqa": ({"question_stem": "What falls?", "choices": ABC, "answerKey": "A"}, 0, *RAIN),
    "boolq": (BOOLQ, 0, "Rain falls.\nQuestion: does rain fall?", ["yes", "no"]),
    "hellaswag": (WIKIHOW, 1, "Bells: Ring. Pull. The rope", SWINGS),
    "piqa": (PIQA, 1, "Goal: Ring", ["Pull.", "Push."]),
    "social_iqa": (SIQA, 2, "Question: Sam rowed. Why?", ["to sleep", "to sing", "to fish"]),
    "winogrande": (WINO, 1, "Fill in the blank: The _ rang twice.", ["lamp", "bell"]),
}


@pytest.fixture(scope="module")
def local_tasks(tmp_path_factory):
    """The files with one document in place of each data set."""
    folder = tmp_path_factory.mktemp("tasks")
    for file in FOLDER.glob("_*.yaml"):
        (folder / file.name).write_text(file.read_text())
    for name, (document, *_) in CASES.items():
        data = folder / f"{name}.json"
        data.write_text(json.dumps([document] * 7))
        files = json.dumps({split: str(data) for split in ("train", "validation", "test")})
        for variant in ("mc", "cloze"):
            lines = (FOLDER / f"{name}_{variant}.yaml").read_text().splitlines()
            kept = [line for line in lines if not line.startswith(("dataset_path", "dataset_name"))]
            dataset_kwargs = f'{{data_files: {files}, cache_dir: "{folder / ".cache"}"}}'
            kept += ["dataset_path: json", f"dataset_kwargs: {dataset_kwargs}"]
            (folder / f"{name}_{variant}.yaml").write_text("\n".join(kept) + "\n")
    names = [file.stem for file in FOLDER.glob("[!_]*.yaml")]
    assert sorted(names) == sorted(f"{case}_{v}" for case in CASES for v in ("mc", "cloze"))
    return task_manager(folder).load(names)["tasks"]


@pytest.mark.parametrize("name", CASES)
def test_choices_are_letters_after_the_question_or_continue_it(local_tasks, name):
    task, (document, answer, question, choices) = local_tasks[f"{name}_mc"], CASES[name]
    # 1. A letter is asked for after all choices.
    lines = [f" {letter}. {choice}" for letter, choice in zip("ABCDE", choices, strict=False)]
    asked = [question, "Choose the best continuation:"] if name == "hellaswag" else [question]
    assert task.doc_to_text(document) == "\n".join([*asked, *lines, "Answer:"])
    assert task.doc_to_choice(document) == list("ABCDE"[: len(choices)])
    assert int(task.doc_to_target(document)) == answer
    assert task.config.num_fewshot == 5
    # 2. Each choice continues the question.
    task = local_tasks[f"{name}_cloze"]
    expected = question + ("" if name == "hellaswag" else "\nAnswer:"), choices, answer
    if name == "winogrande":  # the rest of the sentence is scored after each option
        expected = answer, ["The lamp", "The bell"], "rang twice."
    asked = task.doc_to_text(document), task.doc_to_choice(document)
    assert (*asked, task.doc_to_target(document)) == expected
