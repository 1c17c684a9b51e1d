"""The commands that score a text, replay a ledger and find passages."""

import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anchored
from anchored import AnchoredError
from anchored.decode.ledger import ledger_parts
from anchored.decode.pair.folder import check_is_id
from anchored.decode.pair_options import ModelOptions, PairOptions
from anchored.durable_files import json_value, write_durably
from anchored.fields import check_least
from anchored.inputs import PromptLine, check_input, read_prompts, text_of

from .files import check_outputs
from .generate import check_passages, raise_first
from .option_types import OutputFile

if TYPE_CHECKING:
    from anchored.eval.retrieval.passages import PassageIndex

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig(PairOptions):
    """Score a text: anchored score --safe A --risky B --prompt "To be" --continuation " or not"

    Prints one JSON object: log p* of the continuation and what it spent, in nats. With
    --prompt-file, prints a line for each prompt, with the keys of the prompt.
    """

    prompt: str | None = None
    """Text before the continuation, which is not scored; - for stdin, @FILE for a file's text."""
    continuation: str | None = None
    """Text that is scored, token by token; - for stdin, @FILE for a file's text."""
    prompt_file: Path | None = None
    """File of prompts, or - for stdin: JSON lines {"prompt": ..., "reference": ...}, as anchored
    prompts writes them; the references are scored, each by itself."""
    horizon: int | None = None
    """Tokens, or bytes, that K = k * horizon is spread over; the continuation's length unless
    given."""

    def __post_init__(self) -> None:
        texts = (self.prompt, self.continuation)
        if texts.count(None) != (0 if self.prompt_file is None else 2):
            raise ValueError("give either --prompt and --continuation, or --prompt-file")
        if "" in texts:
            raise ValueError(f"--{'continuation' if self.prompt else 'prompt'} must not be empty")
        check_least(self, 1, "horizon")
        PairOptions.__post_init__(self)

    def lines(self) -> list[PromptLine]:
        """The texts that are scored: each reference after its prompt."""
        if self.prompt_file is not None:
            return read_prompts(self.prompt_file, needs=("reference",))
        prompt, continuation = text_of(self.prompt or ""), text_of(self.continuation or "")
        return [PromptLine(prompt=prompt, reference=continuation)]


def score(config: ScoreConfig) -> int:
    """Score and print; returns the exit status."""
    lines, rule = config.lines(), config.rule.make()
    check_passages(rule, lines)
    decoder, errors = config.decoder(rule), []
    for line in lines:
        record = line.record() if config.prompt_file else {}
        try:
            figures = {**record, **_score_figures(decoder, line, config.horizon)}
        except (AnchoredError, ValueError) as error:  # of this text, as one longer than the context
            errors.append(str(error))
            figures = {**record, "error": str(error)}
        if config.prompt_file or not errors:
            print(json.dumps(json_value(figures)), flush=True)
    raise_first(errors, len(lines))
    return 0


