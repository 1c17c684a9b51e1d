"""The parts of gpu-check; torch is not imported here."""

from typing import Literal, get_args

Part = Literal["correctness", "speed", "decode", "vllm"]
PARTS: tuple[Part, ...] = get_args(Part)

PART_S = 520.0
"""Seconds of a part, its compilations among them."""
