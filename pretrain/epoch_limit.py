"""How often a source may be read, over all stages of a training together."""

from collections import Counter
from collections.abc import Iterable, Mapping


def check_epochs(stages: Iterable[Mapping[str, float]], max_epochs: float) -> None:
    """Raises ValueError naming the source that is read most often, if that is more than allowed.

    stages: for each stage the passes over its sources, by their names; at least one source.
    """
    epochs: Counter[str] = Counter()
    for stage in stages:
        epochs.update(stage)
    name, most = epochs.most_common(1)[0]
    if most > max_epochs:
        raise ValueError(
            f"source {name} would be read {most:.2f} times, more than max_epochs "
            f"{max_epochs:g} allows: lower its weight, or raise max_epochs"
        )
