"""Planted passages are found whatever was done to them, others are not, and are left out."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet
import pytest
from command_line import run as command

from anchored.pretrain.export import model_card
from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan, data_record
from anchored.pretrain.plan.stages import StageSpec, plan_stage
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.tokens import passages
from anchored.pretrain.tokens.decontamination import ForbiddenTexts, Report, search_summary
from anchored.pretrain.tokens.passages import Passages, normalized
from anchored.pretrain.tokens.shards import Manifest
from anchored.tools.commands.training.decontaminate import DecontaminateConfig, run
from anchored.tools.commands.training.tokenize import TokenizeConfig
from anchored.tools.commands.training.tokenize import run as tokenize

LETTERS = "aaabcdeeeefghiijklmnoooprsttuuvwy"


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


DISGUISES = [
    lambda generator, text: text,
    lambda generator, text: generator.choice([text.upper(), text.title(), text.swapcase()]),
    *(respaced, unspaced, twenty_words, numbered, accented),
]


@dataclass(frozen=True)
class Haystack:
    """Documents with passages of works in some of them; common phrases are in all."""

    folder: Path
    works: Path
    planted: dict[tuple[str, int], str]
    """The work in the document of an input file and a record."""


NUM_DOCUMENTS, NUM_FILES = 800, 4


@pytest.fixture(scope="module")
def haystack(tmp_path_factory) -> Haystack:
    """200 documents in each of 4 files, 21 passages planted in them."""
    folder, generator = tmp_path_factory.mktemp("haystack"), random.Random(11)
    # Frequent words are rather short, as Zipf found.
    vocabulary = sorted(words(generator, 8000), key=lambda word: len(word) + 6 * generator.random())
    frequencies = [1 / rank for rank in range(1, len(vocabulary) + 1)]

    def text(count):
        return generator.choices(vocabulary, frequencies, k=count)

    # Words that anyone may write, in every work and in many documents.
    common = text(6)
    works = [text(3000) + common + text(2000) for _ in range(20)]
    documents = []
    for _ in range(NUM_DOCUMENTS):
        phrase = common if generator.random() < 0.3 else []
        documents.append(" ".join(text(5) + phrase + text(generator.randint(15, 190))))
    planted, per_file = {}, NUM_DOCUMENTS // NUM_FILES
    for number, index in enumerate(generator.sample(range(NUM_DOCUMENTS), 21)):
        work = generator.randrange(len(works))
        first = generator.randrange(len(works[work]) - 60)
        passage = " ".join(works[work][first : first + 60])
        passage = DISGUISES[number % len(DISGUISES)](generator, passage)
        before = generator.randrange(len(documents[index]))
        documents[index] = f"{documents[index][:before]} {passage} {documents[index][before:]}"
        planted[f"{index // per_file}.jsonl", index % per_file] = f"works.jsonl:{work + 1}"
    (folder / "texts").mkdir()
    for number in range(NUM_FILES):
        rows = documents[number * per_file :][:per_file]
        lines = (json.dumps({"text": row, "metadata": {"license": "CC0"}}) for row in rows)
        (folder / "texts" / f"{number}.jsonl").write_text("\n".join(lines))
    table = [{"id": str(n), "title": "A", "text": " ".join(work)} for n, work in enumerate(works)]
    (folder / "works.jsonl").write_text("\n".join(map(json.dumps, table)))
    return Haystack(folder, folder / "works.jsonl", planted)


def search(haystack: Haystack, **changes) -> Report:
    settings = {"source": "hay", "workers": 1, "output": haystack.folder / "reports"}
    texts = {"input": (haystack.folder / "texts",), "against": (haystack.works,)}
    assert run(DecontaminateConfig(**settings | texts | changes)) == 0
    return Report.read(haystack.folder / "reports" / "hay.jsonl")


@pytest.fixture(scope="module")
def report(haystack):
    return search(haystack)


def test_planted_passages_are_found_and_nothing_else(haystack, report, capsys):
    matches = {(one["input_file"], one["record"]): one["texts"] for one in report.documents}
    assert report.num_documents == NUM_DOCUMENTS
    assert not [one for one, work in haystack.planted.items() if work not in matches.get(one, ())]
    assert len(matches) == len(haystack.planted)
    assert search(haystack, workers=2) == report
    out = capsys.readouterr().out
    assert "21 of" in out and "21 to be left out" in out
    assert 14 <= float(out.split(" bytes a passage")[0].split()[-1]) <= 16.01


def test_what_was_searched_before_an_interruption_is_not_searched_again(
    haystack, report, monkeypatch
):
    progress = haystack.folder / "reports" / "progress" / "hay"
    kept = {file: file.stat().st_ino for file in sorted(progress.glob("file-*.json"))}
    lost = progress / "file-00002.json"
    lost.unlink()
    searched = []
    before = Passages.shared_with

    def counted(self, text, names):
        searched.append(text)
        return before(self, text, names)

    monkeypatch.setattr(Passages, "shared_with", counted)
    assert search(haystack) == report
    lines = (haystack.folder / "texts" / "2.jsonl").read_text().splitlines()
    assert searched == [json.loads(line)["text"] for line in lines]
    assert all(file.stat().st_ino == kept[file] for file in kept if file != lost)


def test_tokenize_leaves_out_what_the_report_says(haystack, report, corpus, tmp_path, capsys):
    config = {
        "source": "hay",
        "tokenizer": str(corpus.tokenizer_folder),
        "input": (haystack.folder / "texts",),
        "heldout_fraction": 0.0,
        "workers": 1,
    }
    file = haystack.folder / "reports" / "hay.jsonl"
    assert tokenize(TokenizeConfig(**config, output=tmp_path / "s", leave_out=file)) == 0
    assert "left out, by decontamination: 21" in capsys.readouterr().out
    manifest = Manifest.read(tmp_path / "s")
    assert manifest.num_documents == NUM_DOCUMENTS - 21
    assert manifest.num_contaminated_documents == 21
    assert manifest.decontamination == report.summary()
    assert manifest.decontamination["against"][0]["num_texts"] == 20

    source = DataSource(name="hay", path=str(tmp_path / "s"), weight=1.0)
    data = DataConfig(sources=(source,))
    plan = DataPlan.open(data, seq_len=32)
    record = RunRecord(
        model={"max_position_embeddings": 16},
        tokenizer_sha256="",
        bos_id=0,
        eos_id=1,
        identity={},
        data=data_record(plan, batch_size=4),
    )
    said = (
        f"21 of {NUM_DOCUMENTS} documents share 13 words or 64 letters in a row with "
        "works.jsonl; 21 left out"
    )
    assert said in model_card(record, steps=[3], title="model")
    spec = StageSpec(name="s", data=data, seq_len=32, num_steps=2, sequences_per_step=4, sizes={})
    (planned,) = plan_stage(spec).sources
    assert search_summary(planned.decontamination) == said

    lines = haystack.folder / "texts" / "0.jsonl"
    other = tmp_path / "0.jsonl"
    other.write_text(lines.read_text() + "\n{}")
    with pytest.raises(ValueError, match="was made of other inputs: their files differ"):
        tokenize(
            TokenizeConfig(**config | {"input": (other,)}, output=tmp_path / "t", leave_out=file)
        )


def test_documents_that_share_less_are_reported_and_kept(haystack, report):
    least = sorted(one["num_chars"] for one in report.documents)[5]
    kept = search(haystack, least_chars=least)
    assert len(kept.documents) == 21
    assert kept.num_left_out == sum(one["num_chars"] >= least for one in report.documents)
    assert 0 < kept.num_left_out < 21


def test_other_texts_or_inputs_need_another_folder(haystack, report, tmp_path):
    (tmp_path / "other.txt").write_text("salt and rain " * 20)
    with pytest.raises(ValueError, match="was made with other settings"):
        search(haystack, against=(tmp_path / "other.txt",))
    with pytest.raises(ValueError, match=r"was made with other settings \(files was"):
        search(haystack, input=(haystack.folder / "texts" / "0.jsonl",))


def test_a_passage_across_the_blocks_of_a_long_document_is_found(monkeypatch):
    monkeypatch.setattr(passages, "_BLOCK", 1 << 10)
    monkeypatch.setattr(passages, "_OVERLAP", 1 << 8)
    generator = random.Random(3)
    work = " ".join(words(generator, 30))
    sought, _ = Passages.of([(0, work)])
    for offset in range(900, 1100, 9):
        filler = " ".join(words(generator, 400))
        shared = sought.shared_with(f"{filler[:offset]} {work} {filler[offset:]}", ["w"])
        assert shared is not None and shared.num_chars == shared.longest == len(work)
        assert shared.excerpt.startswith(work[:50])


@pytest.mark.parametrize("disguise", [numbered, accented])
def test_what_is_looked_for_may_be_disguised_too(disguise):
    generator = random.Random(5)
    work = " ".join(words(generator, 400))
    sought, _ = Passages.of([(0, disguise(generator, work))])
    assert sought.shared_with(" ".join(work.split()[100:160]), ["w"]).share > 0.6


def test_any_71_shared_letters_are_found_63_are_not_and_numbers_are_nobodys():
    generator = random.Random(4)
    work = "".join(words(generator, 500))
    sought, _ = Passages.of([(0, work)])
    for first in range(0, 1000, 13):
        assert sought.shared_with("qq" + work[first : first + 71] + "qq", ["w"])
        assert not sought.shared_with("qq" + work[first : first + 63] + "qq", ["w"])
    assert Passages.of([(0, " ".join(map(str, range(20))))])[1] == set()
    assert normalized("\ufb01n\uff21\u0301 Stra\u00dfe") == normalized("FINA STRASSE")


def test_every_string_of_every_file_is_looked_for(tmp_path, capsys):
    works = [" ".join(words(random.Random(seed), 14)) for seed in range(5)]
    json_texts = [json.dumps(work) for work in works]
    files = [tmp_path / name for name in ("a.jsonl", "b.json", "c.txt", "d.parquet")]
    files[0].write_text(f'{{"doc": {{"question": {json_texts[0]}, "choices": ["no", 3]}}}}\n')
    files[1].write_text(f'[{{"prompt": {json_texts[1]}}}]')
    files[2].write_text(works[2])
    rows = [
        {"question": "no", "choices": {"text": ["no", works[3]], "label": [0, 1]}},
        {"question": works[4], "choices": {"text": [], "label": []}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), files[3])
    texts = ForbiddenTexts.prepare(files, tmp_path / "out")
    names = ["a.jsonl:1", "b.json:1", "c.txt", "d.parquet:1", "d.parquet:2"]
    for work, name in zip(works, names, strict=True):
        shared = texts.passages.shared_with(work.upper(), texts.names)
        assert shared is not None and shared.texts == (name,)
    assert [file["num_texts"] for file in texts.files] == [1, 1, 1, 2]
    assert not any(file["num_short"] for file in texts.files)
    # The command takes options given several times as one list.
    against = [word for file in files for word in ("--against", str(file))]
    inputs = []
    for number, work in enumerate([*works, "nothing of it"]):
        path = tmp_path / "in" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"text": work}))
        inputs += ["--input", str(path)]
    options = [*against, *inputs, "--output", str(tmp_path / "reports"), "--source", "s"]
    out, _ = command(capsys, "decontaminate", *options, "--workers", "1")
    assert "s: 5 of 6 documents share passages, 5 to be left out" in out
    damaged = bytearray(files[3].read_bytes())
    damaged[-8:] = b"PAR1PAR1"
    files[3].write_bytes(damaged)
    with pytest.raises(ValueError, match="cannot be read as texts to look for"):
        ForbiddenTexts.prepare(files, tmp_path / "other")
