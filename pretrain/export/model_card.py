"""The model card of an export: what the model is, what it was trained on, and how."""

from collections.abc import Sequence
from typing import Any

from ... import text_tables
from ..plan.data_plan import epochs_read, tokens_read
from ..run.record import RunRecord

_MAX_LICENCES = 4


def model_card(record: RunRecord, *, steps: Sequence[int], title: str) -> str:
    """Markdown with every stage's data plan, tokens and licences by source, and settings.

    steps: of the checkpoints whose weights were averaged, in ascending order; one is no average.
    """
    stages = record.stages(steps[-1])
    sections = [
        _FRONT_MATTER,
        f"# {title}\n",
        _introduction(record, steps, num_stages=len(stages)),
        _table(("shape", "value"), sorted(record.model.items())),
    ]
    for number, (stage, step) in enumerate(stages, start=1):
        sections += [f"## Stage {number}: {step:,} steps\n", _data_section(stage.data, step)]
        sections += [_table(("setting", "value"), sorted(stage.identity.items()))]
    return "\n".join([*sections, _limits([stage for stage, _ in stages])])


_FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
---
"""

_LIMITS = """## Limits

A base model: it continues text and follows no instructions. As the safe model of a pair for
Anchored Decoding it is only as safe as the licences above are right. Training sequences held parts
of several documents, {masking}.
"""


def _limits(stages: Sequence[RunRecord]) -> str:
    is_masked = [bool(stage.identity.get("data.mask_documents")) for stage in stages]
    if all(is_masked):
        return _LIMITS.format(masking="and attention did not cross from one to another")
    some = ", in some stages" if any(is_masked) else ""
    return _LIMITS.format(masking=f"without a mask between them{some}")


def _introduction(record: RunRecord, steps: Sequence[int], *, num_stages: int) -> str:
    average = ""
    if len(steps) > 1:
        listed = ", ".join(f"{step:,}" for step in steps)
        average = f" Its weights are the mean of {len(steps)} checkpoints, of steps {listed}."
    return (
        f"A Llama-style language model, pretrained with torchtitan in {num_stages} stage(s)."
        f"{average} Tokenizer: `tokenizer.json` with sha256 `{record.tokenizer_sha256}`; every "
        "training document was enclosed in its begin and end tokens.\n"
    )


def _data_section(data: dict[str, Any], step: int) -> str:
    read = tokens_read(data, step)
    epochs = epochs_read(data, step)
    total = sum(read.values())
    rows = [
        (
            source["name"],
            f"{source['origin']} @ {source['revision']}",
            f"{count:,}",
            f"{count / total:.2%}" if total else "-",
            f"{epochs[source['name']]:.2f}",
            _licences(source["licences"]),
        )
        for source, count in zip(data["sources"], read.values(), strict=True)
    ]
    head = ("source", "origin", "tokens read", "share", "epochs", "licences (documents)")
    return (
        f"{total:,} tokens in sequences of {data['seq_len']:,}; weights count "
        f"{data['weight_unit']}; data plan `{data['plan_hash']}`.\n\n{_table(head, rows)}"
    )


def _licences(licences: dict[str, int]) -> str:
    common = sorted(licences.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{name} ({count:,})" for name, count in common[:_MAX_LICENCES]]
    rest = common[_MAX_LICENCES:]
    if rest:
        named.append(f"{len(rest)} more ({sum(count for _, count in rest):,})")
    return ", ".join(named)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return text_tables.markdown(head, rows, numbers=False) + "\n"
