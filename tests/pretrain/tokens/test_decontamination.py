"""Planted passages are reported in any disguise, others are not, and they are left out."""

import json
import random
from pathlib import Path

import pyarrow.parquet
import pytest
from json_lines import write_json_lines

from anchored.pretrain.tokens import passages
from anchored.pretrain.tokens.decontamination import ForbiddenTexts, Report, search_summary
from anchored.pretrain.tokens.passages import Passages, normalized
from anchored.pretrain.tokens.shards import Manifest
from anchored.tools.commands.training.decontaminate import DecontaminateConfig, run
from anchored.tools.commands.training.tokenize import TokenizeConfig
from anchored.tools.commands.training.tokenize import run as tokenize

LETTERS = "aaabcdeeeefghiijklmnoooprsttuuvwy"
NUM_DOCUMENTS, NUM_FILES, NUM_PLANTED = 200, 2, 14


def words(generator: random.Random, count: int) -> list[str]:
    return ["".join(generator.choices(LETTERS, k=generator.randint(2, 9))) for _ in range(count)]


def respaced(generator, text):
    gaps = [" ", "\n", " -- ", ",\t", "\u00a0"]
    return "".join(generator.choice(gaps) if c == " " else c for c in text)


def unspaced(generator, text):
    return "".join(c + generator.choice(["", "", " ", "\u00ad"]) for c in text if c != " ")


def twenty_words(generator, text):
    first = generator.randint(1, len(text.split()) - 21)
    return " ".join(text.split()[first : first + 20])


def numbered(generator, text):
    """With the number of its line before every tenth word."""
    lines = text.split()
    return " ".join(f"{n // 10 + 1} {w}" if n % 10 == 0 else w for n, w in enumerate(lines))


def accented(generator, text):
    return text.translate(str.maketrans("aeou", "\u00e1\u00e9\u00f6\u00fb"))


def capitals(generator, text):
    return generator.choice([text.upper(), text.title(), text.swapcase()])


DISGUISES = [lambda _, text: text, capitals, respaced, unspaced, twenty_words, numbered, accented]


@pytest.fixture(scope="module")
def haystack(tmp_path_factory):
    """A folder of documents, some with a passage of a work and many with a common phrase, and the
    work in the document of each input file and record."""
    folder, generator = tmp_path_factory.mktemp("haystack"), random.Random(11)
    vocabulary = words(generator, 8000)
    frequencies = [1 / rank for rank in range(1, len(vocabulary) + 1)]

    def text(count):
        return generator.choices(vocabulary, frequencies, k=count)

    common = text(6)
    works = [text(1000) + common + text(1000) for _ in range(20)]
    phrases = ([] if number % 3 else common for number in range(NUM_DOCUMENTS))
    documents = [" ".join(text(5) + phrase + text(60)) for phrase in phrases]
    planted, per_file = {}, NUM_DOCUMENTS // NUM_FILES
    for number, index in enumerate(generator.sample(range(NUM_DOCUMENTS), NUM_PLANTED)):
        work = generator.randrange(len(works))
        first = generator.randrange(len(works[work]) - 60)
        passage = DISGUISES[number % 7](generator, " ".join(works[work][first : first + 60]))
        before = generator.randrange(len(documents[index]))
        documents[index] = f"{documents[index][:before]} {passage} {documents[index][before:]}"
        planted[f"{index // per_file}.jsonl", index % per_file] = f"works.jsonl:{work + 1}"
    for number in range(NUM_FILES):
        rows = [{"text": text} for text in documents[number * per_file :][:per_file]]
        write_json_lines(folder / "texts" / f"{number}.jsonl", rows)
    write_json_lines(folder / "works.jsonl", [{"text": " ".join(work)} for work in works])
    return folder, planted


def search(folder: Path, **changes) -> Report:
    settings = {"source": "hay", "workers": 1, "output": folder / "reports"}
    texts = {"input": (folder / "texts",), "against": (folder / "works.jsonl",)}
    assert run(DecontaminateConfig(**settings | texts | changes)) == 0
    return Report.read(folder / "reports" / "hay.jsonl")


@pytest.fixture(scope="module")
def report(haystack):
    return search(haystack[0])


