"""A pair inside vLLM next to the Decoder: the same tokens, and ledgers that verify."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from embedded_server import saved

import anchored
from anchored import Anchored, Decoder, Generation, ModelPair, Pathwise, verify
from anchored.decode.engine.request import Request
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.admission import parameters
from anchored.tools.bench.inputs import ordinary_words, random_pair

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRITON_F32_DEFAULT": "ieee",  # attention in TF32 would draw other tokens than the Decoder
}
ENGINE = {
    "dtype": "float32",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "gpu_memory_utilization": 0.3,
    "disable_log_stats": False,
}
"""Prompts are read in chunks, requests wait for others; graphs and scheduling as by default."""
REQUESTS_PER_EVENT = 20
KL = Anchored(k=1.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Events that befall requests besides being drawn."""

    rule: Anchored | Pathwise = KL
    engine: dict[str, Any] = field(default_factory=dict)
    num_drafts: int = 0
    lengths: tuple[int, ...] = (1, 5, 12, 30)
    event: str = ""
    """vLLM's counter of what must happen once in REQUESTS_PER_EVENT requests; "" for nothing."""


DRAFTS = "vllm:spec_decode_num_accepted_tokens"
FEW_BLOCKS: dict[str, Any] = {
    "engine": {"num_gpu_blocks_override": 18, "enable_prefix_caching": False},
    "lengths": (30, 60),
    "event": "vllm:num_preemptions",
}
KINDS = {
    "mixed requests": Kind(),
    "drafts": Kind(num_drafts=2, event=DRAFTS),
    "preemptions": Kind(**FEW_BLOCKS),
    "pathwise, drafts": Kind(rule=Pathwise(), num_drafts=4, event=DRAFTS),
    "pathwise, preemptions": Kind(rule=Pathwise(), **FEW_BLOCKS),
    # 1 to 3 tokens: slots are taken and left at every step, and most budgets are not yet free.
    "short requests": Kind(lengths=(1, 1, 2, 3)),
}


