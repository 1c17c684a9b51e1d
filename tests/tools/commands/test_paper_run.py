"""The paper in miniature, by the commands of docs/reproduce.md: prompts, sweeps, judges, table."""

import json
from pathlib import Path

import pytest
from chat_server import ChatServer, Say, chat_server, user_text
from forked_program import ForkedProgram
from real_pair import needs_real_model, real_folders

from anchored.eval.analysis.paper_table import printed_rows
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

pytest.importorskip("openai")
pytestmark = [pytest.mark.slow, needs_real_model]

PAIR = "llama3.1-70b+tinycomma-1.8b"
CONFIGS = Path(__file__).parents[3] / "configs" / "eval"
NUM_PROMPTS = 2


def judge(body: dict) -> Say:
    """The whole sentence is a claim, true with a short word first; grades go by the length."""
    asked = user_text(body)
    if "<SOS>" in asked:
        return Say("- " + asked.partition("<SOS>")[2].partition("<EOS>")[0].replace("\n", " "))
    if "Claim: " in asked:
        first = asked.partition("Claim: ")[2].split()[0]
        return Say(f"### {'Supported' if len(first) < 4 else 'Unsupported'} ###")
    return Say(f"[RESULT] {1 + len(asked) % 5}")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """The data sets as they are downloaded, and the pair's two files with small models."""
    folder = tmp_path_factory.mktemp("paper")
    real_folders(folder)
    works = read_works()[:NUM_PROMPTS]
    books = [{"input": own.prompt, "reference": own.reference} for own in cut_prompts(works)]
    (folder / "data.literal.json").write_text(json.dumps(books))
    (folder / "entities.txt").write_text("Ilse Marrowby\nCorwin Aldersey\n")  # of its facts
    passages = "".join(json.dumps({"text": work.body[:600]}) + "\n" for work in works)
    (folder / "works.jsonl").write_text(passages)
    for kind, suffix in (("books", ""), ("bios", "-bios")):
        (folder / f"{kind}.toml").write_text(f"""base = "{CONFIGS / PAIR}{suffix}.toml"
safe = "safe"
risky = "risky"
inputs = "{folder}"
passages = "works.jsonl"
held_out = {{ wikimedia = [] }}
seeds = [0]
max_new_tokens = 12
batch_size = 1
device = "cpu"
""")
    return folder


def test_the_paper_in_miniature_survives_two_kills(inputs):
    def start(*words: str) -> ForkedProgram:
        return ForkedProgram("anchored.tools.cli", list(words), inputs / "output.txt")

    def sent(server: ChatServer) -> list[str]:
        return [json.dumps(body["messages"]) for body in server.requests]

    for kind, file in (("books", "data.literal.json"), ("bios", "entities.txt")):
        prompts = inputs / f"{kind}.prompts.jsonl"
        words = ("--kind", kind, "--input", str(inputs / file), "--output", str(prompts))
        assert f"{NUM_PROMPTS} prompts" in start("prompts", *words).wait_for_success()
    books, bios = (inputs / "runs" / kind for kind in ("books", "bios"))
    sweep = ("sweep", str(inputs / "books.toml"), "--output", str(books))

    # The first kill, among the generations: those that are recorded are not made again.
    start(*sweep).end_when(lambda: len(list(books.glob("ledgers/*.jsonl"))) >= 5)
    whole = [
        path
        for path in books.glob("ledgers/*.jsonl")
        if (books / "generations" / path.name).exists()
    ]
    made = {path: path.stat().st_mtime_ns for path in whole}
    start(*sweep).wait_for_success()
    assert {path: path.stat().st_mtime_ns for path in made} == made
    start("sweep", str(inputs / "bios.toml"), "--output", str(bios)).wait_for_success()

    # The second kill, among the judge's answers: those that came are not paid again.
    with chat_server(judge) as server:
        asked = ("--judge-model", "m", "--judge-url", server.url)
        fluency = ("evaluate", str(books), "--only", "copying", "fluency", *asked)
        start(*fluency).end_when(lambda: len(server.requests) >= 20)
        start(*fluency).wait_for_success()
        assert len(sent(server)) - len(set(sent(server))) <= 8  # those that were under way
        corpus = ("--corpus", str(inputs / "works.jsonl"))
        words = ("evaluate", str(bios), "--only", "factuality", *asked, *corpus)
        start(*words).wait_for_success()
    words = ("paper", PAIR, "--books", str(books), "--bios", str(bios))
    shown = start(*words, "--output", str(inputs / "paper")).wait_for_success()

    table = json.loads((inputs / "paper" / "paper.json").read_text())
    assert [row["setting"] for row in table["rows"]] == [
        row["setting"] for row in printed_rows(PAIR)
    ]
    figures = [cell for row in table["rows"] for cell in row.values() if isinstance(cell, dict)]
    found = [cell["found"] for cell in figures]
    missing = [cell for cell in found if cell is None or cell["mean"] is None]
    assert len(figures) == 26 * 9 and not missing and "Not in the paper's table" not in shown
    alone = {row["setting"]: row["ncr"]["found"]["mean"] for row in table["rows"]}
    assert (alone["p_s"], alone["p_r"]) == (1.0, 0.0) and alone["Anchored, k=0.1"] > 0.9
