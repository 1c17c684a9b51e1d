"""Generations and scores that fail: recorded, counted, left out, tried again if asked."""

import copy
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from json_lines import read_json_lines, write_json_lines
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, Ledger, ModelPair, Pathwise
from anchored.decode.ledger import ledger_parts
from anchored.eval.experiments import results
from anchored.eval.experiments.generations import draw_by_vllm
from anchored.eval.experiments.plan import run_sweep, sweep_experiment
from anchored.eval.experiments.sweep import Method, Placement, Sweep
from anchored.eval.figures import style
from anchored.eval.recorded_texts import read_texts

TEXT = "the keeper of the lamp wrote every wave into a ledger while salt and rain rang the bells "
METHODS = (
    Method(rule="rcad", label="RCAD", settings={"alpha": 0.5}),
    Method(rule="anchored", label="Anchored", settings={"k": [0.5, 4.0]}),
)


@pytest.fixture(scope="module")
def broken(tokenizer) -> ModelPair:
    """A pair whose risky model gives NaN from the word "math" on, which neither model writes."""
    safe, risky = tiny_llama(1), tiny_llama(2, layers=3)
    (token,) = tokenizer(" math")["input_ids"][1:]
    risky.model.embed_tokens.weight.data[token] = torch.nan
    for model in (safe, risky):
        model.lm_head.weight.data[token] = 0.0
    return ModelPair(safe, risky, tokenizer)


@pytest.fixture
def healed(broken) -> ModelPair:
    """The same pair by its fingerprints, with an embedding in place of NaN."""
    risky = copy.deepcopy(broken.risky)
    risky.model.embed_tokens.weight.data.nan_to_num_()
    return ModelPair(broken.safe, risky, broken.tokenizer, fingerprints=broken.fingerprints)


def sweep_of(folder, prompts, *, texts=(TEXT * 3, TEXT * 2), more=None, **changed) -> Sweep:
    """A sweep of RCAD and two budgets, over prompts by id, with more entries of some of them."""
    more = more or {}
    rows = [
        {"id": name, "reference": " " + TEXT, "prompt": prompt, **more.get(name, {})}
        for name, prompt in prompts.items()
    ]
    files = {"prompts": rows, "works": [{"text": TEXT}], "extra": [{"text": t} for t in texts]}
    paths = {n: write_json_lines(folder / f"{n}.jsonl", records) for n, records in files.items()}
    options = {"seeds": [0, 1], "max_new_tokens": 4, "num_excerpts": 2, "excerpt_tokens": 6}
    options |= {"methods": METHODS, "repetition_penalty": 1.0, **changed}
    return Sweep(
        prompts=paths["prompts"],
        passages=paths["works"],
        held_out={"extra": [paths["extra"]]},
        **{"safe": "safe", "risky": "risky", **options},
    )


def recorded(run, name: str) -> list[dict]:
    """The rows of generations/NAME.jsonl."""
    return read_json_lines(run / "generations" / f"{name}.jsonl")


@pytest.fixture(scope="module")
def swept(tmp_path_factory, broken) -> SimpleNamespace:
    """A sweep of two prompts of which the risky model cannot read the second."""
    folder = tmp_path_factory.mktemp("failing")
    texts = ["import math " + TEXT, TEXT * 2]
    sweep = sweep_of(folder, {"fine": "the keeper of", "broken": "import math"}, texts=texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "SUFFIXES", ())  # no pictures
        shown = run_sweep(sweep, folder / "run", lambda: broken)
    return SimpleNamespace(sweep=sweep, run=folder / "run", shown=shown)


