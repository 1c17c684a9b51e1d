"""The command that says which k a person can defend, without generating a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.decode.pair_options import ModelOptions
from anchored.decode.rules.registry import DebtOptions
from anchored.decode.settings import LevelName, SamplingConfig
from anchored.fields import check_least, checked_nats
from anchored.inputs import check_input


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifyConfig(DebtOptions, ModelOptions):
    """Find the k to defend: anchored certify --safe A --risky B --prompt-file prompts.jsonl

    Scores protected texts under both models, and prints the largest k of each rule, without a bank
    and with several, whose bound on the chance of reciting any of them is within a target. Nothing
    is generated.
    """

    prompt_file: Path
    """File of protected texts, JSON lines {"id": ..., "prompt": ..., "reference": ...}, as anchored
    prompts writes them."""
    output: Path = Path("runs/certificates")
    """Folder of certificates.json and the table."""
    target: float = 1e-6
    """Largest chance that an answer recites a text, the likeliest one."""
    bank: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    """Banks to show, in nats; each is full at the start of an answer."""
    window: int | None = None
    """Tokens of a passage: certifies every passage of that length too, anywhere in an answer."""
    length: int = 200
    """Tokens of an answer, the horizon of its budget; four bytes each at byte level."""
    temperature: float = 0.7
    """Number that divides the logits of both models."""
    repetition_penalty: float = 1.1
    """Penalty of tokens seen before, in both models; 1 is none."""
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where the tokenizers share them, else
    bytes."""
    batch_size: int = 16
    """Texts that are scored together."""

    def __post_init__(self) -> None:
        SamplingConfig(temperature=self.temperature, repetition_penalty=self.repetition_penalty)
        if self.temperature == 0.0:
            raise ValueError("--temperature must be > 0: greedy decoding has no bound")
        if not 0.0 < self.target < 1.0:
            raise ValueError(f"--target must be in (0, 1), got {self.target}")
        for bank in self.bank:
            checked_nats("--bank", bank)
        check_least(self, 1, "window", "length", "batch_size")
        if self.window is not None and self.window > self.length:
            raise ValueError(f"--window must be <= --length {self.length}, got {self.window}")
        check_least(self, 1, "debt_window")
        ModelOptions.__post_init__(self)
        check_input(self.prompt_file)


def run(config: CertifyConfig) -> int:
    """Score, search, report."""
    from anchored.eval.calibration.certificates import read_events, write_certificates
    from anchored.eval.experiments.experiment import Experiment, load_prompts

    experiment = Experiment(
        folder=config.output,
        prompts=load_prompts(config.prompt_file),
        settings=(),
        max_new_tokens=config.length,
        temperature=config.temperature,
        repetition_penalty=config.repetition_penalty,
        level=config.level,
        batch_size=config.batch_size,
    )
    pair = config.load()
    events = read_events(experiment, pair, config, window=config.window)
    about = {"models": dict(pair.fingerprints)}
    print(
        write_certificates(
            config.output, events, banks=config.bank, target=config.target, about=about
        )
    )
    print(f"\nAll figures: {config.output}/certificates.json")
    return 0
