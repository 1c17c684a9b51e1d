"""Anchored Decoding, or either model of a pair alone, as a model of lm-evaluation-harness."""

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ...decode.decoder import Decoder
from .arguments import HarnessArguments

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import (
        get_rolling_token_windows,
        make_disjoint_window,
        simple_parse_args_string,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lm-eval is not installed ({error}): pip install 'anchored[eval]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

logger = logging.getLogger(__name__)

LogLikelihood = tuple[float, bool]
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]

LINE_END = ord("\n")
SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class AnchoredLM(TemplateLM):
    """Answers lm-eval's three kinds of request with one decoder.

    Every request is a generation of its own: its prefix debt comes from its context alone, its
    horizon is the length of its own continuation (so K = k * length), and its answer does not
    depend on which other requests are asked with it. Warpers are off unless a task sets them.
    """

    def __init__(self, decoder: Decoder, *, max_gen_toks: int = 256, seed: int = 0) -> None:
        """max_gen_toks: tokens to generate where a task names no number; seed: of all sampling."""
        super().__init__()
        self.decoder = decoder
        self.tokenizer = decoder.pair.tokenizer
        self._deals_in_bytes = decoder.level.name == "byte"
        self.max_gen_toks = max_gen_toks
        self.seed = seed

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "AnchoredLM":
        """A model from "safe=FOLDER,risky=FOLDER,rule=anchored,k=1.5"; see create_from_arg_obj."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "AnchoredLM":
        """A model from settings by name.

        safe, risky: model folders or Hub ids, required. dtype, device, risky_device,
        risky_quantization (its settings, or a JSON file of them), allow_quantized_safe, tp_size:
        as in ModelPair.from_pretrained; the fields of LoadOptions with safe_ or risky_ before them.
        level, engine, speculate, prompt_ratios (a file): as in Decoder; the fields of ByteSettings
        with byte_ before them. batch_size: a whole number, or "auto" for 16; a 1 that lm-eval
        passes when it is not asked counts as "auto", write batch_size=1 here to mean it.
        max_gen_toks, seed: whole numbers. rule: "anchored" unless given. Everything else is a
        setting of the rule, k above all.

        additional_config: lm-eval's own batch_size, max_batch_size and device, which the settings
        override; without CUDA its cuda:0 becomes the CPU, with a log line.
        Raises ValueError for a missing or unknown setting.
        """
        arguments = HarnessArguments.of(arg_dict, additional_config or {})
        return cls(arguments.make_decoder(), **arguments.counts)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is replaced by: begin of text, else end; of bytes a line end."""
        if self._deals_in_bytes:
            return LINE_END
        bos_token_id = self.tokenizer.bos_token_id
        return self.eot_token_id if bos_token_id is None else int(bos_token_id)

    @property
    def max_length(self) -> int | None:
        """Tokens of context and continuation together; None for no limit, or one not in bytes."""
        return self.decoder.level.context_length

    @property
    def batch_sizes(self) -> dict[int, int]:
        """What lm-eval prints beside the size that it was asked for: the decoder's own."""
        return {0: self.decoder.batch_size}

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name for lm-eval's request cache."""
        if self._deals_in_bytes:
            return "bytes"
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The tokenizer's own chat template as text."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids; with None, special tokens are added unless the text brings its own.

        At byte level, where there are none, the bytes.
        """
        if self._deals_in_bytes:
            return self.decoder.level.encode_continuation(string)
        if add_special_tokens is None:
            bos_token = self.tokenizer.bos_token
            add_special_tokens = not (bos_token and string.startswith(bos_token))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def _loglikelihood_tokens(
        self, requests: Sequence[TokenRequest], disable_tqdm: bool = False, **_: Any
    ) -> list[LogLikelihood]:
        """log p*(continuation | context) in nats, and whether greedy decoding would write it."""
        contexts = self._fitted_contexts(requests)
        answers: dict[int, LogLikelihood] = {}
        bar = tqdm(total=len(requests), desc="loglikelihood", disable=disable_tqdm)
        # One call a length: the horizon of a call holds for all its continuations.
        for horizon, group in _grouped(len(continuation) for _, _, continuation in requests):
            scores = self.decoder.score(
                [contexts[i] for i in group], [requests[i][2] for i in group], horizon=horizon
            )
            for i, score in zip(group, scores, strict=True):
                if score.error:
                    raise ValueError(f"request {i} cannot be scored: {score.error}")
                answers[i] = (score.log_prob, score.is_greedy)
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
            bar.update(len(group))
        bar.close()
        return [answers[i] for i in range(len(requests))]

    def loglikelihood_rolling(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[float]:
        """log p* of whole texts, in nats, each after a begin-of-text token.

        A text longer than the models' context is cut into windows, each with a context (one token,
        the last window more) and a budget of its own.
        """
        windows = [self._rolling_windows(request.args[0]) for request in requests]
        answers = iter(self._loglikelihood_tokens(list(chain(*windows)), disable_tqdm=disable_tqdm))
        totals = []
        for request, own in zip(requests, windows, strict=True):
            totals.append(sum((log_prob for log_prob, _ in islice(answers, len(own))), 0.0))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """Continuations up to a stop text; greedy (and then uncertified) unless a task samples.

        Sampled texts follow from the seed, the context and how often it was asked before.
        """
        texts: dict[int, str] = {}
        seeds = self._seeds([request.args[0] for request in requests])
        bar = tqdm(total=len(requests), desc="generate", disable=disable_tqdm)
        for _, group in _grouped(repr(request.args[1]) for request in requests):
            max_new_tokens, settings = _generation_settings(
                requests[group[0]].args[1], self.max_gen_toks
            )
            prompts = [self._prompt(requests[i].args[0], max_new_tokens) for i in group]
            generations = self.decoder.generate(
                prompts, max_new_tokens=max_new_tokens, seed=[seeds[i] for i in group], **settings
            )
            for i, generation in zip(group, generations, strict=True):
                if generation.error:
                    raise ValueError(f"request {i} cannot be generated: {generation.error}")
                texts[i] = generation.text
                self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
            bar.update(len(group))
        bar.close()
        return [texts[i] for i in range(len(requests))]

    def _fitted_contexts(self, requests: Sequence[TokenRequest]) -> list[list[int]]:
        """Contexts cut at the left so that each fits the models together with its continuation."""
        limit = self.max_length
        fitted = []
        for strings, context, continuation in requests:
            if not continuation:
                raise ValueError(
                    f"the continuation of {strings} has no token of its own: it merges into the "
                    "last token of the context"
                )
            if limit is not None and len(continuation) >= limit:
                raise ValueError(
                    f"a continuation of {len(continuation)} tokens leaves no room for context: "
                    f"the models read {limit} tokens"
                )
            fitted.append(context if limit is None else context[-(limit - len(continuation)) :])
        pairs = zip(fitted, requests, strict=True)
        _warn_of_cuts(sum(len(kept) < len(context) for kept, (_, context, _) in pairs))
        return fitted

    def _rolling_windows(self, text: str) -> list[TokenRequest]:
        token_ids = self.tok_encode(text, add_special_tokens=False)
        limit = len(token_ids) + 1 if self.max_length is None else self.max_length
        windows = get_rolling_token_windows(
            token_list=token_ids,
            prefix_token=self.prefix_token_id,
            max_seq_len=max(limit - 1, 1),  # lm-eval does not count the token before the first
            context_len=1,
        )
        return [(None, *make_disjoint_window(window)) for window in windows]

    def _prompt(self, context: str, max_new_tokens: int) -> list[int]:
        token_ids = self.tok_encode(context) or [self.prefix_token_id]
        if self.max_length is None:
            return token_ids
        if max_new_tokens >= self.max_length:
            raise ValueError(
                f"max_gen_toks must leave room for context: the models read {self.max_length} "
                f"tokens, got {max_new_tokens}"
            )
        fitted = token_ids[-(self.max_length - max_new_tokens) :]
        _warn_of_cuts(len(fitted) < len(token_ids))
        return fitted

    def _seeds(self, contexts: Iterable[str]) -> list[int]:
        """One seed a request: other requests do not change it, a repeated one gets another."""
        counts: Counter[str] = Counter()
        seeds = []
        for context in contexts:
            key = f"{self.seed} {counts[context]} {context}".encode("utf-8", "surrogatepass")
            seeds.append(int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1)
            counts[context] += 1
        return seeds


def _grouped(keys: Iterable[Any]) -> list[tuple[Any, list[int]]]:
    """Indices of equal keys, in order of first appearance."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    return list(groups.items())


def _generation_settings(
    gen_kwargs: dict[str, Any], default_max_gen_toks: int
) -> tuple[int, dict[str, Any]]:
    """Number of tokens, and the decoder's other arguments, from a task's generation_kwargs."""
    settings = dict(normalize_gen_kwargs(gen_kwargs, default_max_gen_toks))
    max_new_tokens = int(settings.pop("max_gen_toks"))
    stop = tuple(text for text in settings.pop("until") if text)
    temperature = settings.pop("temperature", 1.0)
    if not settings.pop("do_sample"):
        temperature = 0.0
    if unknown := sorted(set(settings) - set(SAMPLING_SETTINGS)):
        raise ValueError(
            f"generation settings must be among {', '.join(SAMPLING_SETTINGS)}, got {unknown}"
        )
    fixed = {"temperature": temperature, "stop": stop}
    return max_new_tokens, {"repetition_penalty": 1.0, **settings, **fixed}


def _warn_of_cuts(num_cut: int) -> None:
    if num_cut:
        logger.warning("%d contexts were cut at the left to fit the models' context", num_cut)
