"""Pretrain TinyComma: torchrun --nproc-per-node 8 -m anchored.pretrain --job.config_file FILE.toml

With --max-restarts N torchrun starts a run again from its last checkpoint where a process crashes.
One process needs no torchrun: python -m anchored.pretrain --job.config_file FILE.toml
"""

import os
import signal
import sys
from contextlib import ExitStack

from ..wrong_words import Refused
from .run.stop_signals import end_on_interrupt


def main() -> None:
    """Run this process of a training and exit: with one line for what is refused, and 2 for wrong
    words, 1 for the rest."""
    end_on_interrupt()
    from .program import has_torchrun, prepared, run  # takes seconds

    with ExitStack() as locks:
        try:
            config = locks.enter_context(prepared(sys.argv[1:]))
        except (Refused, ValueError, OSError) as error:
            if os.environ["RANK"] == "0":
                print(f"anchored.pretrain: {error}", file=sys.stderr, flush=True)
                if has_torchrun():
                    # torchrun is ended: what is refused would be refused on each restart.
                    os.kill(os.getppid(), signal.SIGTERM)
            sys.exit(2 if isinstance(error, Refused) else 1)
        sys.exit(run(config))


if __name__ == "__main__":
    main()