def assert_same_as_decoder(
    name: str,
    root: Path,
    device: torch.device,
    *,
    shapes: tuple[str, str],
    vocab_size: int,
    num_requests: int,
    num_apart: int,
) -> None:
    """Tokens of mixed requests are the Decoder's on the same device, and all ledgers verify.

    root: takes models and ledgers. num_apart: requests that may differ, as models are in float32
    and a boundary of the sampler may be decided by rounding.
    """
    kind = KINDS[name]
    made = random_pair(
        *shapes,
        vocab_size=vocab_size,
        context_length=256,
        dtype=torch.float32,
        initializer_range=0.06,  # budgets bind, and no attention is sharp
    )
    folders = saved(made, root)
    pair = ModelPair.from_pretrained(*folders, dtype="float32", device=str(device))
    requests = mixed_requests(
        pair.tokenizer,
        ordinary_words(vocab_size),
        num_requests,
        stop="7",
        lengths=kind.lengths,
        rule=kind.rule,
    )
    arguments = {**ENGINE, **kind.engine, "enforce_eager": device.type == "cpu"}
    if kind.num_drafts:
        arguments["speculative_config"] = {
            "model": str(folders[0]),
            "method": "draft_model",
            "num_speculative_tokens": kind.num_drafts,
        }
    journal = root / "journal"
    with opened(folders, rule=kind.rule, ledgers=journal, **arguments) as decoder:
        ended = run(decoder.llm, requests)
        metrics = decoder.llm.get_metrics()
    num_events = sum(each.value for each in metrics if each.name == kind.event)
    if kind.event:
        assert num_events >= max(1, num_requests // REQUESTS_PER_EVENT)
    assert len(ended) == num_requests
    check_texts(requests, ended, pair, journal, num_apart=num_apart)


def check_texts(
    requests: list[MixedRequest],
    ended: dict[int, list[int]],
    pair: ModelPair,
    journal: Path,
    *,
    num_apart: int = 0,
) -> None:
    """Tokens are the Decoder's but for some texts, and all ledgers of the journal verify."""
    apart = [n for n, tokens in ended.items() if requests[n].decoded(pair).token_ids != tokens]
    assert len(apart) <= num_apart, apart
    ledgers = dict(journal_ledgers(journal))
    assert {str(index) for index in ended} <= ledgers.keys()
    gives_back = any(step.spend < 0.0 for ledger in ledgers.values() for step in ledger.steps)
    assert gives_back is (requests[0].rule.name == "pathwise")
    assert all(ledger.certified and ledger.is_within_bound for ledger in ledgers.values())
    reports = verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []


@contextmanager
def opened(folders: tuple[Path, Path], **arguments: Any) -> Iterator[Any]:
    """A decoder inside vLLM; the engine's processes and its memory are gone afterwards."""
    os.environ.update(ENVIRONMENT)
    from vllm.distributed import cleanup_dist_env_and_memory

    decoder = anchored.vllm.open_pair(*folders, **arguments)
    try:
        yield decoder
    finally:
        decoder.llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedRequest:
    """One request, for both engines."""

    prompt: list[int]
    max_tokens: int
    seed: int
    rule: Anchored | Pathwise
    sampling: dict[str, Any]
    stop: tuple[str, ...]

    def params(self, name: str) -> Any:
        """vLLM's SamplingParams, by which the journal names it so."""
        request = Request(
            prompt_token_ids=self.prompt,
            max_new_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop,
        )
        sampling, stop = SamplingConfig(**self.sampling), list(self.stop)
        return parameters(request, self.rule, sampling, name=name, stop=stop)

    def decoded(self, pair: ModelPair) -> Generation:
        """The Decoder's answer to it, alone."""
        settings = {"max_new_tokens": self.max_tokens, "seed": self.seed, "stop": self.stop}
        decoder = Decoder(pair, self.rule, level="token")
        (result,) = decoder.generate([self.prompt], **settings, **self.sampling)
        return result


def mixed_requests(
    tokenizer: Any,
    words: Sequence[str],
    count: int,
    *,
    stop: str,
    lengths: Sequence[int] = (1, 5, 12, 30),
    rule: Anchored | Pathwise = KL,
) -> list[MixedRequest]:
    """Requests of every kind, the same ones every time; a third of them have a prefix in common.

    words: of the prompts. stop: of every sixth request. lengths: to choose max_tokens from. rule:
    of the engine, whose numbers requests change.
    Prompts end with whole characters: where they do not, vLLM's text begins with the rest of one.
    """
    rng = random.Random(5)

    def prompt(most: int) -> list[int]:
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, most)))
        return tokenizer(text)["input_ids"][:most]

    shared = prompt(70)
    requests = []
    for number in range(count):
        unshared, length = prompt(60), rng.choice(lengths)
        k = rng.choice([0.0, 0.05, 0.3, 1.0, 3.0, 6.0])
        changes: dict[str, Any] = {"k": k}
        if rule.name == "pathwise":
            changes["bank"] = rng.choice([0.0, 0.5, 4.0, 20.0])
        elif number % 4 == 1:
            changes = {"k": None, "K": k * length}
        elif number % 5 == 2:
            changes["divergence"] = "max"
        truncations: list[dict[str, float]] = [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02}]
        requests.append(
            MixedRequest(
                prompt=(shared + unshared[1:]) if number % 3 == 0 else unshared,
                max_tokens=length,
                seed=rng.getrandbits(40),
                rule=replace(rule, **changes),
                sampling={
                    "temperature": rng.choice([0.7, 1.0, 1.3]),
                    "repetition_penalty": rng.choice([1.0, 1.2]),
                    **rng.choice(truncations),
                },
                stop=(stop,) if number % 6 == 4 else (),
            )
        )
    return requests


def run(llm: Any, requests: list[MixedRequest], *, abort_at: int = 0) -> dict[int, list[int]]:
    """The tokens of the requests that ended by themselves, by index; abort_at: the step of the
    engine at which two are aborted."""
    engine, step, ended = llm.llm_engine, 0, {}
    live = {str(index) for index in range(len(requests))}
    for name, request in enumerate(requests):
        prompt = {"prompt_token_ids": request.prompt}
        engine.add_request(str(name), prompt, request.params(str(name)))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished and output.request_id in live:
                live.remove(output.request_id)
                ended[int(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
        if step == abort_at:
            names = sorted(live)[:2]
            engine.abort_request(names, internal=False)
            live -= set(names)
    return ended
