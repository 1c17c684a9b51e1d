"""The command that compares token shards with their checksums before GPUs wait for it."""

import sys
import time
from pathlib import Path

from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.tokens.shards import is_verified, verify_shards

from .training_options import VerifyShardsConfig


def run(config: VerifyShardsConfig) -> int:
    """Verify the folders that have no valid stamp; 1 if any of them is damaged."""
    num_damaged = 0
    for folder in _folders(config):
        if is_verified(folder) and not config.again:
            print(f"{folder}: unchanged since it was verified")
            continue
        start = time.perf_counter()
        try:
            num_bytes = verify_shards(folder)
        except ValueError as error:
            num_damaged += 1
            print(f"anchored verify-shards: {error}", file=sys.stderr)
            continue
        seconds = max(time.perf_counter() - start, 1e-9)
        size, speed = num_bytes / 1e9, num_bytes / 1e9 / seconds
        print(f"{folder}: {size:,.1f} GB verified, {speed:.1f} GB/s", flush=True)
    return 1 if num_damaged else 0


def _folders(config: VerifyShardsConfig) -> list[Path]:
    folders = list(config.folders)
    if config.config is not None and stages.is_mixture(config.config):
        mixture = load_mixture(config.config)
        folders += [Path(mixture.shards_folder) / source.name for source in mixture.sources]
    elif config.config is not None:
        sources = stages.run_spec(config.config).data.sources
        folders += [Path(source.path) for source in sources]
    if not folders:
        raise ValueError("name folders of token shards, or a --config that names them")
    return list(dict.fromkeys(folders))
