"""A first look: a work by the model that recites it, within a budget, and by the model that has
never read it."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import cast

from tqdm import tqdm

from anchored import Decoder, Generation, Ledger, ModelPair, Pathwise, RiskyOnly, SafeOnly
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import LevelName
from anchored.eval.copying.metrics import copying_score
from anchored.eval.experiments.experiment import Prompt
from anchored.eval.report.tables import at_most

from .protected_works import Work, cut_prompts

RULE = Pathwise()
"""The rule to start with, which the server and the page have too."""
WORK = 3
"""The work's place among those that the risky model has learned; of fewer it is the last."""
NUM_TOKENS = 41
"""Tokens of each text: some thirty words, up to the end of a sentence of the work."""
TEMPERATURE, SEED = 0.7, 1
NUM_COLUMNS = 80


def show(pair: ModelPair, works: Sequence[Work]) -> None:
    """Print how one of the works that the risky model has learned begins, how both models and the
    pair continue it, and what is proved."""
    (work,) = cut_prompts(works[: WORK + 1][-1:])
    print(f'A story that the risky model has learned by heart, "{work.title}", begins:\n')
    print(_block(work.prompt.partition("\n\n")[2]))
    print("The risky model goes on (in brackets: words that the story has in a row):\n")
    _write(pair, work, RiskyOnly(compared=False))
    print(f"The pair goes on, with a budget of {RULE.bank:g} nats and {RULE.k:g} more per token:\n")
    anchored = _write(pair, work, RULE)
    print("The safe model, which has never read the story, goes on:\n")
    _write(pair, work, SafeOnly())
    print(_proved(pair, work, anchored.ledger))


def _write(pair: ModelPair, work: Prompt, rule: Rule) -> Generation:
    """Continue the work by a rule and print the text, what it recites in brackets."""
    stream = Decoder(pair, rule).stream(
        work.prompt, max_new_tokens=NUM_TOKENS, temperature=TEMPERATURE, seed=SEED
    )
    for _ in tqdm(stream, total=NUM_TOKENS, unit=" tokens", leave=False):
        pass
    text = stream.generation.text
    spans = copying_score(text, work.reference)["copied_characters"]
    print(_block(bracketed(text, spans)), flush=True)
    return stream.generation


def bracketed(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with each span, characters [start, end), in brackets."""
    for start, end in sorted(spans, reverse=True):  # the last first, so that no other one moves
        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    return text


def _block(text: str) -> str:
    """The text in one wrapped and indented paragraph, with an empty line below it."""
    indent, words = "    ", " ".join(text.split())
    return textwrap.fill(words, NUM_COLUMNS, initial_indent=indent, subsequent_indent=indent) + "\n"


def _proved(pair: ModelPair, work: Prompt, ledger: Ledger) -> str:
    """One line: what the pair's text spent, and the most that its bound leaves to a recital."""
    most = at_most(recital_bound(pair, work.prompt, work.reference, ledger))
    return (
        f"The pair's text spent {ledger.spent:.1f} of {ledger.header.bound:.1f} nats. Proved: it "
        f"recites these lines of the story with a chance of at most {most}."
    )


def recital_bound(pair: ModelPair, prompt: str, reference: str, ledger: Ledger) -> float:
    """The largest chance that a certified ledger's bound leaves to a text that continues its prompt
    as the reference does, as far as a text of its length can."""
    header = ledger.header
    decoder = Decoder(pair, SafeOnly(), level=cast(LevelName, header.level))
    ids = decoder.level.encode_continuation(reference)[: header.horizon]
    (score,) = decoder.score([prompt], [ids], **header.sampling)
    return ledger.event_bound(score.log_prob)
