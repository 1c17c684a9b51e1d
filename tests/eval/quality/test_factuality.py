"""Factual precision: sentences, windows, claims, verdicts, and figures worked out by hand."""

from pathlib import Path

import pytest
from chat_server import Say, user_text
from json_lines import write_json_lines

from anchored.eval.quality.factuality import (
    claims_in,
    factuality_rows,
    factuality_summary,
    verdict,
    windows,
)
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.retrieval.evidence import RecordedEvidence


def test_windows_slide_with_the_first_sentence_in_long_texts_alone():
    five = windows("A1. B2. C3. D4. E5.")
    assert five[0] == "<SOS>A1.<EOS> B2."
    assert five[4] == "B2. C3. D4. <SOS>E5.<EOS>"
    six = windows("A1. B2. C3. D4. E5. F6.")
    assert six[3] == "A1. B2. C3. <SOS>D4.<EOS> E5."  # there already: not twice
    assert six[5] == "A1. C3. D4. E5. <SOS>F6.<EOS>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("A) Ada met Bo.\n* Bo is 3. \n2) Cy ran.", ["Ada met Bo.", "Bo is 3.", "Cy ran."]),
        ("J. Doe met Bo.", None),
        ("Facts:\n\n- Ada met Bo.\n- Note: that is all", ["Ada met Bo."]),
        ("- No verifiable claims.", []),
        ("- Ada met\n  Bo.", None),  # a claim that goes on would be half a claim
    ],
)
def test_claims_are_bullets_or_said_not_to_be_there(answer, expected):
    assert claims_in(answer) == expected


def test_a_verdict_is_between_its_marks():
    assert verdict("Because of 2. ### Supported ###") is True
    assert verdict("**###supported.###**\n") is True
    assert verdict("Decision: ### Not supported ###") is False
    assert verdict("Either ### Unsupported ### or ### Supported ###") is None
    assert verdict("### Supported ### would be wrong") is None


def judge(body):
    """A claim for each word of the sentence in focus; those with a "t" are true."""
    words = user_text(body)
    if "<SOS>" in words:
        focus = words.partition("<SOS>")[2].partition("<EOS>")[0]
        if "Broken" in focus:
            return Say(status=500, raw="oops")
        claims = [word for word in focus.rstrip(".").split() if word != "Nothing"]
        return Say("\n".join(f"- {word}" for word in claims) or "No verifiable claim.")
    claim = words.partition("Claim: ")[2].splitlines()[0]
    if "mute" in claim:
        return Say("Who knows?")
    return Say(f"### {'Supported' if claim.startswith('T') else 'Unsupported'} ###")


def bio(words, *, group=None, seed=0):
    return RecordedText(setting="k=1", id=words, seed=seed, text=words, group=group)


def test_precision_is_that_of_claims_with_a_verdict(server, chat_client, tmp_path):
    texts = [
        bio("T1 F1. T1 T2 F2.", group="rare"),  # T1 once: 2 of 4
        bio("T3 T4 T5.", group="frequent"),  # 3 of 3
        bio("F3 F4 lost mute.", group="rare", seed=1),  # 0 of 2
        bio("Nothing.", group="rare"),
        bio("Broken T9.", group="frequent"),
        bio("T6. Broken.", seed=1),  # 1 of 1: what failed is no claim
        bio("lost.", seed=1),
    ]
    server.script = judge
    claims = [*(f"{kind}{number}" for kind in "TF" for number in range(1, 7)), "mute"]
    results = [{"claim": claim, "results": [{"text": claim}]} for claim in claims]
    library = RecordedEvidence(Path(write_json_lines(tmp_path / "library.jsonl", results)))
    rows = factuality_rows([bio("...")], chat_client(), library)
    (summary,) = factuality_summary(rows)  # of nothing that could be judged
    assert (summary["macro"], summary["micro"], summary["num_without_claims"]) == (None, None, 1)
    assert server.requests == []
    rows = factuality_rows(texts, chat_client(), library)
    assert [row["precision"] for row in rows] == [0.5, 1.0, 0.0, None, None, 1.0, None]
    assert [claim["claim"] for claim in rows[0]["claims"]] == ["T1", "F1", "T2", "F2"]
    assert [claim["supported"] for claim in rows[2]["claims"]] == [False, False, None, None]
    assert "has no evidence for this claim" in rows[2]["claims"][2]["problem"]
    assert rows[2]["claims"][3]["problem"] == "none of 3 answers could be read"
    (summary,) = factuality_summary(rows)
    groups = summary.pop("by_group")
    # Seed 0: (0.5 + 1) / 2; seed 1: (0 + 1) / 2.
    assert summary.pop("macro")["mean"] == (0.75 + 0.5) / 2
    assert summary == {
        "setting": "k=1",
        "micro": (2 + 3 + 0 + 1) / (4 + 3 + 2 + 1),
        "claims_per_text": (4 + 3 + 4 + 0 + 0 + 1 + 1) / 7,
        "num_texts": 7,
        "num_without_claims": 1,
        "num_unscored": 2,
        "num_failed_sentences": 2,
        "num_failed_claims": 3,
    }
    assert list(groups) == ["frequent", "rare"]
    assert (groups["rare"]["micro"], groups["rare"]["macro"]["mean"]) == (2 / 6, 0.25)
    assert (groups["frequent"]["num_texts"], groups["frequent"]["num_unscored"]) == (2, 1)
