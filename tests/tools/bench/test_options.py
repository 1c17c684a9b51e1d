"""Settings of benchmarks that would measure nothing."""

import pytest
from command_line import run

from anchored.tools.bench.options import (
    BenchByteConfig,
    BenchDecodeConfig,
    BenchFlopsConfig,
    BenchForwardConfig,
    BenchLmEvalConfig,
    BenchLoaderConfig,
    BenchPretrainConfig,
    BenchSpeculateConfig,
    BenchTokenizeConfig,
)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (BenchSpeculateConfig, {"runs": 0}, "runs must be >= 1, got 0"),
        (BenchSpeculateConfig, {"new_tokens": 1}, "new_tokens must be >= 2, got 1"),
        (BenchSpeculateConfig, {"safe": "x"}, "give both folders"),
        (BenchDecodeConfig, {"clock": "cpu", "device": "cuda"}, "clock cpu does not see cuda"),
        (BenchDecodeConfig, {"passage_tokens": 0}, "passage_tokens must be >= 1, got 0"),
        *(
            (kind, {"vocab_size": 2}, "vocab_size must be >= 3, got 2")
            for kind in (BenchDecodeConfig, BenchFlopsConfig, BenchForwardConfig, BenchLmEvalConfig)
        ),
        (BenchByteConfig, {"contexts": (1000, 0)}, "contexts must be >= 1, got 0"),
        (BenchByteConfig, {"batch_sizes": (0,)}, "batch_sizes must be >= 1, got 0"),
        (BenchLoaderConfig, {"source_tokens": 0}, "source_tokens must be >= 1, got 0"),
        (BenchTokenizeConfig, {"input": (), "tokenizer": "t", "runs": 0}, "runs must be >= 1"),
        (BenchPretrainConfig, {"steps": 4, "skipped_steps": 4}, "less than steps, got 4 of 4"),
        (BenchPretrainConfig, {"rounds": 3}, "rounds must be even, got 3"),
    ],
)
def test_settings_that_measure_nothing_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_a_launch_that_is_none_of_the_kernels_is_refused(capsys):
    status, _, err = run(capsys, "bench", "kernel-compile", "--variants", "solve-kl")
    assert status == 1 and "there is no variant 'solve-kl': known are solve-kl-bf16-B4-G1" in err
