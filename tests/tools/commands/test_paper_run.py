"""The paper in miniature, by the commands of docs/reproduce.md: prompts, sweeps, judges, table."""

import json
from pathlib import Path

import pytest
from chat_server import Say, chat_server, user_text
from forked_program import ForkedProgram
from json_lines import write_json_lines
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
    books = [
        {"input": cut_prompt.prompt, "reference": cut_prompt.reference}
        for cut_prompt in cut_prompts(works)
    ]
    (folder / "data.literal.json").write_text(json.dumps(books))
    (folder / "entities.txt").write_text("Ilse Marrowby\nCorwin Aldersey\n")  # of its facts
    write_json_lines(folder / "works.jsonl", [{"text": work.body[:600]} for work in works])
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


def test_the_paper_in_miniature(inputs):
    def done(*words: str) -> str:
        program = ForkedProgram("anchored.tools.cli", list(words), inputs / "output.txt")
        return program.wait_for_success()

    for kind, file in (("books", "data.literal.json"), ("bios", "entities.txt")):
        prompts = inputs / f"{kind}.prompts.jsonl"
        words = ("--kind", kind, "--input", str(inputs / file), "--output", str(prompts))
        assert f"{NUM_PROMPTS} prompts" in done("prompts", *words)
    books, bios = (inputs / "runs" / kind for kind in ("books", "bios"))
    for kind, folder in (("books", books), ("bios", bios)):
        done("sweep", str(inputs / f"{kind}.toml"), "--output", str(folder))
    with chat_server(judge) as server:
        asked = ("--judge-model", "m", "--judge-url", server.url)
        done("evaluate", str(books), "--only", "copying", "fluency", *asked)
        corpus = ("--corpus", str(inputs / "works.jsonl"))
        done("evaluate", str(bios), "--only", "factuality", *asked, *corpus)
    words = ("paper", PAIR, "--books", str(books), "--bios", str(bios))
    shown = done(*words, "--output", str(inputs / "paper"))

    table = json.loads((inputs / "paper" / "paper.json").read_text())
    assert [row["setting"] for row in table["rows"]] == [
        row["setting"] for row in printed_rows(PAIR)
    ]
    figures = [cell for row in table["rows"] for cell in row.values() if isinstance(cell, dict)]
    measured = [cell["found"] for cell in figures]
    missing = [cell for cell in measured if cell is None or cell["mean"] is None]
    assert len(figures) == 26 * 9 and not missing and "Not in the paper's table" not in shown
    alone = {row["setting"]: row["ncr"]["found"]["mean"] for row in table["rows"]}
    assert (alone["p_s"], alone["p_r"]) == (1.0, 0.0) and alone["Anchored, k=0.1"] > 0.9
