"""The figures that we set out to reach, beside what was measured here."""

from collections.abc import Mapping
from typing import Any

from .byte_decoding import PREFETCHES
from .speed import TARGET_US

NOT_MEASURED = "not measured"


def goal_rows(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(figure, goal, what was measured or "not measured"), of results by part."""
    rows = [
        (
            f"projection and draw, batch {batch_size}, V = 128,256, bf16",
            f"<= {target_us:.0f} us",
            _figure(results, "speed", "step_us", "us", bench="kernel", batch_size=batch_size),
        )
        for batch_size, target_us in TARGET_US.items()
    ]
    rows.append(("the same on a CPU, batch 4, against the official one", ">= 3x", NOT_MEASURED))
    for batch_size in (1, 4):
        pair = {"bench": "decode", "batch_size": batch_size, "engine": "device"}
        rows += [
            (f"8B + 1.8B, batch {batch_size}, against the official one", ">= 8x", NOT_MEASURED),
            (
                f"8B + 1.8B, batch {batch_size}, share of the memory bandwidth",
                ">= 0.75",
                _figure(results, "decode", "over_bandwidth", "", **pair),
            ),
        ]
    return [
        *rows,
        ("pretraining TinyComma, share of the peak FLOPs", ">= 0.5", NOT_MEASURED),
        ("pretraining TinyComma, tokens/s a GPU", ">= 48,600", NOT_MEASURED),
        *_byte_rows(results),
    ]


def _byte_rows(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    first = {
        debt: _figure(results, "decode", "over_none", "x", bench="first byte", debt=debt)
        for debt in ("exact", "bounded")
    }
    work = {"bench": "byte work", "prefetch": PREFETCHES[-1]}
    forwards = _figure(results, "speed", "risky_forwards_per_token", "", **work)
    return [
        ("first byte with an exact prefix debt, against without", "<= 5x", first["exact"]),
        ("first byte with a bounded one, against without", "<= 1.5x", first["bounded"]),
        ("risky forwards a token at byte level, with guesses", "about 1", forwards),
    ]


def _figure(results: Mapping[str, Any], part: str, figure: str, unit: str, **wanted: object) -> str:
    """The first such row's, the KL divergence's where there are two."""
    for row in results.get(part, ()):
        if all(row.get(name) == value for name, value in wanted.items()):
            return f"{row[figure]:.3g} {unit}".rstrip()
    return NOT_MEASURED
