"""A sweep: methods and their settings on one pair, as a TOML file says, become an experiment."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from ... import Anchored, RiskyOnly, SafeOnly
from ...configs.config_file import from_table, read_config_file
from ...decode.pair_options import ModelOptions
from ...decode.rules.memfree import records
from ...decode.rules.registry import RULES, make_rule
from ...decode.rules.rule import Rule
from ...decode.settings import LevelName, SamplingConfig
from ...durable_files import file_sha256, write_durably
from ...field_types import field_error
from ...inputs import json_objects
from ..copying.metrics import METRIC_SET
from ..recorded_texts import RISKY, SAFE
from ..retrieval.passages import PassageIndex
from .experiment import Experiment, Prompt, Setting
from .placement import Placement

FIGURES: Final = {
    "methods": "Methods",
    "objective": "Optimization objective",
    "debt": "Prefix debt",
    "budget": "Budget allocation",
    "debt_window": "Debt window",
}
"""By name, the panels that a method may stand in, with their titles."""
SECTIONS: Final = (
    "Reference LMs",
    "Single-model methods",
    "Two-model baselines",
    "Anchored Decoding",
    "Ablations",
)
"""Parts of the results table, in the paper's order."""
_SECTION_OF: Final = {
    "safe_only": 0,
    "risky_only": 0,
    **dict.fromkeys(("system", "memfree", "rcad"), 1),
    **dict.fromkeys(("cp_fuse", "token_swap"), 2),
}
_PROMPT_KEYS: Final = tuple(own.name for own in fields(Prompt) if own.name != "about")
_NEEDED: Final = ("id", "prompt", "reference")
_ID: Final = re.compile(r"[\w.=+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A rule, and the settings that it runs with."""

    rule: str
    """Its name in the registry of rules, the package's own or an installed one."""
    label: str
    """Its name in tables and pictures."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the rule, by name; a list stands for one setting a value, several for all combinations."""
    figures: list[str] = field(default_factory=lambda: ["methods"])
    """Names in FIGURES: where it is drawn."""

    def __post_init__(self) -> None:
        if self.label in (SAFE, RISKY) or self.rule in ("safe_only", "risky_only"):
            raise ValueError(f"{SAFE} and {RISKY} are in every sweep: leave out {self.label!r}")
        if not self.label.strip():
            raise ValueError(f"label of a method with the rule {self.rule!r} is empty")
        for name in self.figures:
            if name not in FIGURES:
                known = ", ".join(FIGURES)
                raise ValueError(f"{self.label}: figures must be of {known}, got {name!r}")

    @property
    def section(self) -> str:
        """Where its rows stand in the table."""
        is_ablation = "methods" not in self.figures
        others = 3 if self.rule in RULES else 2
        return SECTIONS[4 if is_ablation else _SECTION_OF.get(self.rule, others)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What a sweep's TOML file says. Files are relative to `inputs`."""

    safe: str
    """Hugging Face folder or Hub id of the safe model."""
    risky: str
    """The same of the risky model."""
    prompts: str | list[str]
    """JSON lines, {"id", "prompt", "reference", optional "title", "domain", "passage"}; several
    files where domains are compared."""
    held_out: dict[str, list[str]] = field(default_factory=dict)
    """By the name of a held-out set its files: JSON lines, {"text"}; without any, bits per byte,
    which stand for utility, are not measured."""
    methods: tuple[Method, ...]
    """Beside p_s and p_r, which are in every sweep."""
    inputs: str = ""
    """Folder of models and files that are not absolute; where the command runs unless given."""
    passages: str = ""
    """Corpus of protected texts, JSON lines, {"text", optional "id"}: MemFree and RCAD read what
    is found in it for each prompt."""
    encoder: str = ""
    """sentence-transformers folder or Hub id whose embeddings find passages; BM25 of their words
    unless given."""
    utility: str = ""
    """The held-out set that utility is shown on; the last one unless given."""
    task_folder: str = ""
    """YAML files of lm-eval."""
    tasks: list[str] = field(default_factory=list)
    """Multiple-choice tasks among these, which every setting answers that reads no passage."""
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where the tokenizers share them."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """vllm draws the settings of Anchored Decoding, at token level, before transformers loads the
    pair for the other rules and all measures."""
    max_new_tokens: int = 200
    """Length of a generation; four bytes each at byte level."""
    temperature: float = 0.7
    repetition_penalty: float = 1.1
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One generation a prompt, setting and seed."""
    max_prompts: int = 0
    """The first prompts of each file; 0 takes all."""
    num_excerpts: int = 32
    """Held-out passages a set, for bits per byte."""
    excerpt_tokens: int = 128
    """Tokens scored in a passage."""
    batch_size: int = 48
    """Texts that are decoded together."""
    device: str = ""
    """cpu, cuda, ...; CUDA where there is one unless given."""
    placement: Placement = field(default_factory=Placement)
    """Which GPUs each process has, and how the pair lies on them."""

    def __post_init__(self) -> None:
        SamplingConfig.of(
            {"temperature": self.temperature, "repetition_penalty": self.repetition_penalty}
        )
        for name in ("max_new_tokens", "num_excerpts", "excerpt_tokens", "batch_size"):
            _require(getattr(self, name) >= 1, f"{name} must be >= 1, got {getattr(self, name)}")
        _require(self.max_prompts >= 0, f"max_prompts must be >= 0, got {self.max_prompts}")
        are_seeds = 0 < len(self.seeds) == len(set(self.seeds)) and min(self.seeds) >= 0
        shown = f"seeds must be different whole numbers >= 0, at least one, got {self.seeds}"
        _require(are_seeds, shown)
        _require(bool(self.methods), "a sweep needs [[methods]], got none")
        _require(bool(self.prompts), "a sweep needs a file of prompts, got none")
        shown = f"held_out must be lists of files by the names of sets, got {self.held_out}"
        _require(all(self.held_out.values()), shown)
        _require(bool(self.task_folder) or not self.tasks, "tasks need a task_folder")
        if self.utility not in ("", *self.held_out):
            known = ", ".join(self.held_out) or "held_out, which is empty"
            raise ValueError(f"utility must be one of {known}, got {self.utility!r}")
        if self.engine == "vllm":
            _require(self.level == "token", f'vLLM draws level = "token", got {self.level!r}')
            unknown = self.placement.options.keys() - {"risky_device", "risky_device_map"}
            _require(not unknown, f"vLLM reads placement.vllm, not placement.options {unknown}")
        _check_unique("label", [method.label for method in self.methods])
        reading = [method.label for method in self.methods if method.rule in ("memfree", "rcad")]
        if reading and not self.passages:
            raise ValueError(f"{reading[0]} reads passages: name a corpus of texts as passages")

    @property
    def utility_set(self) -> str:
        """The held-out set that utility is shown on; "" where there is none."""
        return self.utility or next(reversed(self.held_out), "")

    def path(self, name: str) -> Path:
        """Where a file of the config stands."""
        return Path(self.inputs) / name

    def model(self, name: str) -> Path:
        """A model's folder, or its Hub id."""
        folder = self.path(name)
        return folder if folder.exists() else Path(name)

    @property
    def models(self) -> ModelOptions:
        """The pair, where it is to lie."""
        return self.placement.models(self.model(self.safe), self.model(self.risky), self.device)

    def identity(self) -> str:
        """All that decides the results but the models, whose fingerprints are in the ledgers."""
        where = ("inputs", "device", "placement", "batch_size", "engine")
        own = asdict(self) | dict.fromkeys(where)
        contents = [file_sha256(file) for file in self.files]
        return json.dumps([own, contents, METRIC_SET])

    @property
    def files(self) -> list[Path]:
        """All that are read, models aside."""
        held_out = [name for names in self.held_out.values() for name in names]
        tasks = [f"{self.task_folder}/{task}.yaml" for task in self.tasks]
        names = (self.passages, *held_out, *tasks)
        return [*self.prompt_files, *(self.path(name) for name in names if name)]

    @property
    def prompt_files(self) -> list[Path]:
        """Where its prompts stand."""
        names = self.prompts if isinstance(self.prompts, list) else [self.prompts]
        return [self.path(name) for name in names]


def load_sweep(path: Path, *, inputs: Path | None = None) -> Sweep:
    """The sweep of a TOML file. inputs: in place of the file's own.

    Raises FileNotFoundError, or ValueError that names an unknown key, a value or a file.
    """
    tables = read_config_file(path)
    if inputs is not None:
        tables["inputs"] = str(inputs)
    # An empty list leaves out a set that the file's base names.
    if isinstance(sets := tables.get("held_out"), dict):
        tables["held_out"] = {name: files for name, files in sets.items() if files != []}
    config: Sweep = from_table(Sweep, tables)
    return config


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSON-lines file; other keys than those of a `Prompt` go into its `about`.

    Raises OSError, or ValueError that names file and row for one that is no prompt.
    """
    prompts = []
    for number, record in json_objects(path):
        place = f"{path}, row {number}"
        own = {name: record[name] for name in _PROMPT_KEYS if record.get(name) is not None}
        own.setdefault("title", own.get("id", ""))
        if error := field_error(Prompt, own):
            raise ValueError(f"{place}: {error}")
        _require(bool(own["prompt"]), f"{place}: the prompt is empty")
        _require(bool(_ID.fullmatch(own["id"])), f"{place}: an id names a file, got {own['id']!r}")
        about = {name: value for name, value in record.items() if name not in _PROMPT_KEYS}
        prompts.append(Prompt(**own, about=about))
    _require(bool(prompts), f"{path} holds no prompts")
    _check_unique(f"{path}: id", [prompt.id for prompt in prompts])
    return prompts


def sweep_prompts(config: Sweep) -> list[Prompt]:
    """The prompts of all files of a sweep. Raises as `load_prompts` does."""
    files = [load_prompts(file)[: config.max_prompts or None] for file in config.prompt_files]
    prompts = list(itertools.chain.from_iterable(files))
    _check_unique("prompt id", [prompt.id for prompt in prompts])
    return prompts


def save_prompts(prompts: Sequence[Prompt], path: Path) -> None:
    """Write what `load_prompts` reads, a prompt a line."""
    lines = []
    for prompt in prompts:
        own = {name: getattr(prompt, name) for name in _PROMPT_KEYS}
        given = {name: text for name, text in own.items() if text or name in _NEEDED}
        lines.append(json.dumps({**prompt.about, **given}) + "\n")
    write_durably(path, "".join(lines))


def sweep_settings(config: Sweep, blocked: Path | None = None) -> tuple[Setting, ...]:
    """p_s, p_r, then every setting of the methods, by the sections of the table.

    blocked: file of the passages that were found for the prompts, which MemFree blocks; none yet
    unless given. Raises ValueError for unknown rules and settings and for two settings that are the
    same.
    """
    settings = [Setting(SAFE, SafeOnly(), method=SAFE), Setting(RISKY, RiskyOnly(), method=RISKY)]
    for method in sorted(config.methods, key=lambda method: SECTIONS.index(method.section)):
        settings += _method_settings(method, blocked)
    _check_unique("setting", [setting.file_name for setting in settings])
    for first, second in itertools.combinations(settings, 2):
        if first.rule == second.rule:
            raise ValueError(
                f"{first.name} and {second.name} are the same setting: give one method both figures"
            )
    return tuple(settings)


def _method_settings(method: Method, blocked: Path | None) -> Iterator[Setting]:
    """A setting for each combination of the values that are lists, named by these values."""
    swept = {name: own for name, own in method.settings.items() if isinstance(own, list)}
    for name, values in swept.items():
        _require(bool(values), f"{method.label}: the list of {name} is empty")
    for combination in itertools.product(*swept.values()):
        chosen = dict(zip(swept, combination, strict=True))
        name = ", ".join([method.label, *(f"{n}={_shown(own)}" for n, own in chosen.items())])
        try:
            rule = _rule(method, method.settings | chosen, blocked)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        is_ours = method.section == SECTIONS[3]
        k = rule.k if is_ours and isinstance(rule, Anchored) else None
        yield Setting(name, rule, k, method.label)


def _rule(method: Method, settings: dict[str, Any], blocked: Path | None) -> Rule:
    if method.rule == "memfree" and blocked is None:
        settings = {"passages": [], **settings}
    elif method.rule == "memfree":  # a file, so that no ledger repeats all passages of the run
        settings = {"corpus": str(blocked), "false_positives": 0.0, **settings}
    return make_rule(method.rule, settings)


def sweep_experiment(config: Sweep, folder: Path, index: PassageIndex | None) -> Experiment:
    """What a sweep measures, recorded in `folder`.

    index: of the corpus, where one is named. Raises as `sweep_prompts` and `sweep_settings` do.
    """
    prompts = sweep_prompts(config)
    if index is not None:
        prompts = _with_passages(prompts, index)
    blocked = None
    if passages := dict.fromkeys(own.passage for own in prompts if own.passage is not None):
        blocked = folder / "blocked.jsonl"
        write_durably(blocked, "".join(json.dumps({"text": text}) + "\n" for text in passages))
    return Experiment(
        folder=folder,
        prompts=prompts,
        settings=sweep_settings(config, blocked),
        seeds=config.seeds,
        max_new_tokens=config.max_new_tokens,
        repetition_penalty=config.repetition_penalty,
        temperature=config.temperature,
        level=config.level,
        held_out={
            name: [own["text"] for file in files for own in records(config.path(file))]
            for name, files in config.held_out.items()
        },
        extra=config.utility_set,
        num_excerpts=config.num_excerpts,
        excerpt_tokens=config.excerpt_tokens,
        task_folder=config.path(config.task_folder),
        tasks=tuple(config.tasks),
        index=index,
        batch_size=config.batch_size,
    )


def _with_passages(prompts: Sequence[Prompt], index: PassageIndex) -> list[Prompt]:
    """What the corpus holds nearest to each prompt, where the prompt brings nothing of its own."""
    found = index.search([prompt.prompt for prompt in prompts])
    return [
        prompt if prompt.passage is not None else replace(prompt, passage=passage.text)
        for prompt, passage in zip(prompts, found, strict=True)
    ]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _check_unique(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} stands twice")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
