"""Files that are no ledgers, or no longer: one line each, never a traceback."""

import dataclasses

import pytest
from forged_ledgers import changed, refusal, write

from anchored import Anchored, Decoder, Ledger, LedgerError, verify, with_divergences

PROMPT = "the keeper of the lamp wrote"


@pytest.fixture(scope="module")
def ledger(pair) -> Ledger:
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPT, max_new_tokens=6, seed=7)
    return result.ledger


def put(place, **fields):
    def change(header, steps, footer):
        ({"header": header, "footer": footer}.get(place) or steps[place]).update(fields)

    return change


def take(place, name):
    def change(header, steps, footer):
        del ({"header": header, "footer": footer}.get(place) or steps[place])[name]

    return change


H, F = "header", "footer"
DAMAGE = {
    "unknown in the header": (put(H, colour="red"), "line 1: unknown field 'colour'"),
    "unknown in a step": (put(2, colour="red"), "line 4: unknown field 'colour'"),
    "unknown in the footer": (put(F, colour="red"), "line 8: unknown field 'colour'"),
    "missing in the header": (take(H, "debt"), "line 1: field 'debt' is missing"),
    "missing in a step": (take(2, "weight"), "line 4: field 'weight' is missing"),
    "missing in the footer": (take(F, "certified"), "line 8: field 'certified' is missing"),
    "null in the header": (put(H, k=None), "line 1: k must be float, got None"),
    "null in a step": (put(0, log_prob=None), "line 2: log_prob must be float, got None"),
    "null in the footer": (put(F, safe_forwards=None), "safe_forwards must be int, got None"),
    "text for a number": (put(0, spend="much"), "line 2: spend must be float, got 'much'"),
    "a number for a text": (put(H, rule=7), "line 1: rule must be str, got 7"),
    "a flag for a number": (put(H, horizon=True), "horizon must be int, got True"),
    "a fraction for a token": (put(1, token_id=1.5), "line 3: token_id must be int, got 1.5"),
    "a token of many digits": (put(1, token_id=10**30), "line 3: token_id must be int"),
    "a horizon of many digits": (put(H, horizon=10**400), "line 1: horizon must be int"),
    "prompt of texts": (put(H, prompt_token_ids=["a"]), "prompt_token_ids must be list[int]"),
    "ratios of texts": (put(H, prompt_ratios=["a"]), "prompt_ratios must be list[float] | None"),
    "work of texts": (put(F, work={"safe": "much"}), "work must be dict"),
    "a token below": (put(1, token_id=-1), "step 1: token -1 is not in [0, 320)"),
    "a token beyond": (put(1, token_id=320), "step 1: token 320 is not in [0, 320)"),
    "a prompt beyond": (put(H, prompt_token_ids=[0, 999]), "prompt: token ids must be in [0, 320)"),
    "no prompt": (put(H, prompt_token_ids=[]), "prompt: the prompt is empty"),
    "a seed below": (put(H, seed=-1), "seed must be in [0, 2**63), got -1"),
    "bytes": (put(H, level="byte"), "tokenizers, or their stop tokens, are not the recorded ones"),
    "bytes with settings": (
        put(H, level="byte", level_settings={"mode": 3}),
        "level_settings: mode must be",
    ),
    "settings of no level": (put(H, level_settings={"mode": "raw"}), "level settings are {}"),
    "rule without settings": (put(H, rule_settings={}), "give either k or K"),
    "rule with others": (put(H, rule_settings={"q": 1}), "rule_settings: unknown field 'q'"),
    "rule with a text": (put(H, rule_settings={"k": "1"}), "rule_settings: k must be"),
    "a sampling without": (put(H, sampling={}), "sampling: field 'min_p' is missing"),
    "top_k a fraction": (
        lambda h, s, f: h["sampling"].update(top_k=2.5),
        "sampling: top_k must be int, got 2.5",
    ),
    "a temperature below": (
        lambda h, s, f: h["sampling"].update(temperature=-1.0),
        "sampling: temperature must be finite and >= 0",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(ledger, pair, tmp_path, name):
    change, message = DAMAGE[name]
    found = refusal(write(changed(ledger, change), tmp_path / "damaged.jsonl"), pair)
    assert message in found and "\n" not in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is not the header"),
        (b"\n\n", "line 1 is cut off or not JSON"),
        (b"[1, 2]\n", "line 1 is not a JSON object"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b'{"schema": "anchored-ledger/1", "sha256": ""}\n', "cut off after the header"),
        (b"[" * 100_000, "line 1 is cut off or not JSON"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "line 1 is cut off or not JSON"),
    ],
    ids=["empty", "blank", "list", "binary", "header", "deep", "digits"],
)
def test_another_file_is_refused(pair, tmp_path, content, message):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(LedgerError, match=message):
        verify(tmp_path / "other", pair)


def test_a_directory_is_refused(pair, tmp_path):
    with pytest.raises(LedgerError, match="is a directory, not a ledger"):
        verify(tmp_path, pair)


def test_paths_may_be_texts(ledger, tmp_path):
    path = str(tmp_path / "ledger.jsonl")
    ledger.save(path)
    assert Ledger.load(path) == ledger


def test_divergences_of_a_ledger_that_is_inconsistent_are_refused(ledger, pair):
    header = dataclasses.replace(ledger.header, prompt_token_ids=[999])
    with pytest.raises(LedgerError, match="prompt: token ids must be in"):
        with_divergences(dataclasses.replace(ledger, header=header), pair)