def _score_figures(
    decoder: "anchored.Decoder", line: PromptLine, horizon: int | None
) -> dict[str, Any]:
    """The score of a line's reference; ValueError or AnchoredError where it cannot be scored."""
    from anchored.decode.rules.rule import takes_passage

    passage = line.passage if takes_passage(decoder.rule) else None
    reference = line.reference or ""
    (scored,) = decoder.score(line.prompt, reference, horizon=horizon, k=line.k, passages=passage)
    if scored.error:
        raise AnchoredError(scored.error)
    return {
        "log_prob": scored.log_prob,
        f"num_{decoder.level.name}s": len(scored.token_ids),
        "is_greedy": scored.is_greedy,
        **{name: getattr(scored, name) for name in ("spend", "bound", "debt", "k", "K")},
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig(ModelOptions):
    """Check ledgers against their models: anchored verify --safe A --risky B --ledger FILE

    Replays every step: figures, bound, and each token from its seed. If --divergences or --picture
    is given, ledgers that hold are replayed once more for KL(p_r || p_s) and KL(p* || p_r) of each
    step and the ratios of the prompt.
    """

    ledger: tuple[Path, ...]
    """Files that anchored generate or Ledger.save wrote; or of a sweep, RUN/ledgers/SETTING.jsonl,
    which hold one of each text. Several are verified one after the other."""
    limit: int | None = None
    """Number of ledgers of each file that are checked, from its first; all unless given."""
    divergences: OutputFile | None = None
    """File for the ledgers with these divergences, which anchored verify takes like any other."""
    picture: OutputFile | None = None
    """File for a picture of them, .png, .svg or .pdf, with means over several ledgers; needs
    matplotlib."""
    overwrite: bool = False
    """Replace files that exist."""

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        for file in self.ledger:
            check_input(file)
        if not self.ledger:
            raise ValueError("give at least one --ledger")
        check_least(self, 1, "limit")
        if self.picture is not None and self.picture.suffix not in PICTURE_SUFFIXES:
            allowed = ", ".join(PICTURE_SUFFIXES)
            raise ValueError(f"--picture must end in one of {allowed}, got {self.picture}")
        check_outputs(self, self.divergences, self.picture)


def verify(config: VerifyConfig) -> int:
    """Print the verdicts; status 0 where every ledger holds, 1 where one does not."""
    if len(config.ledger) == 1:  # before the models are loaded
        anchored.Ledger.load(config.ledger[0], ledger_parts(config.ledger[0])[0])
    if config.picture is not None:
        import_module("anchored.eval.figures.curves")  # without matplotlib, before the replay
    pair = config.load()
    is_whole, longer = True, []
    for file in config.ledger:
        try:
            for part in ledger_parts(file)[: config.limit]:
                ledger = anchored.Ledger.load(file, part)
                report = anchored.verify(ledger, pair)
                shown = report if len(config.ledger) == 1 else f"{file}: {report}"
                others = report.failures[1:]  # the first is in the line above
                print(shown, *(f"  {failure}" for failure in others), sep="\n", flush=True)
                is_whole = is_whole and report.is_ok
                if report.is_ok and (config.divergences or config.picture):
                    longer.append(anchored.with_divergences(ledger, pair))
        except (AnchoredError, ValueError, OSError) as error:  # the other files are verified too
            if len(config.ledger) == 1:
                raise
            print(f"{file}: FAILED: {error}", flush=True)
            is_whole = False
    if longer:
        _write_divergences(config, longer)
    return 0 if is_whole else 1


def _write_divergences(config: VerifyConfig, ledgers: "list[anchored.Ledger]") -> None:
    if config.divergences is not None:
        lines = [line + "\n" for ledger in ledgers for line in ledger.lines()]
        write_durably(config.divergences, "".join(lines), overwrite=config.overwrite)
    if config.picture is not None:
        from anchored.eval.figures.curves import plot_divergences

        config.picture.parent.mkdir(parents=True, exist_ok=True)
        plot_divergences(ledgers, config.picture)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrieveConfig:
    """Find a passage for each prompt: anchored retrieve --corpus books.jsonl --prompt-file P.jsonl

    Writes the prompts' lines with "passage", "passage_id" and "score". The command generate
    takes them as --prompt-file for the rules that read a passage, and as --passages for MemFree.
    """

    corpus: Path
    """File of passages, JSON lines {"text": ..., optional "id"}."""
    prompt_file: Path
    """File of prompts, or - for stdin: JSON lines {"prompt": ..., ...}, as anchored prompts writes
    them."""
    output: OutputFile | None = None
    """File for the lines; stdout unless given."""
    encoder: str | None = None
    """Model of sentence-transformers whose embeddings are compared, a folder or a Hub id as
    Alibaba-NLP/gte-Qwen2-1.5B-instruct; words are compared unless given."""
    instruction: str | None = None
    """Text in front of a query that the encoder reads; the paper's unless given."""
    index: Path | None = None
    """Folder of the index, which is made once; CORPUS.bm25 or CORPUS.dense unless given."""
    overwrite: bool = False
    """Replace an output that exists."""

    def __post_init__(self) -> None:
        if self.instruction is not None and self.encoder is None:
            raise ValueError("--instruction needs an --encoder")
        if self.encoder is not None and not Path(self.encoder).expanduser().exists():
            check_is_id(self.encoder)
        check_input(self.corpus)
        check_outputs(self, self.output)


def retrieve(config: RetrieveConfig) -> int:
    """Find, write; returns the exit status."""
    lines = read_prompts(config.prompt_file)
    passages, text = _index(config).search([line.prompt for line in lines]), ""
    for line, best in zip(lines, passages, strict=True):
        passage = best and {"passage": best.text, "passage_id": best.id, "score": best.score}
        text += json.dumps({**line.record(), **(passage or {})}) + "\n"
    if num_without := sum(best is None for best in passages):
        print(
            f"{num_without} of {len(lines)} prompts share no word with {config.corpus}: they have "
            "no passage",
            file=sys.stderr,
        )
    if config.output is None:
        print(text, end="")
    else:
        write_durably(config.output, text, overwrite=config.overwrite)
    return 0


def _index(config: RetrieveConfig) -> "PassageIndex":
    kind = "bm25" if config.encoder is None else "dense"
    folder = config.index or config.corpus.with_name(f"{config.corpus.name}.{kind}")
    progress = sys.stderr.isatty()
    if config.encoder is None:
        from anchored.eval.retrieval.passages import WordIndex

        return WordIndex(config.corpus, folder, progress=progress)
    from anchored.eval.retrieval.passages import INSTRUCTION, DenseIndex

    text = INSTRUCTION if config.instruction is None else config.instruction
    return DenseIndex(config.corpus, folder, config.encoder, instruction=text, progress=progress)
