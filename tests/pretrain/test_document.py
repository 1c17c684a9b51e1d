"""The rules that decide which documents are kept, and which of them are held out."""

import pytest

from anchored.pretrain.document import NO_LICENCE, Document, DocumentRules, Verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"salt", Verdict.TRAIN),
        (b"", Verdict.EMPTY),
        (None, Verdict.INVALID),
        (b"ten bytes!", Verdict.TRAIN),
        (b"ten bytes!!", Verdict.OVERSIZED),
    ],
)
def test_documents_that_cannot_be_used_are_told_apart(text, expected):
    rules = DocumentRules(max_document_bytes=10)
    assert rules.verdict(Document(0, text, ("CC0",))) is expected


@pytest.mark.parametrize(
    ("licences", "expected"),
    [
        (("CC0",), Verdict.TRAIN),
        (("Public Domain - USA",), Verdict.TRAIN),
        (("public domain",), Verdict.TRAIN),
        (("CC BY-NC",), Verdict.REFUSED),
        (("CC0", "CC BY-NC"), Verdict.REFUSED),
        (("CC0", "Public Domain"), Verdict.TRAIN),
        ((), Verdict.REFUSED),
    ],
)
def test_every_licence_of_a_document_must_be_on_the_list(licences, expected):
    rules = DocumentRules(licences=("CC0", "Public Domain*"))
    assert rules.verdict(Document(0, b"salt", licences)) is expected


def test_without_a_list_every_licence_passes_and_none_has_a_name():
    assert DocumentRules().verdict(Document(0, b"salt")) is Verdict.TRAIN
    assert Document(0, b"salt").licence == NO_LICENCE
    assert Document(0, b"salt", ("MIT", "CC0")).licence == "MIT AND CC0"


def test_the_held_out_share_is_as_asked_and_depends_on_the_text_alone():
    rules = DocumentRules(heldout_fraction=0.1)
    texts = [f"document {number}".encode() for number in range(20_000)]
    heldout = {text for text in texts if rules.verdict(Document(0, text)) is Verdict.HELDOUT}
    # 20,000 draws at 0.1: a deviation of 4.5 standard deviations has probability 7e-6.
    assert abs(len(heldout) - 2000) < 4.5 * (20_000 * 0.1 * 0.9) ** 0.5
    again = {text for text in texts if rules.verdict(Document(7, text, ("x",))) is Verdict.HELDOUT}
    assert again == heldout


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"max_document_bytes": 0}, "max_document_bytes must be at least 1, got 0"),
        ({"heldout_fraction": 1.0}, r"heldout_fraction must be in \[0, 1\), got 1.0"),
        ({"heldout_fraction": -0.1}, r"heldout_fraction must be in \[0, 1\), got -0.1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        DocumentRules(**rules)
