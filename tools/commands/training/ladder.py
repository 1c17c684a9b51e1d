"""Small models below a run: their configs, and what they say that it will reach."""

import json
from dataclasses import asdict

from anchored import text_tables
from anchored.durable_files import write_durably
from anchored.eval.power_law import Prediction, predict_loss
from anchored.pretrain.ladder import MEAN, Ladder, best_runs, load_ladder, read_ladder

from .training_options import LadderConfig

_LEAST_SIZES, _LEAST_RUNS = 3, 4  # of a power law with an interval
Points = list[tuple[float, float]]


def run(config: LadderConfig) -> int:
    """Write the configs that are missing, print what is trained, and predict; returns 0."""
    read_ladder(config.ladder)  # refused before torchtitan is imported, which takes seconds
    ladder = load_ladder(config.ladder)
    for one in ladder.runs:
        one.write_config()
    lines = [
        f"{ladder.target}: {ladder.num_parameters:,} parameters without embeddings, "
        f"{ladder.num_tokens:,} tokens, "
        f"{ladder.num_tokens / ladder.num_parameters:.1f} a parameter",
        "",
        _runs_table(ladder),
    ]
    sources = sorted({name for one in ladder.runs for name in one.losses() or ()} - {MEAN})
    fits = {name: _fit(ladder, name, config.confidence) for name in (MEAN, *sources)}
    predictions = {name: fit for name, fit in fits.items() if fit}
    if predictions:
        lines += ["", _predictions_table(predictions, config.confidence)]
        lines += _edges(ladder)
        _draw(ladder, predictions[MEAN]["prediction"])
    else:
        lines += ["", f"a prediction needs {_LEAST_RUNS} finished runs of {_LEAST_SIZES} sizes"]
    print("\n".join(lines))
    table = {
        "schema": "anchored-ladder/1",
        "target": ladder.target,
        "num_parameters": ladder.num_parameters,
        "num_tokens": ladder.num_tokens,
        "runs": [
            {"name": one.name, "num_parameters": one.num_parameters, "num_tokens": one.num_tokens}
            | {"learning_rate": one.learning_rate, "seed": one.seed, "losses": one.losses()}
            for one in ladder.runs
        ],
        "predictions": {
            name: {key: asdict(one) for key, one in fit.items() if one}
            for name, fit in predictions.items()
        },
    }
    write_durably(ladder.folder / "ladder.json", json.dumps(table, indent=2) + "\n")
    return 0


def _runs_table(ladder: Ladder) -> str:
    rows = []
    for one in ladder.runs:
        step, losses = one.last_measured()
        state = f"{losses[MEAN]:.4f}" if one.losses() else f"step {step:,}" if step else "to do"
        rows.append(
            (
                one.name,
                f"{one.num_parameters:,}",
                f"{one.num_tokens:,}",
                f"{one.num_steps:,}",
                state,
            )
        )
    return text_tables.aligned(("run", "parameters", "tokens", "steps", "held-out loss"), rows)


def _points(ladder: Ladder, source: str) -> Points:
    """Size and loss of the best learning rate's runs."""
    return [
        (run.num_parameters, losses[source])
        for runs in best_runs(ladder, source).values()
        for run in runs
        if (losses := run.losses())
    ]


def _fit(ladder: Ladder, source: str, confidence: float) -> dict[str, Prediction | None] | None:
    """The prediction, and that of the largest model trained by the smaller ones; None before."""
    points = _points(ladder, source)
    if (prediction := _predicted(points, ladder.num_parameters, confidence)) is None:
        return None
    largest = max(size for size, _ in points)
    smaller = [point for point in points if point[0] < largest]
    return {"prediction": prediction, "of_largest": _predicted(smaller, largest, confidence)}


def _predicted(points: Points, target: float, confidence: float) -> Prediction | None:
    if len(points) < _LEAST_RUNS or len({size for size, _ in points}) < _LEAST_SIZES:
        return None
    sizes, losses = zip(*points, strict=True)
    return predict_loss(sizes, losses, target, confidence=confidence)


def _predictions_table(
    predictions: dict[str, dict[str, Prediction | None]], confidence: float
) -> str:
    rows = []
    for name, fit in predictions.items():
        prediction, check = fit["prediction"], fit["of_largest"]
        assert prediction is not None
        law = prediction.law
        rows.append(
            (
                name,
                f"{prediction.loss:.4f}",
                f"{prediction.low:.4f} to {prediction.high:.4f}",
                f"{law.irreducible:.3f} + {law.scale:.3g} N^-{law.exponent:.3f}",
                f"{prediction.deviation:.4f}",
                f"{check.low:.4f} to {check.high:.4f}" if check else "-",
            )
        )
    head = ("held-out source", "predicted loss", f"{confidence:.0%} interval", "law", "deviation")
    return text_tables.aligned((*head, "largest, by the smaller"), rows)


def _edges(ladder: Ladder) -> list[str]:
    """Sizes whose best learning rate has none beside it, so that another may be better."""
    lines = []
    for flavor, runs in best_runs(ladder).items():
        rates = {one.learning_rate for one in ladder.runs if one.flavor == flavor and one.losses()}
        best = runs[0].learning_rate
        if len(rates) > 1 and best in (min(rates), max(rates)):
            lines.append(f"{flavor}: the best learning rate, {best:g}, is the last one on its side")
    return lines


def _draw(ladder: Ladder, prediction: Prediction | None) -> None:
    from anchored.eval.figures.power_law import plot_power_law

    assert prediction is not None
    points = _points(ladder, MEAN)
    tried = [(run.num_parameters, one[MEAN]) for run in ladder.runs if (one := run.losses())]
    plot_power_law(
        points,
        prediction,
        ladder.num_parameters,
        ladder.folder / "ladder.png",
        others=[point for point in tried if point not in points],
        title=f"What smaller models say of {ladder.target}",
    )
