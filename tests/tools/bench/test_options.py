"""Settings of benchmarks that would measure nothing."""

import pytest

from anchored.tools.bench.options import BenchDecodeConfig, BenchPretrainConfig


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (BenchDecodeConfig, {"runs": 0}, "runs must be >= 1, got 0"),
        (BenchDecodeConfig, {"new_length": 1}, "new_length must be >= 2, got 1"),
        (BenchDecodeConfig, {"safe": "x"}, "or both be folders of models, got x and small"),
        (BenchDecodeConfig, {"clock": "cpu", "device": "cuda"}, "clock cpu does not see cuda"),
        (BenchDecodeConfig, {"passage_words": 0}, "passage_words must be >= 1, got 0"),
        (BenchDecodeConfig, {"level": "byte"}, "level byte needs a pair in folders"),
        *(
            (kind, {"vocab_size": 2}, "vocab_size must be >= 3, got 2")
            for kind in (BenchDecodeConfig, BenchPretrainConfig)
        ),
        (BenchPretrainConfig, {"steps": 4, "skipped_steps": 4}, "less than steps, got 4 of 4"),
        (BenchPretrainConfig, {"rounds": 3}, "rounds must be even, got 3"),
    ],
)
def test_settings_that_measure_nothing_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)
