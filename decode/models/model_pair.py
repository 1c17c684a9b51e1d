"""A safe and a risky language model, with one tokenizer or two."""

import logging
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Never

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..settings import LevelName
from ..tokenizer.tokenizer_file import read_tokenizer
from .capabilities import row_support
from .folder import ModelFolder, fingerprint, model_fingerprint
from .kv_cache import RowAttention
from .loading import (
    DEFAULT_OPTIONS,
    DeviceMap,
    LoadOptions,
    check_placement,
    check_spellings,
    checked_dtype,
    device_of,
    load_config,
    load_model,
    load_tokenizer,
    quantization_method,
)
from .pair_file import PairFile
from .row_stream import ModelRunner
from .shared_tokens import SharedTokens, shared_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two causal models; construction fails when they do not fit together.

    With one tokenizer they can be compared token by token, and with two that make the same tokens
    of plain text, see `SharedTokens`: special tokens with one id are one token, whatever they are
    called, and ids that one tokenizer lacks are banned for both models. With other tokenizers they
    are compared byte by byte: both must then be byte-level BPE. Where the tokenizers differ, one
    line is logged that names the first difference and the level.

    Each model is run on a few tokens, in the way in which it will decode, and compared with its
    plain forward: see `row_support`. Hooks that it is given later, and other layers in place of its
    own, are honored by the next call, but neither compared nor seen in its fingerprint.

    Both may carry embeddings padded beyond the tokenizer: the padding is never predicted. Only the
    safe model has to be exact for the bound, so a quantized one is refused unless asked for.
    """

    safe: PreTrainedModel
    risky: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    fingerprints: dict[str, str] = field(default_factory=dict)
    """sha256 by "safe" and "risky"; computed from the tensors in memory when not given."""
    _: KW_ONLY
    risky_tokenizer: PreTrainedTokenizerFast | None = None
    """The risky model's; None where it has the same tokens as `tokenizer`, the safe one's."""
    allow_quantized_safe: bool = False
    """Take a quantized safe model: the bound then holds against that model, not the original."""
    source: PairFile | None = None
    """Where the models were loaded from; None for models in memory."""
    shared: SharedTokens = field(init=False)
    """What the tokenizers have in common, and whether it is enough to decode token by token."""
    chat_tokenizers: dict[str, PreTrainedTokenizerFast] = field(default_factory=dict, init=False)
    """By "safe" and "risky": those that the models came with, whose chat templates may differ
    though their tokens do not."""
    row_attention: dict[str, RowAttention | None] = field(default_factory=dict, init=False)
    """By "safe" and "risky": how rows of different lengths share a forward, None if they cannot."""
    decodes_alone: dict[str, bool] = field(default_factory=dict, init=False)
    """By "safe" and "risky": whether rows that cannot share a forward like that, or are longer than
    it reaches, are run one by one; else they decode in left-padded batches."""
    runners: dict[str, ModelRunner] = field(default_factory=dict, init=False)
    """By "safe" and "risky"; they predict shared tokens, or where the models are compared byte by
    byte, those of the model's own tokenizer."""

    quantization: dict[str, str] = field(default_factory=dict, init=False)
    """Methods by the names of the quantized models."""

    def __post_init__(self) -> None:
        if not self.allow_quantized_safe:
            _refuse_quantized(self.safe.config)
        self.chat_tokenizers.update(self.tokenizers)
        self._compare_tokenizers()
        for name, model in self.models.items():
            self._check_model(name, model)

    def _compare_tokenizers(self) -> None:
        shared = shared_tokens(self.tokenizer, self.risky_tokenizer)
        object.__setattr__(self, "shared", shared)
        if shared.difference:
            for name, tokenizer in self.tokenizers.items():
                try:
                    read_tokenizer(tokenizer.backend_tokenizer)
                except ValueError as error:
                    raise ValueError(
                        f"the models have different tokenizers ({shared.difference}), and the "
                        f"{name} one has no bytes: {error}"
                    ) from None
            logger.warning(
                'the tokenizers differ: %s; level "auto" is bytes, so K = k * bytes',
                shared.difference,
            )
        elif shared.harmless_difference:
            logger.warning(
                'the tokenizers differ, but not in plain text: %s; level "auto" is tokens, by id%s',
                shared.harmless_difference,
                self._lost_stop_token(),
            )
        else:
            object.__setattr__(self, "risky_tokenizer", None)

    def _check_model(self, name: str, model: PreTrainedModel) -> None:
        if method := quantization_method(model.config):
            self.quantization[name] = method
        num_predicted = model.config.get_text_config().vocab_size
        # Ids may have gaps, so their number is not the largest one.
        num_ids = 1 + max(self.tokenizers[name].get_vocab().values())
        tokens = self.vocab_size if self.shares_tokens else num_ids
        if num_predicted < tokens:
            raise ValueError(
                f"the {name} model predicts {num_predicted} tokens, the tokenizer has "
                f"{tokens}: they do not belong together"
            )
        if name not in self.fingerprints:
            self.fingerprints[name] = model_fingerprint(model)
        model.train(False)
        self.runners[name] = ModelRunner(model, tokens)
        self.row_attention[name], self.decodes_alone[name] = row_support(self.runners[name], name)

    @classmethod
    def from_pretrained(
        cls,
        safe: str | Path,
        risky: str | Path | None = None,
        *,
        dtype: str | torch.dtype = "auto",
        device: DeviceMap = None,
        risky_quantization: QuantizationConfigMixin | None = None,
        allow_quantized_safe: bool = False,
        safe_options: LoadOptions = DEFAULT_OPTIONS,
        risky_options: LoadOptions = DEFAULT_OPTIONS,
        **unknown: Never,
    ) -> "ModelPair":
        """Load both models from Hugging Face folders or Hub ids (safetensors only, no remote code).

        One argument is a folder or Hub id with a pair.json that names both, see `PairFile`. Either
        may be a PEFT adapter: its base model is loaded and it is merged into the weights.

        dtype: "auto" (as stored), or one of torch or its name. device: one for both, or a mapping
        with "safe" and "risky"; by default CUDA where there is one. risky_quantization: any of
        transformers' configs; a checkpoint that is quantized already needs none. safe_options,
        risky_options: revision, attention, and for the risky model a device_map that stands in
        place of its device.

        Raises FileNotFoundError for a missing folder or Hub id, ValueError for a config, weights or
        an adapter that are damaged or lack a tensor, for a model that `row_support` refuses, for a
        quantized safe model, or for tokenizers that make other tokens of plain text unless both are
        byte-level BPE, and ModuleNotFoundError for an adapter without peft.
        """
        check_spellings(safe, risky, unknown)
        if risky is None:
            named = PairFile.read(safe)
            safe, risky = named.safe, named.risky
            safe_options = safe_options.pinned(named.safe_revision)
            risky_options = risky_options.pinned(named.risky_revision)
        dtype = checked_dtype(dtype)
        check_placement(device, safe_options, risky_options)
        folders = {
            "safe": ModelFolder.find(safe, safe_options.revision),
            "risky": ModelFolder.find(risky, risky_options.revision),
        }
        configs = {name: load_config(folder.base) for name, folder in folders.items()}
        if not allow_quantized_safe:
            _refuse_quantized(configs["safe"])
        tokenizers = {name: load_tokenizer(folder.tokenizer) for name, folder in folders.items()}
        is_spread = risky_options.device_map is not None
        risky_model = load_model(
            folders["risky"],
            dtype,
            None if is_spread else device_of(device, "risky"),
            options=risky_options,
            quantization=risky_quantization,
        )
        return cls(
            load_model(folders["safe"], dtype, device_of(device, "safe"), options=safe_options),
            risky_model,
            tokenizers["safe"],
            {name: fingerprint(folder) for name, folder in folders.items()},
            risky_tokenizer=tokenizers["risky"],
            allow_quantized_safe=allow_quantized_safe,
            source=PairFile.of({"safe": safe, "risky": risky}, folders),
        )

    def save_pretrained(
        self, folder: str | Path, *, k: float | None = None, level: LevelName | None = None
    ) -> None:
        """Write a pair.json that names both models; `from_pretrained(folder)` reads it.

        k, level: for commands that are given none. Raises ValueError for models in memory.
        """
        replace(self._named(), k=k, level=level).save(folder)

    def push_to_hub(
        self, repo_id: str, *, k: float | None = None, level: LevelName | None = None
    ) -> str:
        """Upload what `save_pretrained` writes and a README, in one commit; returns its address.

        Raises ValueError for models in memory or in folders, which nobody else has.
        """
        return replace(self._named(), k=k, level=level).push(repo_id)

    def _named(self) -> PairFile:
        if self.source is None:
            raise ValueError("models in memory have no names: load them by from_pretrained")
        return self.source

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """Both models by name, safe first."""
        return {"safe": self.safe, "risky": self.risky}

    @property
    def tokenizers(self) -> dict[str, PreTrainedTokenizerFast]:
        """By "safe" and "risky"; twice the same object where there is one."""
        return {"safe": self.tokenizer, "risky": self.risky_tokenizer or self.tokenizer}

    @property
    def shares_tokens(self) -> bool:
        """Whether both tokenizers make the same tokens of plain text; else bytes are compared."""
        return not self.shared.difference

    @property
    def vocab_size(self) -> int:
        """Number of token ids, one more than the largest that both tokenizers know."""
        return self.shared.vocab_size

    def has_token(self, token_id: int) -> bool:
        """Whether both tokenizers know a token."""
        return 0 <= token_id < self.vocab_size and token_id not in self.shared.banned_token_ids

    @property
    def context_length(self) -> int | None:
        """Longest sequence that both models accept, in tokens; None when neither states one."""
        return min(self.context_lengths.values(), default=None)

    @property
    def context_lengths(self) -> dict[str, int]:
        """By "safe" and "risky", in tokens; a model that states none is left out."""
        lengths = {}
        for name, model in self.models.items():
            config = model.config.get_text_config()
            rotary = getattr(config, "rope_parameters", None) or {}
            if length := getattr(config, "max_position_embeddings", 0):
                lengths[name] = length
                if rotary.get("rope_type") == "longrope":
                    # Past this length it rotates by other angles than the keys that are cached.
                    lengths[name] = min(length, rotary["original_max_position_embeddings"])
        return lengths

    @property
    def stop_token_ids(self) -> list[int]:
        """Every shared token at which either model ends a text, ascending."""
        stops = {token for name in self.models for token in self._declared_stop_tokens(name)}
        return sorted(token for token in stops if self.has_token(token))

    def stop_tokens_of(self, name: str) -> list[int]:
        """Every token of this model's tokenizer at which either model ends a text, ascending.

        Stop tokens of another tokenizer count if this one has an added token of the same name.
        """
        if self.risky_tokenizer is None:
            return self.stop_token_ids
        declared = {model: self._declared_stop_tokens(model) for model in self.models}
        names = {
            token
            for model, tokenizer in self.tokenizers.items()
            for token in tokenizer.convert_ids_to_tokens(sorted(declared[model]))
        }
        added = self.tokenizers[name].added_tokens_decoder
        return sorted(
            declared[name] | {id for id, token in added.items() if token.content in names}
        )

    def _lost_stop_token(self) -> str:
        """The first that only one tokenizer knows, for the log."""
        for name in self.models:
            for token in sorted(self._declared_stop_tokens(name)):
                if not self.has_token(token):
                    return f", which never draws stop token {token} of the {name} model"
        return ""

    def _declared_stop_tokens(self, name: str) -> set[int]:
        """Tokens at which a model ends a text, by any of the three that say so."""
        model, tokenizer = self.models[name], self.tokenizers[name]
        declared: set[int | None] = set()
        for ends in (model.generation_config, model.config, tokenizer):
            token_ids = ends.eos_token_id
            declared.update(token_ids if isinstance(token_ids, list) else [token_ids])
        backend = tokenizer.backend_tokenizer
        known = (token for token in declared if token is not None)
        return {token for token in known if backend.id_to_token(token) is not None}

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of both models' dtypes: it decides how closely a replay can agree."""
        dtypes = [model.dtype for model in self.models.values()]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt with the special tokens that the tokenizer puts before a text.

        Texts are read by the safe model's tokenizer: special tokens have the names that it knows,
        other names are plain text. ValueError for a token that is not shared.
        """
        if isinstance(prompt, str) and prompt:
            token_ids = list(self.tokenizer(prompt, verbose=False)["input_ids"])
        else:
            token_ids = list(prompt)
        if not token_ids:
            raise ValueError("the prompt is empty: give at least one character or one token")
        self._check_token_ids(token_ids)
        return token_ids

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Token ids of a text that follows a prompt: no special tokens are added."""
        if isinstance(text, str):
            token_ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        else:
            token_ids = list(text)
        self._check_token_ids(token_ids)
        return token_ids

    def _check_token_ids(self, token_ids: list[int]) -> None:
        wrong = next((token for token in token_ids if not self.has_token(token)), None)
        if wrong in self.shared.banned_token_ids:
            raise ValueError(f"token {wrong} is not in the tokenizers of both models")
        if wrong is not None:
            raise ValueError(f"token ids must be in [0, {self.vocab_size}), got {wrong}")


def _refuse_quantized(config: PretrainedConfig) -> None:
    if method := quantization_method(config):
        raise ValueError(
            f"the safe model is quantized ({method}), so the bound would hold against another "
            "model than the original: pass allow_quantized_safe=True to accept that"
        )
