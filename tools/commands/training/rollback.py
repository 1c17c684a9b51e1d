"""The command that makes a training run go on from an earlier checkpoint."""

from anchored.pretrain.run.rollback import roll_back

from .training_options import RollbackConfig


def run(config: RollbackConfig) -> int:
    """Go back as `config` says and tell what was done; returns the exit status."""
    done = roll_back(
        config.run, step=config.step, skip_steps=config.skip_steps, settings=config.settings
    )
    print(
        f"{config.run} goes on after step {done.step} when it is started again; later "
        f"checkpoints ({done.num_moved}), its record and its curves as they were: {done.aside}"
    )
    return 0
