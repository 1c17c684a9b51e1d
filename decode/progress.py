"""A bar that shows how many requests have ended and how fast tokens come."""

import time
from collections.abc import Iterator

from tqdm.auto import tqdm

from .request import RequestState


def with_bar(
    states: Iterator[RequestState], total: int, progress: bool | str, symbol: str = "token"
) -> Iterator[RequestState]:
    """Pass the states through.

    progress: the bar's title, True for "generate", False for none. symbol: what is counted.
    """
    title = progress if isinstance(progress, str) else "generate"
    start, num_symbols = time.perf_counter(), 0
    with tqdm(total=total, desc=title, unit="prompt", disable=not progress) as bar:
        for state in states:
            num_symbols += len(state.steps)
            symbols_per_s = num_symbols / (time.perf_counter() - start)
            bar.set_postfix_str(f"{symbols_per_s:.0f} {symbol}s/s", refresh=False)
            bar.update()
            yield state
