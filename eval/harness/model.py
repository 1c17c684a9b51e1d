"""Anchored Decoding, or either model of a pair alone, as a model of lm-evaluation-harness."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from ...decode.decoder import Decoder
from ...decode.engine.prompts import ratio_source
from ...decode.levels.chat import template_errors
from ...durable_files import text_sha256
from ...identities import check_same
from ..recorded_texts import grouped
from .arguments import Fitting, generation_settings, pair_arguments, process_group
from .comparison import settings_identity
from .tasks import lm_eval_needed

with lm_eval_needed():
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import simple_parse_args_string

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CacheHook

logger = logging.getLogger(__name__)

LogLikelihood = tuple[float, bool]
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]

LINE_END = ord("\n")
BLOCK_BATCHES = 16
"""Batches of requests between two entries in lm-eval's cache."""
CACHED_FOR = "anchored"
"""Key in lm-eval's cache of all that decides the answers there but their requests."""


class AnchoredLM(TemplateLM):
    """Answers lm-eval's three kinds of request with one decoder. Every request is one generation:
    its prefix debt comes from its context alone, its horizon is the length of its continuation (so
    K = k * length), and its answer does not depend on the other requests. Warpers are off unless a
    task sets them. Under torchrun lm-eval divides the documents over the processes, each with its
    pair."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_gen_toks: int = 256,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """max_gen_toks: tokens to generate if a task sets no number; seed: of all sampling. group:
        the processes that share the requests; by default this one alone."""
        super().__init__()
        self.decoder, self._group = decoder, group
        if group is not None:
            self._rank, self._world_size = group.rank(), group.size()
        self._device = torch.device("cpu")  # of gathered tensors
        self._deals_in_bytes = decoder.level.name == "byte"
        self._fitting = Fitting(decoder.level)
        decoded = "safe" if decoder.level.compares_models else "risky"  # whose tokens are drawn
        self.tokenizer = decoder.pair.tokenizers[decoded]
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
        """A model from settings by name: safe and risky, model folders or Hub ids; the options of
        `PairOptions`, those of bytes with the prefix byte_; max_gen_toks and seed; others are
        settings of the rule. batch_size: lm-eval's default of 1 counts as "auto", which is 16;
        batch_size=1 here is meant. additional_config: lm-eval's batch_size, max_batch_size and
        device, which the settings override. Raises ValueError for a missing or unknown setting."""
        pair, counts = pair_arguments(arg_dict, additional_config or {})
        return cls(pair.decoder(), group=process_group(), **counts)

    def set_cache_hook(self, cache_hook: "CacheHook") -> None:
        """Keep answers in lm-eval's cache, whose keys name no model. Raises ValueError for a cache
        of answers that other models or settings gave."""
        kept = cache_hook.dbdict
        if kept is not None:
            ours = self._identity()
            check_same(
                kept.get(CACHED_FOR, {}) if len(kept) else ours,
                ours,
                Path(kept.filename),
                advice="restore them, or name another file",
            )
            kept[CACHED_FOR] = ours
        super().set_cache_hook(cache_hook)

    def _identity(self) -> dict[str, Any]:
        """All that decides an answer but its request, without paths."""
        rule = self.decoder.rule
        return {
            "rule": {"name": rule.name, **settings_identity(rule.settings())},
            "seed": self.seed,
            "max_gen_toks": self.max_gen_toks,
            **ratio_source(self.decoder.level),
        }

    # lm-eval calls the next three if there are several processes.

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """(world_size, ...) tensors of one shape, one of each process, by rank."""
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(gathered, tensor, group=self._group)
        return torch.stack(gathered)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all processes by rank, on process `dst`; None on the others."""
        gathered = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, gathered, dst=dst, group=self._group)
        return gathered

    def barrier(self) -> None:
        """Wait for all processes."""
        dist.barrier(group=self._group)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The replacement of an empty context: begin of text, else end; of bytes a line end."""
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
        """The decoder's size, which lm-eval prints with the requested one."""
        return {0: self.decoder.batch_size}

    @property
    def tokenizer_name(self) -> str:
        """The name under which lm-eval keeps requests, which a chat template may have made."""
        if self._deals_in_bytes:
            return "bytes"
        name = str(self.tokenizer.name_or_path).replace("/", "__")
        return f"{name}-{text_sha256(self._template() or '')[:12]}"

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A chat as text, by the safe model's template, or the risky one's if that has none.
        Special tokens have the safe model's names. Raises ValueError without a template, if it
        refuses the chat, and at byte level, whose texts have no special tokens."""
        template = self._checked_template()
        with template_errors():
            text = self.tokenizer.apply_chat_template(
                chat_history,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template of `apply_chat_template` itself, which lm-eval keeps with its results."""
        return self._checked_template() if chat_template else None

    def _checked_template(self) -> str:
        if self._deals_in_bytes:
            raise ValueError(
                "chats need the token level: templates hold special tokens, which are no bytes"
            )
        if (template := self._template()) is None:
            raise ValueError("neither model's tokenizer has a chat template")
        return template

    def _template(self) -> str | None:
        for tokenizer in (self.tokenizer, *self.decoder.pair.chat_tokenizers.values()):
            if tokenizer.chat_template:
                return self._renamed(tokenizer)
        return None

    def _renamed(self, other: PreTrainedTokenizerFast) -> str:
        """Another tokenizer's template with this one's names of its special tokens."""
        template = str(other.get_chat_template())
        if not self.decoder.level.compares_models or other is self.tokenizer:
            return template
        for token_id, token in other.added_tokens_decoder.items():
            if self.decoder.pair.has_token(token_id):
                name = str(self.tokenizer.convert_ids_to_tokens(token_id))
                template = template.replace(token.content, name)
        return template

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids; with None, special tokens are added unless the text has some. At byte
        level, where there are none, the bytes."""
        if self._deals_in_bytes:
            return self.decoder.level.encode_continuation(string)
        if add_special_tokens is None:
            bos_token = self.tokenizer.bos_token
            add_special_tokens = not (bos_token and string.startswith(bos_token))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def loglikelihood(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[LogLikelihood]:
        """`_loglikelihood_tokens` of (context, continuation); ValueError for one without either."""
        for number, request in enumerate(requests):
            if request.args == ("", ""):
                raise ValueError(f"request {number} has neither a context nor a continuation")
        return list(super().loglikelihood(requests, disable_tqdm=disable_tqdm))

    def _loglikelihood_tokens(
        self, requests: Sequence[TokenRequest], disable_tqdm: bool = False, **_: Any
    ) -> list[LogLikelihood]:
        """log p*(continuation | context) in nats, and whether greedy decoding would write it."""
        contexts = self._fitted_contexts(requests)
        answers: dict[int, LogLikelihood] = {}
        with self._bar("loglikelihood", len(requests), disable_tqdm) as bar:
            for block in self._blocks(contexts):
                targets = [requests[i][2] for i in block]
                scores = self.decoder.score(
                    [contexts[i] for i in block], targets, horizon=[len(t) for t in targets]
                )
                for i, score in zip(block, scores, strict=True):
                    if score.error:
                        raise ValueError(f"request {i} cannot be scored: {score.error}")
                    answers[i] = (score.log_prob, score.is_greedy)
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
                bar.update(len(block))
        return [answers[i] for i in range(len(requests))]

    def loglikelihood_rolling(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[float]:
        """log p* of whole texts, in nats, each after a begin-of-text token. A text longer than the
        models' context is cut into windows, each with a context and a budget. As in lm-eval's
        models, special tokens that the tokenizer puts before a text are scored too."""
        windows = [
            [(None, *split) for split in self._fitting.windows(tokens, self.prefix_token_id)]
            for tokens in (self.tok_encode(request.args[0]) for request in requests)
        ]
        answers = iter(self._loglikelihood_tokens(list(chain(*windows)), disable_tqdm=disable_tqdm))
        totals = []
        for request, splits in zip(requests, windows, strict=True):
            totals.append(sum((log_prob for log_prob, _ in islice(answers, len(splits))), 0.0))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """Continuations up to a stop text; greedy (and then uncertified) unless a task samples.
        Sampled texts follow from the seed, the context and how often it was asked before."""
        texts: dict[int, str] = {}
        seeds = self._seeds([request.args[0] for request in requests])
        with self._bar("generate", len(requests), disable_tqdm) as bar:
            alike = grouped(range(len(requests)), lambda i: repr(requests[i].args[1]))
            for group in alike.values():
                max_new_tokens, settings = generation_settings(
                    requests[group[0]].args[1], self.max_gen_toks
                )
                generations = self.decoder.generate_each(
                    self._prompts([requests[i].args[0] for i in group], max_new_tokens),
                    max_new_tokens=max_new_tokens,
                    seed=[seeds[i] for i in group],
                    **settings,
                )
                for index, generation in generations:
                    i = group[index]
                    if generation.error:
                        raise ValueError(f"request {i} cannot be generated: {generation.error}")
                    texts[i] = generation.text
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                    bar.update()
        return [texts[i] for i in range(len(requests))]

    def _bar(self, title: str, total: int, is_off: bool) -> tqdm:
        return tqdm(total=total, desc=title, disable=is_off or self.rank != 0)

    def _blocks(self, contexts: Sequence[list[int]]) -> Iterable[list[int]]:
        """Indices in blocks of several batches, longest first, so that a lack of memory shows soon.
        Equal contexts are neighbors: a decoder reads them once."""
        ordered = sorted(range(len(contexts)), key=lambda i: (-len(contexts[i]), contexts[i]))
        size = BLOCK_BATCHES * self.decoder.batch_size
        return (ordered[start : start + size] for start in range(0, len(ordered), size))

    def _fitted_contexts(self, requests: Sequence[TokenRequest]) -> list[list[int]]:
        """Contexts cut at the left so that each fits the models together with its continuation. An
        empty or blank one, whose spaces lm-eval counts to the continuation, is the prefix."""
        whole = [context or [self.prefix_token_id] for _, context, _ in requests]
        fitted = []
        for number, (strings, _, continuation) in enumerate(requests):
            if not continuation:
                raise ValueError(
                    f"the continuation of {strings} has no token: it merges into the last token "
                    "of the context"
                )
            try:
                fitted.append(self._fitting.scored(whole[number], continuation))
            except ValueError as error:
                raise ValueError(f"request {number}: {error}") from None
        _warn_of_cuts(whole, fitted)
        return fitted

    def _prompts(self, contexts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
        """Contexts as symbols, cut at the left so that each leaves room for the new tokens."""
        whole = [self.tok_encode(context) or [self.prefix_token_id] for context in contexts]
        fitted = [self._fitting.prompt(symbols, max_new_tokens) for symbols in whole]
        _warn_of_cuts(whole, fitted)
        return fitted

    def _seeds(self, contexts: Iterable[str]) -> list[int]:
        """One seed per request: other requests do not change it, a repeated one gets another."""
        counts: Counter[str] = Counter()
        seeds = []
        for context in contexts:
            key = f"{self.seed} {counts[context]} {context}".encode("utf-8", "surrogatepass")
            seeds.append(int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1)
            counts[context] += 1
        return seeds


def _warn_of_cuts(whole: Sequence[list[int]], fitted: Sequence[list[int]]) -> None:
    num_cut = sum(len(a) > len(b) for a, b in zip(whole, fitted, strict=True))
    if num_cut:
        logger.warning("%d contexts were cut at the left to fit the models' context", num_cut)
