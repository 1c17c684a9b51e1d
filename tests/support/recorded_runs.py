"""A run's folder made up by hand: four settings, two prompts, ledgers of three steps."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from json_lines import write_json_lines

from anchored import Ledger, PromptRatios
from anchored.decode.ledger import LedgerHeader, LedgerStep
from anchored.decode.rules.budget import prompt_digest
from anchored.eval.copying.metrics import METRICS
from anchored.eval.recorded_texts import file_name

HOSTILE = "</script><img onerror=alert(1) src=x>$x_{&%"
"""In the names of a setting, a work and a domain, and in texts."""
DOMAINS = {"a": "books", "b": "news"}
DEBTS = {"a": 1.0, "b": 3.0}
SPENDS = [0.0, 0.25, 0.5]
Row = dict[str, Any]


def record_run(folder: Path, *, measured: bool = True, ledgers: bool = True) -> Path:
    """Write it; without its measurements, or its ledgers, where asked for."""
    settings = {"p_s": None, "k=1": 1.0, f"k=2 {HOSTILE}": 2.0, "p_r": None}
    prompts = [
        {"id": name, "title": HOSTILE, "prompt": HOSTILE, "reference": HOSTILE, "domain": domain}
        for name, domain in DOMAINS.items()
    ]
    write_json_lines(folder / "prompts.jsonl", prompts)
    copying = []
    for setting, k in settings.items():
        rows = []
        for place, prompt in enumerate(DOMAINS):
            path = folder / "ledgers" / file_name(setting) / f"{prompt}-0.jsonl"
            ledger = _ledger(setting, k, prompt)
            if ledgers:
                path.parent.mkdir(parents=True, exist_ok=True)
                ledger.save(path)
            rows.append(_row(prompt, path.relative_to(folder).as_posix(), ledger))
            copying.append(_copying(setting, prompt, place))
        write_json_lines(folder / "generations" / f"{file_name(setting)}.jsonl", rows)
    if ledgers:
        ratios = {prompt_digest([1, 2, 3, ord("a")]): torch.tensor([-1.0, 0.5, 2.0]).double()}
        PromptRatios({}, ratios).save(folder / "prompt_ratios.safetensors")
    if measured:
        (folder / "measurements").mkdir()
        results = {
            "schema": "anchored-sweep/1",
            "rows": [*map(_result, settings.items())],
            "environment": {"git_commit": "c" * 40, "packages": {"numpy": "2.1", "torchao": None}},
            "findings": [{"claim": "It holds", "holds": True, "figures": "1 of 2"}],
        }
        (folder / "results.json").write_text(json.dumps(results, indent=1))
        references = [{"id": name, "safe_log_prob": -2.0} for name in DOMAINS]
        (folder / "measurements/verbatim.json").write_text(json.dumps(references))
        for name, results in _evaluation(settings, copying).items():
            (folder / "evaluation").mkdir(exist_ok=True)
            (folder / f"evaluation/{name}.json").write_text(json.dumps(results))
    return folder


def _figure(mean: float, **more: Any) -> dict[str, Any]:
    """As JSON has a figure of one seed."""
    return {"mean": mean, "std": None, "num_seeds": 1, **more}


def _evaluation(settings: Iterable[str], copying: list[Row]) -> dict[str, Row]:
    """Results of each measure and judge, settings in another order. The risky model's texts could
    not be judged; of each other setting one request failed."""
    names = [*settings][::-1]
    half, grade = _figure(0.5), {"mean": 4.0, "std": 0.5, "num_seeds": 3}
    above = {name: {"6": 0.5, "20": 0.25, "50": 0.0} for name in ("share_above", "chance_above")}
    quantiles = {"word_lcs": {"0.5": 1, "0.9": 7, "0.99": 8, "1.0": 9}}
    whole = {
        "copying": {**above, "quantiles": quantiles, "num_samples": 1, "longest_of_samples": 4.0},
        "nonliteral": {"share": half, "mean_matched": half, "num_texts": 2, "num_with_debt": 1},
        "fluency": {"fluency": grade, "num_judged": 2, "num_empty": 0},
        "factuality": {
            **{"macro": half, "micro": 0.25, "claims_per_text": 2.0, "num_unscored": 0},
            **{"num_without_claims": 0, "num_failed_sentences": 1, "num_failed_claims": 1},
            "by_group": {"rare": {"macro": half}},
        },
        "win-rate": {
            **{"win_rate": 0.75, "interval": [0.5, 1.0], "num_compared": 2},
            "num_inconsistent": 0,
        },
        "answers": {"f1": half, "num_texts": 2},
    }
    judged = {"fluency": 4, "precision": 0.5, "score": 0.75, "f1": 0.5}
    rows = [{"setting": name, "id": id, **judged} for name in names for id in DOMAINS]
    results = {}
    for name, figures in whole.items():
        kind = "measure" if name in ("copying", "nonliteral", "answers") else "judge"
        settings = [{"setting": setting, "num_failed": 1, **figures} for setting in names]
        if kind == "judge":
            settings[0] |= dict.fromkeys(("fluency", "macro", "micro", "win_rate", "interval"))
        about = {kind: name, "config": {"comparator": ">", "num_characters": 3}}
        of_texts = copying if name == "copying" else rows
        results[name] = {**about, "settings": settings, "rows": of_texts}
    return results


def _ledger(setting: str, k: float | None, prompt: str) -> Ledger:
    rule = {"p_s": "safe_only", "p_r": "risky_only"}.get(setting, "anchored")
    nats = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}[prompt]
    spends = {"safe_only": [0.0] * 3, "risky_only": nats}.get(rule, SPENDS)
    header = LedgerHeader(
        rule=rule,
        rule_settings={"k": k, "debt": "top", "debt_window": 5, "budget": "adaptive"} if k else {},
        sampling={},
        seed=0,
        prompt_token_ids=[1, 2, 3, ord(prompt)],
        stop_token_ids=[],
        fingerprints={},
        dtype="float32",
        debt=DEBTS[prompt] if k else 0.0,
        k=k or 0.0,
        K=3 * (k or 0.0),
        horizon=3,
        bound=3 * k if k else (0.0 if rule == "safe_only" else math.inf),
    )
    figures = {"weight": 0.5, "log_prob": -1.0, "safe_log_prob": -1.5}
    steps = []
    for step, spend in enumerate(spends):
        figures |= {"accepted": rule == "safe_only" or step > 0, "budget": spend, "spend": spend}
        steps.append(LedgerStep(step=step, token_id=step, **figures))
    is_certified = rule != "risky_only"
    return Ledger(header=header, steps=steps, certified=is_certified, finish_reason="length")


def _row(prompt: str, path: str, ledger: Ledger) -> Row:
    bound = ledger.header.bound
    return {
        **{"id": prompt, "seed": 0, "text": f"the {HOSTILE} end", "ledger": path},
        "pieces": [["the ", True], [HOSTILE, False], [" end", True]],
        **{"debt": ledger.header.debt, "spent": ledger.spent, "finish_reason": "length"},
        "bound": bound if math.isfinite(bound) else None,
    }


def _copying(setting: str, prompt: str, place: int) -> dict[str, Any]:
    """p_r copies 2 and 8 words, the others 1 and 2."""
    words = (2, 8)[place] if setting == "p_r" else 1 + place
    span, accumulated = [4 + 8 * place, 0, words], words if words > 5 else 0
    row = {"setting": setting, "id": prompt, "seed": 0, "word_lcs": words, "char_lcs": 5 * words}
    row |= dict.fromkeys(("rouge1_f1", "rougeL_f1", "minhash"), 0.1 * words)
    row |= {"word_acs": accumulated, "word_lcs_span": span, "copied_characters": [[4, 9]]}
    return row | {"word_acs_spans": [span] if accumulated else []}


def _result(item: tuple[str, float | None]) -> dict[str, Any]:
    setting, k = item
    row = {"setting": setting, "k": k, **dict.fromkeys(METRICS, _figure(0.5))}
    row |= {"ncr": _figure(0.5, num_metrics=6), "gap_closed": None, "spent": 0.75, "bound": None}
    return row | {"bits_per_byte/mixture": 2.25, "bits_per_byte/extra": 2.5}
