#!/usr/bin/env bash
# What torchrun would set, from what Slurm sets for each process: srun ... rank.sh COMMAND
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "$@"