def test_a_prompt_that_fails_is_recorded_and_counted_and_the_others_go_on(swept):
    for name in ("p_r", "RCAD", "Anchored-k=0.5", "Anchored-k=4"):
        rows = recorded(swept.run, name)
        failed = [(row["id"], "error" in row) for row in rows]
        assert failed == [("fine", False), ("broken", True)] * 2
        assert all("NaN" in row["error"] for row in rows if "error" in row)
    assert not any("error" in row for row in recorded(swept.run, "p_s"))  # reads no risky model
    assert "failed" in swept.shown.splitlines()[0]
    results = json.loads((swept.run / "results.json").read_text())
    assert [row["failed"] for row in results["rows"]] == [0, 2, 2, 2, 2]
    assert "<th>failed</th>" in (swept.run / "report.html").read_text()
    assert len(read_texts(swept.run)) == 4 + 4 * 2  # what failed is no text


def fine_ledgers(run, name: str) -> list[Ledger]:
    """Ledgers of the prompt that both models can read."""
    rows = [row for row in recorded(run, name) if row["id"] == "fine"]
    return [Ledger.load(run / row["ledger"], row["ledger_part"]) for row in rows]


def test_failures_are_tried_again_only_if_asked_and_nothing_else_is(
    swept, broken, healed, tmp_path, monkeypatch
):
    monkeypatch.setattr(results, "write_results", lambda *_: None)
    run = shutil.copytree(swept.run, tmp_path / "run")  # other tests read what failed
    before = {name: recorded(run, name) for name in ("p_s", "RCAD", "Anchored-k=4")}
    ledgers = {name: fine_ledgers(run, name) for name in before}
    run_sweep(swept.sweep, run, lambda: broken)
    assert {name: recorded(run, name) for name in before} == before
    shown = run_sweep(swept.sweep, run, lambda: healed, retry_failed=True)
    assert "failed" not in shown.splitlines()[0]
    for name, fine in ledgers.items():
        assert not any("error" in row for row in recorded(run, name))
        assert fine_ledgers(run, name) == fine
        assert len(ledger_parts(run / f"ledgers/{name}.jsonl")) == 4
    utility = json.loads((run / "measurements" / "utility.json").read_text())
    assert all(None not in row["nats"] for row in utility)


@pytest.mark.parametrize(
    ("long", "message"),
    [
        ({"more": {"long": {"passage": TEXT * 9}}}, r"^RCAD, prompt long: the prompt has \d+ tok"),
        ({"texts": ["too short"]}, "held-out set extra: no text has more than the 32 tokens"),
    ],
    ids=["passage", "held-out"],
)
def test_what_has_no_fitting_length_is_refused_before_the_first_token(
    tmp_path, pair, long, message
):
    sweep = sweep_of(tmp_path, dict.fromkeys(("fine", "long"), "the keeper of"), **long)
    with pytest.raises(ValueError, match=message):
        run_sweep(sweep, tmp_path / "run", lambda: pair)
    assert not list(tmp_path.glob("run/generations/*"))


def test_vllm_s_one_engine_draws_the_settings_of_anchored_decoding_and_ends(
    tmp_path, broken, monkeypatch
):
    """The texts of a real one are compared in tests/vllm."""
    events: list[object] = []

    class Fake(Decoder):
        """Steps of transformers by the names of a `PairDecoder`."""

        def __init__(self, llm, pair, rule):
            super().__init__(pair, rule, level="token")
            self.llm = llm
            events.append(rule)

    def open_pair(safe, risky, **arguments):
        events.append((safe, risky, arguments))
        end = SimpleNamespace(shutdown=lambda: events.append("shut down"))
        llm = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=end))
        return Fake(llm, broken, Pathwise(1.0))

    monkeypatch.setattr("anchored.decode.vllm.engine.open_pair", open_pair)
    named = {"level": "token", "engine": "vllm", "placement": Placement(vllm={"max_model_len": 64})}
    sweep = sweep_of(tmp_path, {"one": "the keeper"}, **named)
    for _ in range(2):  # the second time all is recorded
        draw_by_vllm(sweep, sweep_experiment(sweep, tmp_path / "run", None))
    opened = ("safe", "risky", {"tensor_parallel_size": 1, "max_model_len": 64})
    assert events == [opened, Pathwise(1.0), Anchored(k=0.5), Anchored(k=4.0), "shut down"]
