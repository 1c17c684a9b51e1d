"""What `torch.cuda` has where its device is not there: streams, events, captures, properties."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fake_cuda_graph import Graph

DEVICE = torch.device("cuda:0")
TOTAL_MEMORY = 141 << 30


class Stream:
    """A queue whose work is done at once; a capture asks who has waited for whom."""

    def __init__(self, fake: Any) -> None:
        self._fake, self.device = fake, DEVICE

    def wait_stream(self, other: "Stream") -> None:
        """What is given to this stream from here on runs behind the other's work."""
        if self._fake.capture is not None:
            self._fake.capture.join(self, other)

    def synchronize(self) -> None:
        """The host waits."""
        self._fake.wait("synchronize")


class Event:
    """A moment between two operations, of which a millisecond passes."""

    def __init__(self, **_: object) -> None:
        pass

    def record(self, stream: Stream | None = None) -> None:
        """Nothing: everything is done."""

    def synchronize(self) -> None:
        """Nothing: everything is done."""

    def elapsed_time(self, end: "Event") -> float:
        return 1.0


def cuda_names(device: Any) -> dict[str, Any]:
    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, device.stream = device.stream, stream
        try:
            yield
        finally:
            device.stream = before

    @contextmanager
    def captured(graph: Graph, **_: Any) -> Iterator[None]:
        assert device.capture is None, "a capture inside a capture"
        device.capture = graph
        try:
            with on(Stream(device)):
                graph.begin(device.stream)
                yield
                graph.end()
        finally:
            device.capture = None

    def set_sync_debug_mode(mode: str) -> None:
        device.sync_debug_mode = mode

    return {
        "_lazy_init": lambda: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "get_device_properties": lambda *_: device.properties,
        "get_device_name": lambda *_: device.properties.name,
        "get_device_capability": lambda *_: (device.properties.major, device.properties.minor),
        "mem_get_info": lambda *_: (TOTAL_MEMORY - (1 << 30), TOTAL_MEMORY),
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: device.num_bytes,
        "graph_pool_handle": lambda: (0, 0),
        "reset_peak_memory_stats": lambda *_: None,
        "manual_seed_all": lambda seed: None,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: device.wait("synchronize"),
        "set_sync_debug_mode": set_sync_debug_mode,
        "is_current_stream_capturing": lambda: device.capture is not None,
        "Stream": lambda *_, **__: Stream(device),
        "Event": Event,
        "stream": on,
        "current_stream": lambda *_: device.stream,
        "CUDAGraph": lambda *_, **__: Graph(device),
        "graph": captured,
    }
