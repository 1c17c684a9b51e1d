"""The commands that score a text, replay a ledger and compute the prefix debt of prompts."""

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tyro.conf import UseAppendAction

import anchored
from anchored import AnchoredError
from anchored.decode.ledger import ledger_parts
from anchored.decode.pair_options import ModelOptions, PairOptions
from anchored.durable_files import json_value, write_durably
from anchored.inputs import check_input, check_least

from .files import check_outputs
from .words import OutputFile

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig(PairOptions):
    """Score a text: anchored score --safe A --risky B --prompt "To be" --continuation " or not"

    Prints one JSON object: log p* of the continuation and what it spent, in nats.
    """

    prompt: str
    """Text before the continuation, which is not scored."""
    continuation: str
    """Text that is scored, token by token as it stands."""
    horizon: int | None = None
    """Tokens, or bytes, that K = k * horizon is spread over; the continuation's length unless
    given."""


def score(config: ScoreConfig) -> int:
    """Score and print; returns the exit status."""
    decoder = config.decoder()
    (scored,) = decoder.score(config.prompt, config.continuation, horizon=config.horizon)
    if scored.error:
        raise AnchoredError(scored.error)
    nats = {name: getattr(scored, name) for name in ("spend", "bound", "debt", "k", "K")}
    figures = {
        "log_prob": scored.log_prob,
        f"num_{decoder.level.name}s": len(scored.token_ids),
        "is_greedy": scored.is_greedy,
        **nats,
    }
    print(json.dumps(json_value(figures)))
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig(ModelOptions):
    """Check ledgers against their models: anchored verify --safe A --risky B --ledger FILE

    Replays every step: figures, bound, and each token from its seed. If --divergences or --picture
    is given, ledgers that hold are replayed once more for KL(p_r || p_s) and KL(p* || p_r) of each
    step and the ratios of the prompt.
    """

    ledger: Path
    """File that anchored generate or Ledger.save wrote; or of a sweep, RUN/ledgers/SETTING.jsonl,
    which holds one of each text."""
    limit: int | None = None
    """The first ledgers of the file, so many; all unless given."""
    divergences: OutputFile | None = None
    """File for the ledgers with these divergences, which anchored verify takes like any other."""
    picture: OutputFile | None = None
    """File for a picture of them, .png, .svg or .pdf, with means over several ledgers; needs
    matplotlib."""
    overwrite: bool = False
    """Replace files that exist."""

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        check_input(self.ledger)
        check_least(self, 1, "limit")
        if self.picture is not None and self.picture.suffix not in PICTURE_SUFFIXES:
            allowed = ", ".join(PICTURE_SUFFIXES)
            raise ValueError(f"--picture must end in one of {allowed}, got {self.picture}")


def verify(config: VerifyConfig) -> int:
    """Print the verdicts; status 0 where every ledger holds, 1 where one does not."""
    check_outputs(config, config.divergences, config.picture)
    parts = ledger_parts(config.ledger)[: config.limit]
    first = anchored.Ledger.load(config.ledger, parts[0])
    if config.picture is not None:
        import_module("anchored.eval.figures.curves")  # without matplotlib, before the replay
    pair = config.load()
    is_whole, longer = True, []
    for part in parts:
        ledger = first if part == parts[0] else anchored.Ledger.load(config.ledger, part)
        report = anchored.verify(ledger, pair)
        print(report, *(f"  {failure}" for failure in report.failures), sep="\n", flush=True)
        is_whole = is_whole and report.is_ok
        if report.is_ok and (config.divergences or config.picture):
            longer.append(anchored.with_divergences(ledger, pair))
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
class RatiosConfig(PairOptions):
    """Compute prefix debts once: anchored ratios --safe A --risky B --prompt "To be" --output FILE

    Writes the log-likelihood ratios of prompts, and prints a line of JSON for each prompt.
    """

    prompt: UseAppendAction[tuple[str, ...]]
    """Text whose debt generate and score will ask for; give it again for more."""
    output: OutputFile
    """File that these commands take as --prompt-ratios."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        PairOptions.__post_init__(self)
        if not self.prompt:
            raise ValueError("give at least one --prompt")


def ratios(config: RatiosConfig) -> int:
    """Compute, save and print; returns the exit status."""
    from anchored.decode.rules.budget import prefix_debt

    check_outputs(config, config.output)
    decoder = config.decoder()
    computed = decoder.prompt_ratios(list(config.prompt))
    computed.save(config.output, overwrite=config.overwrite)
    for prompt in config.prompt:
        ratios_of_prompt = computed.of(decoder.level.encode(prompt))
        mode, window = config.rule.debt, config.rule.debt_window
        debt = prefix_debt(ratios_of_prompt, mode=mode, window=window)
        row = {"prompt": prompt, "num_positions": len(ratios_of_prompt)}
        print(json.dumps(json_value({**row, "debt": debt})))
    return 0
