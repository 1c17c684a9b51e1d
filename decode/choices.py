"""What a caller chooses by name; imports nothing, so that a command line can offer it at once."""

from typing import Literal

LevelName = Literal["token", "byte"]
"""What is decoded and budgeted step by step."""

EngineName = Literal["auto", "eager", "device"]
"""Where steps run."""

Speculate = Literal["auto", "off"] | int
"""Tokens of a draft, as many as it is worth, or none."""
