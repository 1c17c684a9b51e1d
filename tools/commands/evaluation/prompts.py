"""The command that puts the texts of a data set into the paper's prompts."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from anchored.configs.config_file import CONFIGS, from_table, read_config_file
from anchored.durable_files import write_durably
from anchored.eval.recorded_texts import file_name, has_open_seam
from anchored.eval.segmentation import words
from anchored.fields import field_error
from anchored.inputs import PromptLine, check_input, json_objects

from ..files import check_outputs

TEMPLATES = CONFIGS / "eval" / "methods" / "prompts.toml"
Kind = Literal["books", "bios", "news", "creative", "nonliteral", "questions"]
SLOT = "{text}"
NUM_WORDS = 170
"""Words that are given of a whole text, and as many that it goes on with: about CopyBench's."""
KEPT = ("characters", "reference_characters", "group", "answer")
"""Fields of a record that measures of the texts read (`read_texts`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsConfig:
    """Make prompts for a sweep: anchored prompts --kind books --input data.literal.json --output F

    Reads JSON lines, a JSON array, or one text a line (.txt), and writes lines of "id", "prompt",
    "reference", "title" and "domain", which is what anchored sweep reads, with the record's
    "characters" and "group" for the measures. The templates are those of the paper, in
    configs/eval/methods/prompts.toml.
    """

    kind: Kind
    """Template of the prompts."""
    input: Path
    """File of the data set."""
    output: Path
    """File for the prompts, JSON lines."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        check_input(self.input)
        check_outputs(self, self.output)


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """The fields of a record that are read, and the text that a model reads."""

    template: str
    """A text with one {text}."""
    text: str
    """Field of a record that is put there."""
    reference: str = ""
    """Field of the text's continuation; "" for none."""
    whole: list[str] = field(default_factory=list)
    """Fields of which one may hold a whole text, which is cut into both: an article, a story."""
    aliases: dict[str, str] = field(default_factory=dict)
    """The name in a data set of each field here; of a list of values the first is taken."""


def run(config: PromptsConfig) -> int:
    """Write the prompts; returns 0."""
    table = read_config_file(TEMPLATES)[config.kind]
    template: Template = from_table(Template, table, f"{config.kind}.")
    prompts = [
        _prompt(config, template, number, record)
        for number, record in enumerate(_records(config.input, template.text), 1)
    ]
    if not prompts:
        raise ValueError(f"{config.input} holds no records")
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in prompts)
    write_durably(config.output, lines, overwrite=config.overwrite)
    print(f"{len(prompts)} prompts of {config.kind} in {config.output}")
    bare = [line["id"] for line in prompts if not line["reference"].strip()]
    if bare and template.reference:
        print(
            f"{len(bare)} of {len(prompts)} prompts have no reference, so that no copying can be "
            f"measured: their records end with the prompt ({NUM_WORDS} words of a whole text); the "
            f"first is {bare[0]}",
            file=sys.stderr,
        )
    return 0


def _prompt(
    config: PromptsConfig, template: Template, number: int, record: dict[str, Any]
) -> dict[str, Any]:
    for name, alias in template.aliases.items():
        if record.get(name) is None and (value := record.get(alias)):
            record = {**record, name: value[0] if isinstance(value, list) else value}
    whole = next((record[name] for name in template.whole if record.get(name)), None)
    if record.get(template.text) is None and isinstance(whole, str):
        ends = [0, *(word.end for word in words(whole, max_words=2 * NUM_WORDS))]
        middle = ends[: NUM_WORDS + 1][-1]
        parts = whole[:middle], whole[middle : ends[-1]]
        record = {**record, **dict(zip((template.text, template.reference), parts, strict=True))}
    for name in filter(None, (template.text, template.reference)):
        if not isinstance(record.get(name), str):
            raise ValueError(f"{config.input}, record {number} has no text {name!r}")
    text, reference = record[template.text], ""
    if template.reference:
        text, reference = _cut(text, record[template.reference])
    name = str(record.get("id", f"{config.kind}-{number:04}"))
    made = {
        "id": file_name(name),
        "prompt": template.template.replace(SLOT, text),
        "reference": reference,
        "title": str(record.get("title", text if config.kind == "bios" else name)),
        "domain": config.kind,
        **{name: record[name] for name in KEPT if record.get(name) is not None},
    }
    if error := field_error(PromptLine, made):
        raise ValueError(f"{config.input}, record {number}: {error}")
    return made


def _cut(text: str, reference: str) -> tuple[str, str]:
    """Text and continuation, the white space between them at the beginning of the continuation.

    That is where a tokenizer has it, and what a text that recites the work begins with.
    """
    stripped = text.rstrip()
    seam = text[len(stripped) :] if reference and not reference[0].isspace() else ""
    if has_open_seam(stripped, seam + reference):
        seam = " "
    return stripped, seam + reference


def _records(file: Path, text_name: str) -> list[dict[str, Any]]:
    if file.suffix == ".txt":
        lines = file.read_text(encoding="utf-8-sig").split("\n")
        return [{text_name: line.strip()} for line in lines if line.strip()]
    return [record for _, record in json_objects(file)]
