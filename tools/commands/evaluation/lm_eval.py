"""lm-eval with a pair as its model: anchored lm-eval run --model anchored --tasks arc_easy"""

import sys

from anchored.eval.harness.tasks import register_model
from anchored.wrong_words import argparse_refused


def run(arguments: list[str]) -> int:
    """Make the model known and hand all words to lm-eval's own command line."""
    register_model()
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["anchored lm-eval", *arguments]
    with argparse_refused():
        cli_evaluate()
    return 0
