"""Sizes of real models, and of small ones in their manner."""

from typing import Literal

Shape = Literal["tinycomma-1.8b", "llama-8b", "llama-70b", "medium", "small", "tiny"]
LLAMA_3_VOCAB_SIZE = 128_256
SHAPES: dict[str, dict[str, int]] = {
    # hidden, feed-forward, layers, query heads, key-value heads
    "tinycomma-1.8b": dict(hidden=2048, feed=5632, layers=24, heads=32, kv_heads=32),
    "llama-8b": dict(hidden=4096, feed=14336, layers=32, heads=32, kv_heads=8),
    "llama-70b": dict(hidden=8192, feed=28672, layers=80, heads=64, kv_heads=8),
    "medium": dict(hidden=1024, feed=2816, layers=12, heads=16, kv_heads=16),
    "small": dict(hidden=256, feed=704, layers=4, heads=4, kv_heads=4),
    "tiny": dict(hidden=128, feed=352, layers=2, heads=4, kv_heads=4),
}
