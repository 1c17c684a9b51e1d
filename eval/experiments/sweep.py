"""A sweep's TOML file: a pair, prompts, held-out texts, methods with their settings, GPUs."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from ...configs.config_file import (
    check_holds,
    find_path,
    from_table,
    located,
    read_with_folders,
)
from ...decode.pair.folder import model_identity
from ...decode.pair_options import ModelOptions
from ...decode.rules.registry import RULES
from ...decode.settings import SamplingConfig
from ...durable_files import file_sha256
from ..copying.metrics import METRIC_SET
from ..recorded_texts import RISKY, SAFE
from ..retrieval.passages import encoder_identity
from .experiment import ExperimentOptions, check_unique

FIGURES: Final = {
    "methods": "Methods",
    "objective": "Optimization objective",
    "debt": "Prefix debt",
    "budget": "Budget allocation",
    "debt_window": "Debt window",
}
"""Panels of the pictures by name, with their titles."""
SECTIONS: Final = (
    "Reference LMs",
    "Single-model methods",
    "Two-model baselines",
    "Anchored Decoding",
    "Ablations",
)
"""Parts of the results table, in the paper's order."""
PAIR: Final = ("safe", "risky")
_SECTION_OF: Final = {
    "safe_only": 0,
    "risky_only": 0,
    **dict.fromkeys(("system", "memfree", "rcad"), 1),
    **dict.fromkeys(("cp_fuse", "token_swap"), 2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A rule with its settings; each combination of listed values is a setting of the sweep."""

    rule: str
    """Its name in the registry of rules, of this package or an installed one."""
    label: str
    """Its name in tables and pictures."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule by name; lists of values are swept, several in all combinations."""
    figures: list[str] = field(default_factory=lambda: ["methods"])
    """Names in FIGURES of the panels that show it."""

    def __post_init__(self) -> None:
        is_alone = self.label in (SAFE, RISKY) or self.rule in ("safe_only", "risky_only")
        shown = f"{SAFE} and {RISKY} are in every sweep: leave out {self.label!r}"
        _require(not is_alone, shown)
        _require(self.label.strip(), f"label of a method with the rule {self.rule!r} is empty")
        for name in self.figures:
            known = ", ".join(FIGURES)
            _require(name in FIGURES, f"{self.label}: figures must be of {known}, got {name!r}")

    @property
    def is_swept(self) -> bool:
        """Tell whether its settings are budgets of Anchored Decoding as in the paper, in KL and
        without a bank."""
        is_ours = self.section == SECTIONS[3] and self.rule == "anchored"
        is_kl = self.settings.get("divergence", "kl") == "kl"
        return is_ours and is_kl and "bank" not in self.settings

    @property
    def section(self) -> str:
        """The part of the results table with its rows."""
        is_ablation = "methods" not in self.figures
        others = 3 if self.rule in RULES else 2
        return SECTIONS[4 if is_ablation else _SECTION_OF.get(self.rule, others)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """[placement] of a sweep's file."""

    gpus: int = 1
    """GPUs of each process, which no other uses; torchrun starts one process per group."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the pair, by their names in anchored generate, such as risky_device_map."""
    vllm: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's engine, for a sweep that draws by it, such as gpu_memory_utilization;
    tensor_parallel_size is gpus by default."""

    def __post_init__(self) -> None:
        _require(self.gpus >= 1, f"placement.gpus must be >= 1, got {self.gpus}")
        _require(
            self.gpus == 1 or {"risky_device", "risky_device_map"} & set(self.options),
            f"placement.gpus = {self.gpus}, but both models would lie on the first: give "
            'placement.options risky_device = "cuda:1" or risky_device_map = "auto"',
        )

    def take_gpus(self, device: str) -> None:
        """Show this process only the GPUs of its group, before any of them is in use. torchrun's
        process number n has the GPUs from n * gpus on. Raises: ValueError if there are fewer."""
        import torch

        count = 0 if device == "cpu" else torch.cuda.device_count()
        if count == 0:
            return
        first = int(os.environ.get("LOCAL_RANK", "0")) * self.gpus
        if first + self.gpus > count:
            raise ValueError(
                f"this process would take the GPUs {first} to {first + self.gpus - 1} of {count}: "
                f"start at most {count // self.gpus} with {self.gpus} each"
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + self.gpus])


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(ExperimentOptions):
    """The settings of a sweep's TOML file. Relative paths are relative to `inputs` if that is set,
    else to the file (and its bases), then to the folder in which the command runs."""

    safe: str
    """Hugging Face folder or Hub id of the safe model."""
    risky: str
    """Hugging Face folder or Hub id of the risky model."""
    prompts: str | list[str]
    """JSON lines, {"id", "prompt", "reference", optional "title", "domain", "passage"}; several
    files where domains are compared."""
    held_out: dict[str, list[str]] = field(default_factory=dict)
    """Files of each held-out set by its name: JSON lines, {"text"}; without any, bits per byte,
    the measure of utility, are left out."""
    methods: tuple[Method, ...]
    """Methods besides p_s and p_r, which are in every sweep."""
    inputs: str = ""
    """Folder of the models and files that the other keys name."""
    folders: list[str] = field(default_factory=lambda: ["."])
    """Folders of relative paths, which `load_sweep` sets; a TOML file cannot."""
    made_by: str = ""
    """Command that makes the files in `inputs`, for a plan if some are missing."""
    num_prompts: int = 0
    """Prompts in the files, for a plan if these are missing."""
    passages: str = ""
    """Corpus of protected texts, JSON lines, {"text", optional "id"}: MemFree and RCAD read its
    nearest passage to each prompt."""
    encoder: str = ""
    """sentence-transformers folder or Hub id whose embeddings find passages; BM25 of their words
    by default."""
    utility: str = ""
    """The held-out set of shown utilities; the last one by default."""
    task_folder: str = ""
    """YAML files of lm-eval."""
    tasks: list[str] = field(default_factory=list)
    """Multiple-choice tasks among these, for every setting that reads no passage."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """vllm draws the settings of Anchored Decoding, at token level, before transformers loads the
    pair for the other rules and all measures."""
    max_prompts: int = 0
    """The first prompts of each file; 0 takes all."""
    device: str = ""
    """cpu, cuda, ...; by default CUDA if there is one."""
    placement: Placement = field(default_factory=Placement)
    """The GPUs of each process, and the placement of the pair on them."""

    def __post_init__(self) -> None:
        SamplingConfig.of(
            {"temperature": self.temperature, "repetition_penalty": self.repetition_penalty}
        )
        least = dict.fromkeys(("max_new_tokens", "num_excerpts", "excerpt_tokens", "batch_size"), 1)
        for name, number in {**least, "max_prompts": 0}.items():
            value = getattr(self, name)
            _require(value >= number, f"{name} must be >= {number}, got {value}")
        are_seeds = 0 < len(self.seeds) == len(set(self.seeds)) and min(self.seeds) >= 0
        shown = f"seeds must be different whole numbers >= 0, at least one, got {self.seeds}"
        _require(are_seeds, shown)
        _require(self.methods, "a sweep needs [[methods]], got none")
        _require(self.prompts, "a sweep needs a file of prompts, got none")
        shown = f"held_out must be lists of files by the names of sets, got {self.held_out}"
        _require(all(self.held_out.values()), shown)
        _require(self.task_folder or not self.tasks, "tasks need a task_folder")
        shown = ", ".join(self.held_out) or "held_out, which is empty"
        shown = f"utility must be one of {shown}, got {self.utility!r}"
        _require(self.utility in ("", *self.held_out), shown)
        if self.engine == "vllm":
            _require(self.level == "token", f'vLLM draws level = "token", got {self.level!r}')
            unknown = self.placement.options.keys() - {"risky_device", "risky_device_map"}
            _require(not unknown, f"vLLM reads placement.vllm, not placement.options {unknown}")
        check_unique("label", [method.label for method in self.methods])
        reading = [method.label for method in self.methods if method.rule in ("memfree", "rcad")]
        shown = f"{', '.join(reading[:1])} reads passages: name a corpus of texts as passages"
        _require(not reading or self.passages, shown)

    @property
    def utility_set(self) -> str:
        """The held-out set of shown utilities; "" without one."""
        return self.utility or next(reversed(self.held_out), "")

    @property
    def places(self) -> list[Path]:
        """Folders of relative paths, in order."""
        return [Path(folder) / Path(self.inputs).expanduser() for folder in self.folders]

    def path(self, key: str, name: str) -> Path:
        """The path of a file or folder that a key names; FileNotFoundError without one."""
        return located(key, name, self.places)

    def model(self, name: str) -> Path:
        """A model's folder, or its Hub id."""
        return find_path(name, self.places) or Path(name)

    @property
    def models(self) -> ModelOptions:
        """The pair with its placement. Raises: ValueError for an option that is none."""
        table: dict[str, Any] = {"safe": self.safe, "risky": self.risky}
        table |= {"device": self.device} if self.device else {}
        table |= self.placement.options
        for name in {*PAIR, "risky_quantization"} & table.keys():
            table[name] = str(self.model(table[name]))
        models: ModelOptions = from_table(ModelOptions, table, "placement.options.")
        return models

    def identity(self) -> dict[str, Any]:
        """All that decides the results: settings, models, and contents of files."""
        named = self.files
        paths = ("inputs", "folders", "made_by", "num_prompts", "device", "placement")
        left_out = (*paths, "batch_size", "engine", "safe", "risky", "task_folder", *named)
        settings = {name: value for name, value in asdict(self).items() if name not in left_out}
        models = {name: model_identity(self.model(getattr(self, name))) for name in PAIR}

        def hashed(key: str, names: Sequence[str]) -> list[str]:
            return [file_sha256(self.path(key, name)) for name in names]

        return {
            **settings,
            **models,
            **{key: hashed(key, names) for key, names in named.items()},
            "held_out": {name: hashed("held_out", each) for name, each in self.held_out.items()},
            "methods": [_portable(method, self.places) for method in settings["methods"]],
            "encoder": encoder_identity(self.model(self.encoder)) if self.encoder else "",
            "metric_set": METRIC_SET,
        }

    @property
    def files(self) -> dict[str, list[str]]:
        """Names of all input files apart from models, by the key that names them."""
        prompts = self.prompts if isinstance(self.prompts, list) else [self.prompts]
        held_out = [name for names in self.held_out.values() for name in names]
        tasks = [f"{self.task_folder}/{task}.yaml" for task in self.tasks]
        passages = [self.passages] if self.passages else []
        named = {"prompts": prompts, "passages": passages, "held_out": held_out, "tasks": tasks}
        return {key: names for key, names in named.items() if names}


def _portable(method: dict[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """A method with the sha256 of its corpus in place of the path."""
    corpus = method["settings"].get("corpus")
    file = find_path(corpus, folders) if isinstance(corpus, str) else None
    if file is None or not file.is_file():
        return method
    return {**method, "settings": {**method["settings"], "corpus": file_sha256(file)}}


def load_sweep(path: Path, *, inputs: Path | None = None) -> Sweep:
    """The sweep of a TOML file. inputs: overrides the file's key. Raises FileNotFoundError, or
    ValueError that names an unknown key, a value or a file."""
    tables, folders = read_with_folders(path)
    check_holds(path, tables, "methods", "a sweep")
    _require("folders" not in tables, "unknown config key folders")
    if inputs is not None:
        tables["inputs"], folders = str(inputs), (Path(),)
    # An empty list leaves out a set that the file's base names.
    if isinstance(sets := tables.get("held_out"), dict):
        tables["held_out"] = {name: files for name, files in sets.items() if files != []}
    config: Sweep = from_table(Sweep, tables)
    return replace(config, folders=list(map(str, folders)))


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)