def test_planted_passages_are_reported_and_nothing_else(haystack, report, capsys):
    folder, planted = haystack
    matches = {(one["input_file"], one["record"]): one["texts"] for one in report.documents}
    assert report.num_documents == NUM_DOCUMENTS and matches.keys() == planted.keys()
    assert all(work in matches[one] for one, work in planted.items())
    least = sorted(one["num_chars"] for one in report.documents)[5]
    kept = search(folder, least_chars=least)  # others are reported and kept
    assert len(kept.documents) == NUM_PLANTED
    assert kept.num_left_out == sum(one["num_chars"] >= least for one in report.documents)
    assert search(folder) == report
    out = capsys.readouterr().out
    assert f"{NUM_PLANTED} of" in out and f"{NUM_PLANTED} to be left out" in out


def test_tokenize_leaves_out_what_the_report_says(haystack, report, corpus, tmp_path, capsys):
    texts, file = haystack[0] / "texts", haystack[0] / "reports" / "hay.jsonl"
    config = {"source": "hay", "tokenizer": str(corpus.tokenizer_folder), "input": (texts,)}
    config |= {"heldout_fraction": 0.0, "workers": 1, "leave_out": file}
    assert tokenize(TokenizeConfig(**config, output=tmp_path / "s")) == 0
    assert f"left out, by decontamination: {NUM_PLANTED}" in capsys.readouterr().out
    manifest = Manifest.read(tmp_path / "s")
    assert manifest.num_documents == NUM_DOCUMENTS - NUM_PLANTED
    assert manifest.num_contaminated_documents == NUM_PLANTED
    assert manifest.decontamination == report.summary()
    assert search_summary(manifest.decontamination) == (
        f"{NUM_PLANTED} of {NUM_DOCUMENTS} documents share 13 words or 64 letters in a row with "
        f"works.jsonl; {NUM_PLANTED} left out"
    )
    other = TokenizeConfig(**config | {"input": (texts / "0.jsonl",)}, output=tmp_path / "t")
    with pytest.raises(ValueError, match="was made of other inputs: their files differ"):
        tokenize(other)


def test_a_passage_across_the_blocks_of_a_long_document_is_found(monkeypatch):
    monkeypatch.setattr(passages, "BLOCK", 1 << 10)
    monkeypatch.setattr(passages, "OVERLAP", 1 << 8)
    generator = random.Random(3)
    work = " ".join(words(generator, 30))
    sought, _ = Passages.of([(0, work)])
    for offset in range(900, 1100, 19):
        filler = " ".join(words(generator, 400))
        shared = sought.shared_with(f"{filler[:offset]} {work} {filler[offset:]}", ["w"])
        assert shared is not None and shared.num_chars == shared.longest == len(work)
        assert shared.excerpt.startswith(work[:50])


def test_any_71_shared_letters_are_found_63_are_not_and_numbers_are_nobodys():
    generator = random.Random(4)
    work = "".join(words(generator, 500))
    sought, _ = Passages.of([(0, accented(generator, work))])
    for first in range(0, 1000, 13):
        assert sought.shared_with("qq" + work[first : first + 71] + "qq", ["w"])
        assert not sought.shared_with("qq" + work[first : first + 63] + "qq", ["w"])
    assert Passages.of([(0, " ".join(map(str, range(20))))])[1] == set()
    assert normalized("\ufb01n\uff21\u0301 Stra\u00dfe") == normalized("FINA STRASSE")


def test_every_string_of_every_file_is_looked_for(tmp_path):
    works = [" ".join(words(random.Random(seed), 14)) for seed in range(4)]
    files = [tmp_path / name for name in ("a.jsonl", "b.json", "c.txt", "d.parquet")]
    files[0].write_text(json.dumps({"doc": {"question": works[0], "choices": ["no", 3]}}))
    files[1].write_text(json.dumps([{"prompt": works[1]}]))
    files[2].write_text(works[2])
    rows = [{"question": "no", "choices": {"text": ["no", works[3]], "label": [0, 1]}}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), files[3])
    texts = ForbiddenTexts.prepare(files, tmp_path / "out")
    names = ["a.jsonl:1", "b.json:1", "c.txt", "d.parquet:1"]
    for work, name in zip(works, names, strict=True):
        shared = texts.passages.shared_with(work.upper(), texts.names)
        assert shared is not None and shared.texts == (name,)
    assert [file["num_texts"] for file in texts.files] == [1, 1, 1, 1]
    assert not any(file["num_short"] for file in texts.files)
    files[3].write_bytes(files[3].read_bytes()[:-8])
    with pytest.raises(ValueError, match="cannot be read as texts to look for"):
        ForbiddenTexts.prepare(files, tmp_path / "other")
