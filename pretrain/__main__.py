"""Pretrain TinyComma: torchrun --nproc-per-node 8 -m anchored.pretrain --job.config_file FILE.toml

One process needs no torchrun: python -m anchored.pretrain --job.config_file FILE.toml
"""

import os
import sys
from contextlib import nullcontext

from .cpu_device import use_cpu_without_accelerator

# What torchrun would set for a single process; port 0 lets the system choose a free one.
_SINGLE_PROCESS = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


def main() -> None:
    if "RANK" not in os.environ:
        os.environ.update(_SINGLE_PROCESS)
    use_cpu_without_accelerator()
    # Not before: these import torchtitan, which binds its device at that moment.
    from .job_config import load_job_config

    is_first = os.environ["RANK"] == "0"
    try:
        config = load_job_config(sys.argv[1:])
        from .run.program import prepare, run  # takes seconds, so a wrong config is refused before
        from .run.start import follow_forks

        config = follow_forks(config)
        claim = prepare(config) if is_first else None
    except (ValueError, OSError) as error:
        sys.exit(f"anchored.pretrain: {error}" if is_first else 1)
    with claim or nullcontext():
        sys.exit(run(config))


if __name__ == "__main__":
    main()
