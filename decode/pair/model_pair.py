"""A safe and a risky language model, with one tokenizer or two."""

import logging
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Never

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..ambient import in_plain_torch
from ..settings import LevelName, RequestError
from ..streams.capabilities import row_support
from ..streams.configs import context_length, declared_ends, read_generation_config
from ..streams.kv_cache import RowAttention
from ..streams.row_stream import ModelRunner
from ..tokenizer.text import continuation_token_ids, encoded
from .folder import ModelFolder, fingerprint, model_fingerprint
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
from .model_state import ModelState, check_apart, check_hooks
from .pair_file import PairFile
from .shared_tokens import SharedTokens, check_steady, shared_tokens, token_counts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two causal models; construction fails when they do not fit together.

    With one tokenizer they can be compared token by token, and with two that make the same tokens
    of plain text, see `SharedTokens`: special tokens with one id are one token, whatever they are
    called, and ids that one tokenizer lacks are banned for both models. With other tokenizers they
    are compared byte by byte: both must then be BPE. Where the tokenizers differ, one
    line is logged that names the first difference and the level.

    Each model is run on a few tokens, in the way in which it will decode, and compared with its
    plain forward: see `row_support`. Later changes, hooks too, are refused by the next call, see
    `ModelState`, as are adapters in the safe model and shared memory, see `check_apart`.

    Both may carry embeddings padded beyond the tokenizer: the padding is never predicted; nor is a
    special token beyond the embeddings of one of them, which no plain text holds. Only the
    safe model has to be exact for the bound, so a quantized one is refused unless asked for.
    """

    safe: PreTrainedModel
    risky: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    fingerprints: dict[str, str] = field(default_factory=dict)
    """sha256 by "safe" and "risky"; computed from the tensors in memory where it is missing."""
    _: KW_ONLY
    risky_tokenizer: PreTrainedTokenizerFast | None = None
    """The risky model's; None where it has the same tokens as `tokenizer`, the safe one's."""
    allow_quantized_safe: bool = False
    """Take a quantized safe model: the bound then holds against that model, not the original."""
    source: PairFile | None = None
    """Names of the models, and k and level of a pair.json; None for models in memory."""
    shared: SharedTokens = field(init=False)
    """The tokens that both tokenizers know, and whether token by token is possible."""
    chat_tokenizers: dict[str, PreTrainedTokenizerFast] = field(default_factory=dict, init=False)
    """Tokenizers by "safe" and "risky" as the models came, whose chat templates may differ
    though their tokens do not."""
    row_attention: dict[str, RowAttention | None] = field(default_factory=dict, init=False)
    """Attention by "safe" and "risky" of unequal rows; None if they share no forward."""
    decodes_alone: dict[str, bool] = field(default_factory=dict, init=False)
    """True by "safe" and "risky" if rows that cannot share a forward like that, or are longer than
    it reaches, are run one by one; else they decode in left-padded batches."""
    runners: dict[str, ModelRunner] = field(default_factory=dict, init=False)
    """Runners by "safe" and "risky"; they predict shared tokens, or where the models are compared
    byte by byte, those of the model's tokenizer."""

    suppressed: dict[str, list[int]] = field(default_factory=dict, init=False)
    """Tokens by "safe" and "risky" that the model's generation_config suppresses, ascending."""
    quantization: dict[str, str] = field(default_factory=dict, init=False)
    """Methods by the names of the quantized models."""
    _states: dict[str, ModelState] = field(default_factory=dict, init=False, repr=False)

    @in_plain_torch
    def __post_init__(self) -> None:
        if not self.allow_quantized_safe:
            _refuse_quantized(self.safe.config)
        self.chat_tokenizers.update(self.tokenizers)
        for name, tokenizer in self.tokenizers.items():
            check_steady(name, tokenizer)
        self._compare_tokenizers()
        for name, model in self.models.items():
            self.suppressed[name] = read_generation_config(name, model, self.tokenizers[name])
        last = self.tokenizer("a")["input_ids"][-1:]
        if self.shares_tokens and not {*self.stop_token_ids}.isdisjoint(last):
            logger.warning("the tokenizer puts an end of text, token %d, after each prompt", *last)
        self._check_models()

    def _check_models(self) -> None:
        check_hooks()
        check_apart(self.safe, self.risky)
        for name, model in self.models.items():
            self._check_model(name, model)
        # Last, as some models write to their weights in their first forward.
        self._states.update({name: ModelState(model, name) for name, model in self.models.items()})
        methods = [self.quantization.get(name) for name in self.models]
        if len({*self.fingerprints.values()}) == 1 and methods[0] == methods[1]:
            logger.warning(
                "the safe and the risky model are the same one: p* is p_s wherever both read the "
                "same text (an adapter that is merged changes its base model in place)"
            )

    def check_unchanged(self) -> None:
        """Raise ValueError for models that are not what they were when the pair was made.

        Models in training mode are set to evaluation, see `ModelState.check`; hooks that were
        registered for all modules are refused too.
        """
        check_hooks()
        for state in self._states.values():
            state.check()

    def check_running(self) -> None:
        """The part of `check_unchanged` that costs nothing, for every step."""
        for state in self._states.values():
            state.check_running()

    def _compare_tokenizers(self) -> None:
        num_rows = [model.config.get_text_config().vocab_size for model in self.models.values()]
        shared = shared_tokens(self.tokenizer, self.risky_tokenizer, num_rows)
        object.__setattr__(self, "shared", shared)
        if shared.difference:
            from ..tokenizer.tokenizer_file import read_tokenizer  # such a pair decodes bytes

            for name, tokenizer in self.tokenizers.items():
                try:
                    read_tokenizer(tokenizer.backend_tokenizer)
                except ValueError as error:
                    raise ValueError(
                        f"the models have different tokenizers ({shared.difference}), and the "
                        f"{name} one has no bytes: {error}"
                    ) from None
            logger.warning(
                "two tokenizers (%s): such a pair decodes bytes, and k is in nats per byte",
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
        num_rows = model.config.get_text_config().vocab_size
        needed, num_ids = self.vocab_size, self.vocab_size
        if not self.shares_tokens:
            needed, num_ids = token_counts(self.tokenizers[name])
        if num_rows < needed:
            raise ValueError(
                f"the {name} model predicts {num_rows} tokens, the tokenizer has {needed}: they do "
                "not belong together"
            )
        tokens = min(num_ids, num_rows)
        if name not in self.fingerprints:
            self.fingerprints[name] = model_fingerprint(model)
        model.train(False)
        self.runners[name] = ModelRunner(model, tokens)
        self.row_attention[name], self.decodes_alone[name] = row_support(self.runners[name], name)

    @classmethod
    @in_plain_torch
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
        risky_options: revision, attention, a device_map for the risky model.

        Raises FileNotFoundError for a missing folder or Hub id, ValueError for a config, weights or
        an adapter that are damaged or lack a tensor, for a model that `row_support` refuses, for a
        quantized safe model, or for tokenizers that make other tokens of plain text unless both are
        BPE, and ModuleNotFoundError for an adapter without peft.
        """
        check_spellings(safe, risky, unknown)
        named = None
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
        # The safe one first: a device_map of the risky one is planned for the room that is left.
        safe_model = load_model(
            folders["safe"], dtype, device_of(device, "safe"), options=safe_options
        )
        is_spread = risky_options.device_map is not None
        risky_model = load_model(
            folders["risky"],
            dtype,
            None if is_spread else device_of(device, "risky"),
            options=risky_options,
            quantization=risky_quantization,
        )
        return cls(
            safe_model,
            risky_model,
            tokenizers["safe"],
            {name: fingerprint(folder) for name, folder in folders.items()},
            risky_tokenizer=tokenizers["risky"],
            allow_quantized_safe=allow_quantized_safe,
            source=PairFile.of({"safe": safe, "risky": risky}, folders, named),
        )

    def save_pretrained(
        self, folder: str | Path, *, k: float | None = None, level: LevelName | None = None
    ) -> None:
        """Write a pair.json that names both models; `from_pretrained(folder)` reads it.

        k, level: the defaults of commands; None for those of the pair.json that the pair was loaded
        by, `source.k` and `source.level`. Raises ValueError for a k or a level that
        no command takes, and for models in memory.
        """
        self._named(k, level).save(folder)

    def push_to_hub(
        self, repo_id: str, *, k: float | None = None, level: LevelName | None = None
    ) -> str:
        """Upload what `save_pretrained` writes and a README, in one commit; returns its address.

        Raises ValueError as `save_pretrained`, and for models in folders, which are not on the Hub.
        """
        return self._named(k, level).push(repo_id)

    def _named(self, k: float | None, level: LevelName | None) -> PairFile:
        if self.source is None:
            raise ValueError("models in memory have no names: load them by from_pretrained")
        kept = self.source
        return replace(
            kept, k=kept.k if k is None else k, level=kept.level if level is None else level
        )

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """Both models by name, safe first."""
        return {"safe": self.safe, "risky": self.risky}

    @property
    def tokenizers(self) -> dict[str, PreTrainedTokenizerFast]:
        """Tokenizers by "safe" and "risky"; twice the same object where there is one."""
        return {"safe": self.tokenizer, "risky": self.risky_tokenizer or self.tokenizer}

    @property
    def shares_tokens(self) -> bool:
        """True if both tokenizers make the same tokens of plain text; else bytes are compared."""
        return not self.shared.difference

    @property
    def vocab_size(self) -> int:
        """Number of token ids, one more than the largest that both tokenizers know."""
        return self.shared.vocab_size

    def has_token(self, token_id: int) -> bool:
        """True if both tokenizers know a token."""
        return 0 <= token_id < self.vocab_size and token_id not in self.shared.banned_token_ids

    @property
    def context_length(self) -> int | None:
        """Longest sequence that both models accept, in tokens; None when neither states one."""
        return min(self.context_lengths.values(), default=None)

    @property
    def context_lengths(self) -> dict[str, int]:
        """Context by "safe" and "risky", in tokens; a model that states none is left out."""
        lengths = {name: context_length(model.config) for name, model in self.models.items()}
        return {name: length for name, length in lengths.items() if length is not None}

    @property
    def stop_token_ids(self) -> list[int]:
        """Every shared token at which either model ends a text, ascending."""
        stops = {token for name in self.models for token in self._declared_stop_tokens(name)}
        return sorted(token for token in stops if self.has_token(token))

    @property
    def banned_token_ids(self) -> list[int]:
        """Every id that no text draws at token level, ascending: what one tokenizer lacks, and what
        either model's generation_config suppresses."""
        suppressed = {token for tokens in self.suppressed.values() for token in tokens}
        return sorted({*filter(self.has_token, suppressed), *self.shared.banned_token_ids})

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
        return declared_ends(name, self.models[name], self.tokenizers[name])

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of both models' dtypes: it decides how closely a replay can agree."""
        dtypes = [model.dtype for model in self.models.values()]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt with the special tokens that the tokenizer puts before a text.

        Texts are read by the safe model's tokenizer: special tokens have the names that it knows,
        other names are plain text. RequestError for a token that is not shared.
        """
        if isinstance(prompt, str):
            token_ids = encoded(self.tokenizer, prompt, add_special_tokens=True)
        else:
            token_ids = list(prompt)
        if not token_ids:
            raise RequestError("the prompt is empty: give at least one character or one token")
        self._check_token_ids(token_ids)
        return token_ids

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Token ids of a text that follows a prompt: no special tokens are added, and no space."""
        if isinstance(text, str):
            token_ids = continuation_token_ids(self.tokenizer, text)
        else:
            token_ids = list(text)
        self._check_token_ids(token_ids)
        return token_ids

    def _check_token_ids(self, token_ids: list[int]) -> None:
        wrong = next((token for token in token_ids if not self.has_token(token)), None)
        if wrong in self.shared.banned_token_ids:
            raise RequestError(f"token {wrong} is not in the tokenizers of both models")
        if wrong is not None:
            raise RequestError(f"token ids must be in [0, {self.vocab_size}), got {wrong}")


def _refuse_quantized(config: PretrainedConfig) -> None:
    if method := quantization_method(config):
        raise ValueError(
            f"the safe model is quantized ({method}), so the bound would hold against another "
            "model than the original: pass allow_quantized_safe=True to accept that"
        )
