"""A safe and a risky language model, with one tokenizer or two."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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


class ModelPair:
    """Two causal models; construction fails when they do not fit together.

    With one tokenizer they can be compared token by token, and with two that make the same tokens
    of plain text, see `SharedTokens`: special tokens with one id are one token, whatever they are
    called, and ids that one tokenizer lacks are banned for both models. With other tokenizers they
    are compared byte by byte: both must then be BPE. Where the tokenizers differ, one
    line is logged that names the first difference and the level.

    Each model is run on a few tokens, in the way in which it will decode, and compared with its
    plain forward: see `row_support`. Later changes are refused by the next call: see `ModelState`.

    Both may carry embeddings padded beyond the tokenizer: the padding is never predicted; nor is a
    special token beyond the embeddings of one of them, which no plain text holds. Only the
    safe model has to be exact for the bound, so a quantized one is refused unless asked for.
    """

    models: dict[str, PreTrainedModel]
    """The models by "safe" and "risky", in this order, as in all that follows."""
    tokenizers: dict[str, PreTrainedTokenizerFast]
    """Twice the same object where there is one."""
    risky_tokenizer: PreTrainedTokenizerFast | None
    """The risky model's; None where it has the same tokens as `tokenizer`, the safe one's."""
    chat_tokenizers: dict[str, PreTrainedTokenizerFast]
    """Tokenizers as the models came, whose chat templates may differ though their tokens do not."""
    source: PairFile | None
    """Names of the models, and k and level of a pair.json; None for models in memory."""
    fingerprints: dict[str, str]
    """sha256 of a model's files, or of its tensors in memory."""
    quantization: dict[str, str]
    """Methods of the models that are quantized."""
    suppressed: dict[str, list[int]]
    """Tokens that a model's generation_config suppresses, ascending."""
    shared: SharedTokens
    """The tokens that both tokenizers know, and whether token by token is possible."""
    runners: dict[str, ModelRunner]
    """Runners that predict shared tokens, or where the models are compared byte by byte, those of
    the model's tokenizer."""
    row_attention: dict[str, RowAttention | None]
    """Attention of unequal rows; None if they share no forward."""
    decodes_alone: dict[str, bool]
    """True if rows that cannot share a forward like that, or are longer than it reaches, are run
    one by one; else they decode in left-padded batches."""

    @in_plain_torch
    def __init__(
        self,
        safe: PreTrainedModel,
        risky: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        fingerprints: Mapping[str, str] | None = None,
        *,
        risky_tokenizer: PreTrainedTokenizerFast | None = None,
        allow_quantized_safe: bool = False,
        source: PairFile | None = None,
    ) -> None:
        """fingerprints: sha256 by "safe" and "risky"; computed from the tensors where it is
        missing. allow_quantized_safe: the bound then holds against that model, not the original.
        """
        if not allow_quantized_safe:
            _refuse_quantized(safe.config)
        self.safe, self.risky, self.models = safe, risky, {"safe": safe, "risky": risky}
        self.tokenizer, self.risky_tokenizer = tokenizer, risky_tokenizer
        self.tokenizers = {"safe": tokenizer, "risky": risky_tokenizer or tokenizer}
        self.chat_tokenizers = dict(self.tokenizers)
        self.source, self.fingerprints = source, dict(fingerprints or {})
        methods = {name: quantization_method(model.config) for name, model in self.models.items()}
        self.quantization = {name: method for name, method in methods.items() if method}
        # 1. What each tokenizer and generation_config says of texts, and what both share.
        for name, one in self.tokenizers.items():
            check_steady(name, one)
        num_rows = [model.config.get_text_config().vocab_size for model in self.models.values()]
        self.shared = shared_tokens(tokenizer, risky_tokenizer, num_rows)
        self._note_differences()
        self.suppressed = {
            name: read_generation_config(name, model, self.tokenizers[name])
            for name, model in self.models.items()
        }
        last = tokenizer("a")["input_ids"][-1:]
        if self.shares_tokens and not {*self.stop_token_ids}.isdisjoint(last):
            logger.warning("the tokenizer puts an end of text, token %d, after each prompt", *last)
        # 2. The models: whether they are two, and how each is run.
        self._check_models()

    def _note_differences(self) -> None:
        """Log the first difference of the tokenizers; ValueError if they share neither tokens nor
        bytes."""
        shared = self.shared
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
                'the tokenizers differ, but not in plain text: %s; level "auto" is tokens, by id',
                shared.harmless_difference,
            )
        else:
            self.risky_tokenizer, self.tokenizers["risky"] = None, self.tokenizer

    def _check_models(self) -> None:
        check_hooks()
        check_apart(self.safe, self.risky)
        self.runners, self.row_attention, self.decodes_alone = {}, {}, {}
        for name, model in self.models.items():
            num_rows = model.config.get_text_config().vocab_size
            needed = num_ids = self.vocab_size
            if not self.shares_tokens:
                needed, num_ids = token_counts(self.tokenizers[name])
            if num_rows < needed:
                raise ValueError(
                    f"the {name} model predicts {num_rows} tokens, the tokenizer has {needed}: "
                    "they do not belong together"
                )
            if name not in self.fingerprints:
                self.fingerprints[name] = model_fingerprint(model)
            model.train(False)
            runner = self.runners[name] = ModelRunner(model, min(num_ids, num_rows))
            self.row_attention[name], self.decodes_alone[name] = row_support(runner, name)
        # Last, as some models write to their weights in their first forward.
        self._states = [ModelState(model, name) for name, model in self.models.items()]
        methods = {self.quantization.get(name) for name in self.models}
        if len({*self.fingerprints.values()}) == len(methods) == 1:
            logger.warning(
                "the safe and the risky model are the same one: p* is p_s wherever both read the "
                "same text (an adapter that is merged changes its base model in place)"
            )

    def check_unchanged(self) -> None:
        """Raise ValueError for models that are not what they were when the pair was made, and for
        hooks of all modules: see `ModelState.check`."""
        check_hooks()
        for state in self._states:
            state.check()

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
    ) -> "ModelPair":
        """Load both models from Hugging Face folders or Hub ids (safetensors only, no remote code).

        One argument is a folder or Hub id with a pair.json that names both, see `PairFile`. Either
        may be a PEFT adapter: its base model is loaded and it is merged into the weights.

        dtype: "auto" (as stored), or one of torch or its name. device: one for both, or a mapping
        with "safe" and "risky"; by default CUDA where there is one. risky_quantization: any of
        transformers' configs; a checkpoint that is quantized already needs none. safe_options,
        risky_options: revision, attention, a device_map for the risky model.

        Raises FileNotFoundError for a missing folder or Hub id, ModuleNotFoundError for an adapter
        without peft, and ValueError, in one line, for files that are damaged or lack a part and for
        models that make no pair.
        """
        # 1. Where the models are: their names may be those of a pair.json.
        options = {"safe": safe_options, "risky": risky_options}
        names: dict[str, Any] = {"safe": safe, "risky": risky}
        named = PairFile.read(safe) if risky is None else None
        for name in names if named is not None else ():
            names[name] = getattr(named, name)
            options[name] = options[name].pinned(getattr(named, f"{name}_revision"))
        folders = {name: ModelFolder.find(names[name], options[name].revision) for name in names}
        # 2. What is refused before gigabytes are read.
        dtype = checked_dtype(dtype)
        check_placement(device, safe_options, risky_options)
        configs = {name: load_config(folder.base) for name, folder in folders.items()}
        if not allow_quantized_safe:
            _refuse_quantized(configs["safe"])
        tokenizers = {name: load_tokenizer(folder.tokenizer) for name, folder in folders.items()}
        # 3. The weights, the safe ones first: a device_map of the risky model is planned for the
        #    room that is left.
        models = {
            name: load_model(
                folder,
                dtype,
                None if options[name].device_map else device_of(device, name),
                options=options[name],
                quantization=risky_quantization if name == "risky" else None,
            )
            for name, folder in folders.items()
        }
        # 4. Whether they fit together.
        return cls(
            **models,
            tokenizer=tokenizers["safe"],
            risky_tokenizer=tokenizers["risky"],
            fingerprints={name: fingerprint(folder) for name, folder in folders.items()},
            allow_quantized_safe=allow_quantized_safe,
            source=PairFile.of(names, folders, named),
        )

    def save_pretrained(
        self, folder: str | Path, *, k: float | None = None, level: LevelName | None = None
    ) -> None:
        """Write a pair.json that names both models; `from_pretrained(folder)` reads it.

        k, level: the defaults of commands; None for those of the pair.json that the pair was loaded
        by. Raises ValueError for a k or a level that no command takes, and for models in memory.
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
        k, level = kept.k if k is None else k, kept.level if level is None else level
        return replace(kept, k=k, level=level)

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
        stops = {token for name in self.models for token in self._ends(name)}
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
        declared = {model: self._ends(model) for model in self.models}
        names = {
            token
            for model, tokenizer in self.tokenizers.items()
            for token in tokenizer.convert_ids_to_tokens(sorted(declared[model]))
        }
        added = self.tokenizers[name].added_tokens_decoder
        return sorted(
            declared[name] | {id for id, token in added.items() if token.content in names}
        )

    def _ends(self, name: str) -> set[int]:
        return declared_ends(name, self.models[name], self.tokenizers[name])

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of both models' dtypes: it decides how closely a replay can agree."""
        dtypes = [model.dtype for model in self.models.values()]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt with the special tokens that the tokenizer puts before a text.

        Texts are read by the safe model's tokenizer. RequestError for a token that is not shared.
        """
        if isinstance(prompt, str):
            prompt = encoded(self.tokenizer, prompt, add_special_tokens=True)
        if not (token_ids := list(prompt)):
            raise RequestError("the prompt is empty: give at least one character or one token")
        return self._checked(token_ids)

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Token ids of a text that follows a prompt: no special tokens are added, and no space."""
        if isinstance(text, str):
            text = continuation_token_ids(self.tokenizer, text)
        return self._checked(list(text))

    def _checked(self, token_ids: list[int]) -> list[int]:
        """The ids themselves; RequestError for one that is no shared token."""
        wrong = next((token for token in token_ids if not self.has_token(token)), None)
        if wrong in self.shared.banned_token_ids:
            raise RequestError(f"token {wrong} is not in the tokenizers of both models")
        if wrong is not None:
            raise RequestError(f"token ids must be in [0, {self.vocab_size}), got {wrong}")
        return token_ids


def _refuse_quantized(config: PretrainedConfig) -> None:
    if method := quantization_method(config):
        raise ValueError(
            f"the safe model is quantized ({method}), so the bound would hold against another "
            "model than the original: pass allow_quantized_safe=True to accept that"
        )
