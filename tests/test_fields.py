"""Values of files and of callers are converted to a field's type, or refused by name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from anchored import Anchored, CPFuse, MemFree, Pathwise, TokenSwap
from anchored.decode.settings import SamplingConfig
from anchored.fields import (
    INT_LIMIT,
    check_fields,
    checked_nats,
    checked_seed,
    converted,
    field_error,
    from_record,
)

NO_NUMBERS = [True, np.bool_(True), torch.tensor(True), "2", None, [2], torch.tensor([2]), 2j]
NOT_WHOLE = [*NO_NUMBERS, 2.0, np.float64(2.0), INT_LIMIT, -INT_LIMIT]


def test_a_callers_numbers_become_plain_ones():
    two = (np.int64(2), torch.tensor(2), np.array(2), 2)
    for value in (np.float32(0.5), torch.tensor(0.5), np.array(0.5), 0.5, *two):
        number = converted("n", value, float)
        assert number == value and type(number) is float
    for value in two:
        assert converted("n", value, int) == 2 and type(converted("n", value, int)) is int
    assert converted("flag", np.bool_(True), bool) is True
    assert type(converted("text", np.str_("a"), str)) is str
    assert converted("k", None, float | None) is None


@pytest.mark.parametrize(
    ("kind", "values", "allowed"),
    [
        (float, [*NO_NUMBERS, 10**400], "a number"),
        (int, NOT_WHOLE, "a whole number"),
        (bool, [1, "True", None], "true or false"),
        (str, [b"a", 5, None], "text"),
        (list[str], ["text", 5, None], "a list of texts"),
        (Literal["token", "byte"], ["word", 5, ["token"]], "one of token, byte, got "),
    ],
)
def test_a_callers_value_of_another_type_is_refused_with_its_name(kind, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=rf"^heat must be {allowed}"):
            converted("heat", value, kind)


def test_a_list_of_a_caller_may_be_any_iterable_of_its_items():
    assert converted("words", ("a", np.str_("b")), list[str]) == ["a", "b"]
    with pytest.raises(ValueError, match=r"^words\[1\] must be text, got 5$"):
        converted("words", ["a", 5], list[str])
    with pytest.raises(ValueError, match="cannot be written as UTF-8: character 1 is a lone"):
        converted("words", ["a\ud800"], list[str])


def test_nats_are_within_what_sums_hold_exactly_and_a_seed_fits_a_tensor():
    for value in (-1, 2.0**20 + 1, np.float32("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^k must be in \[0, 1048576\] nats, got "):
            checked_nats("k", value)
    for value in (-1, INT_LIMIT):
        with pytest.raises(ValueError, match=r"^seed must be in \[0, 2\*\*63\), got "):
            checked_seed(value)


@dataclass(frozen=True)
class Part:
    path: Path
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    name: str
    seeds: tuple[int, ...] = (0,)
    parts: tuple[Part, ...] = ()
    k: float | None = None
    level: Literal["token", "byte"] | int = "token"
    only: Part | None = None


def test_a_table_becomes_the_dataclass_with_paths_and_tuples():
    table = {"name": "a", "seeds": [1, 2], "parts": [{"path": "p", "weights": {"w": 1}}], "k": 2}
    part = Part(Path("p"), {"w": 1})
    made = from_record(Whole, {**table, "only": {"path": "p"}, "level": 3})
    assert made == Whole("a", (1, 2), (part,), 2, 3, Part(Path("p")))
    assert type(made.k) is int  # a number of a file stays as it is
    assert field_error(Whole, {"name": "a", "k": None}) == ""
    assert field_error(Whole, {"k": 1.0}) == "field name is missing"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": 1}, "unknown key seed (did you mean seeds?)"),
        ({"a b": 1}, "unknown key 'a b'"),
        ({"seeds": 3}, "key seeds must be a list of whole numbers, got 3"),
        ({"seeds": [10**30]}, "key seeds[0] must be a whole number of 64 bits, got 1"),
        ({"parts": {"path": "p"}}, "key parts must be a list of tables, got {'path': 'p'}"),
        ({"parts": [{}]}, "key parts[0].path is missing"),
        ({"level": "word"}, "key level must be one of token, byte or a whole number, got 'word'"),
    ],
)
def test_a_wrong_table_is_refused_by_the_dotted_name_of_its_key(values, message):
    with pytest.raises(ValueError) as refusal:
        from_record(Whole, {"name": "a", **values}, "key ")
    assert str(refusal.value).startswith(message)


@dataclass(frozen=True)
class Options:
    k: float = 1.0
    words: list[str] = field(default_factory=list)
    token_ids: dict[str, int] | None = field(default=None, init=False)


def test_the_fields_of_options_are_converted_in_place():
    options = Options(k=np.int64(2), words=("a",))
    check_fields(options)
    assert (options.k, options.words, options.token_ids) == (2.0, ["a"], None)
    assert type(options.k) is float


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Anchored(), "give either k or K"),
        (lambda: Anchored(k=1.0, debt_window=0), "debt_window must be >= 1, got 0"),
        (lambda: Pathwise(bank=2.0**21), r"bank must be in \[0, 1048576\] nats, got 2097152.0"),
        (lambda: MemFree(), "MemFree needs passages, a corpus or both"),
        (lambda: MemFree(passages=[], corpus_sha256="0"), "corpus_sha256 is that of a corpus"),
        (lambda: MemFree(passages=["a"], n=1001), r"n must be in \[1, 1000\], got 1001"),
        (lambda: CPFuse(grid_size=101), r"grid_size must be in \[2, 100\], got 101"),
        (lambda: TokenSwap(words=[]), "words must be a list of at least one word"),
        (lambda: SamplingConfig(repetition_penalty=0), "repetition_penalty must be > 0, got 0"),
        (lambda: SamplingConfig(top_p=1.9), r"top_p must be in \(0, 1\], got 1.9"),
        (lambda: SamplingConfig(min_p=1), r"min_p must be in \[0, 1\), got 1"),
    ],
)
def test_a_rule_and_warpers_refuse_what_their_ledger_could_not_hold(make, message):
    with pytest.raises(ValueError, match=message):
        make()
