"""What a step at level byte spends its time on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from statistics import fmean
from typing import Any
from unittest.mock import patch

from anchored import Anchored, Decoder, PromptCache
from anchored.decode.byte.byte_row import ByteRow
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.tree_cache import TreeBackbone
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.streams.row_stream import ModelRunner

from .inputs import BenchInputs
from .options import BenchDecodeConfig
from .timing import CLOCKS, Clock, deviation, in_turns

STEP = "rest"
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "forwards": ((TreeBackbone, "forward"), (ModelRunner, "logits")),
    "trees": ((ByteStream, "feed_rows"),),
    "distributions": ((ByteStream, "_add_distributions"), (ByteRow, "log_probs")),
    "projection": ((PairedBatch, "_draw"),),
    "ledger": ((PairedBatch, "_bank"), (PairedBatch, "_release")),
    STEP: ((PairedBatch, "step"),),
}
"""The calls of each part; what one spends in calls of another part is the other's."""
TITLES = ("", "batch", "step ms", "error", *PARTS, "host", "error")
WIDTH = 15


class Parts:
    """Seconds of each part within steps, and their number, while `watched`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inner: list[float] = []
        """Seconds of calls within each call that goes on, the step first."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.num_steps = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the calls of all parts."""
        with ExitStack() as stack:
            for part, calls in PARTS.items():
                for owner, name in calls:
                    timed = self._timed(part, getattr(owner, name))
                    stack.enter_context(patch.object(owner, name, timed))
            yield

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            if not self._inner and part != STEP:  # of a prompt
                return call(*args, **options)
            self._inner.append(0.0)
            start = self._clock()
            result = call(*args, **options)
            seconds = self._clock() - start
            self.seconds[part] += seconds - self._inner.pop()
            self.num_steps += part == STEP
            if self._inner:
                self._inner[-1] += seconds
            return result

        return timed


def rows(inputs: BenchInputs, config: BenchDecodeConfig, size: int) -> Iterator[tuple[str, ...]]:
    """The row of a batch size: means over the runs, and deviations between them."""
    rule = Anchored(k=config.k, debt="none")
    no_cache = PromptCache(max_bytes=0)
    decoder = Decoder(inputs.pair, rule, level="byte", batch_size=size, prompt_cache=no_cache)
    prompts = inputs.prompts(size, config.prompt_length, config.level)

    def a_step() -> dict[str, float]:
        parts = Parts(CLOCKS[config.clock])
        with parts.watched():
            decoder.generate(prompts, max_new_bytes=config.new_length)
        return {part: 1e3 * s / parts.num_steps for part, s in parts.seconds.items()}

    runs = in_turns({"": a_step}, config.runs)[""]
    steps = [sum(run.values()) for run in runs]
    num_read = size * len(rule.streams)  # bytes of a step, once for each model
    hosts = [(run["trees"] + run["distributions"]) / num_read for run in runs]
    yield (
        "anchored",
        str(size),
        *(f"{ms:.2f}" for ms in (fmean(steps), deviation(steps))),
        *(f"{fmean(run[part] for run in runs):.2f}" for part in PARTS),
        *(f"{ms:.3f}" for ms in (fmean(hosts), deviation(hosts))),
    )
