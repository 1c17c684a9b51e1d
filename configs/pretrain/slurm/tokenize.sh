#!/usr/bin/env bash
# The 31 sources of the Common Pile, searched for texts that must not be in them and tokenized, by two Slurm arrays.
# From the repository's root:
#   search=$(sbatch --parsable --array=0-15 configs/pretrain/slurm/tokenize.sh search AGAINST [SOURCE ...])
#   sbatch --array=0-15 --dependency=afterok:$search configs/pretrain/slurm/tokenize.sh write TOKENIZER [SOURCE ...]
# AGAINST: a file or folder of the works, prompts and benchmarks that the model will be judged by.
# TOKENIZER: folder with tokenizer.json and tokenizer_config.json, or OWNER/NAME@REVISION on the Hub.
# Every task takes input files that no other is at work on, and the last one to finish a source completes its report or
# its folder. What a task that was stopped was at goes on where it was, in any task that is still to come or in one
# that is submitted again.
# Before, in minutes: anchored tokenize --mixture configs/pretrain/common_pile.toml --tokenizer TOKENIZER --sample 1000
#SBATCH --job-name=tokenize
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

USAGE="usage: sbatch --array=0-N configs/pretrain/slurm/tokenize.sh search AGAINST|write TOKENIZER [SOURCE ...]"
MIXTURE=configs/pretrain/common_pile.toml
REPORTS=data/decontamination
PHASE=${1:?$USAGE}
GIVEN=${2:?$USAGE}
shift 2
if (($#)); then
  SOURCES=("$@")
else
  mapfile -t SOURCES < <(sed -n '/^\[\[sources\]\]/{n;s/^name = "\(.*\)"$/\1/p}' "$MIXTURE")
fi

for source in "${SOURCES[@]}"; do
  case $PHASE in
    search) anchored decontaminate --mixture "$MIXTURE" --source "$source" --against "$GIVEN" --output "$REPORTS" ;;
    write) anchored tokenize --mixture "$MIXTURE" --source "$source" --tokenizer "$GIVEN" \
      --output "data/common_pile/$source" --leave-out "$REPORTS/$source.jsonl" ;;
    *) echo "$USAGE" >&2 && exit 2 ;;
  esac
done
