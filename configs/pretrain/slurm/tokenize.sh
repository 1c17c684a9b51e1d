#!/usr/bin/env bash
# Tokenise the 31 sources of the Common Pile as a Slurm array: every task takes its share of each
# source's files, and the last one to finish a source completes its folder. From the repository's root:
#   sbatch --array=0-15 configs/pretrain/slurm/tokenize.sh TOKENIZER [SOURCE ...]
# TOKENIZER: folder with the Llama 3 tokenizer.json, or OWNER/NAME@REVISION on the Hub.
# Before, in minutes: anchored tokenize --mixture configs/pretrain/common_pile.toml --tokenizer TOKENIZER --sample 1000
# A task that was stopped goes on where it was when it is submitted again.
#SBATCH --job-name=tokenize
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

MIXTURE=configs/pretrain/common_pile.toml
TOKENIZER=${1:?usage: sbatch --array=0-N configs/pretrain/slurm/tokenize.sh TOKENIZER [SOURCE ...]}
shift
if (($#)); then
  SOURCES=("$@")
else
  mapfile -t SOURCES < <(sed -n '/^\[\[sources\]\]/{n;s/^name = "\(.*\)"$/\1/p}' "$MIXTURE")
fi

for source in "${SOURCES[@]}"; do
  anchored tokenize --mixture "$MIXTURE" --source "$source" --tokenizer "$TOKENIZER" \
    --output "data/common_pile/$source"
done
