"""Command lines that must be refused, as tables.

A line at the margin is a command. Each line below it is an option, a sign and values, in shell
quotes where they have spaces: the command with that option is refused with each of them, with the
status of the sign, = of wrong words, which is 2, and ~ of work that fails, which is 1. A line that
begins with the sign adds whole words. Words in capitals stand for several values
(VALUES), those in braces for places: {name} for one of `bad_places`, {new} for one with nothing
there, {pair} for the options that name a good pair. After a bar come words of the message.

No device stands for an output: where the command fails to refuse it, root would lose the device.
"""

import re
import shlex

from anchored.tools.cli import FAILED_STATUS, USAGE_STATUS

STATUSES = {"=": USAGE_STATUS, "~": FAILED_STATUS}
REPLACES = " <- "
"""In a line, in front of options that stand in place of those before it: each is given once."""
VALUES = {
    "HUGE": (str(10**30),),
    "NOT_WHOLE": ("1.5", "nan", "many", ""),
    "COUNTS": ("0", "-1", "1.5", "nan", "many", ""),
    "NOT_FINITE": ("nan", "inf", "-inf", "many"),
    "MODELS": (
        *("{missing}", "{folder}", "{empty}", "{config_empty}", "{config_garbage}"),
        *("{config_type}", "{config_list}", "{config_sizes}", "{tokenizer_missing}"),
        *("{tokenizer_empty}", "{tokenizer_garbage}", "{tokenizer_other}", "{weights_missing}"),
        *("{weights_empty}", "{weights_truncated}", "{weights_garbage}", "{weights_partial}"),
        *("no/such/place", "a/b@c"),
    ),
}


def command_lines(table: str) -> dict[str, tuple[int, str]]:
    """All lines of a table, with their {places} to be filled in: (status, words of the message)."""
    command, lines = "", {}
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            command = line
            continue
        option, sign, rest = re.split(r"([=~]) ", line.strip(), maxsplit=1)
        values, _, message = rest.partition(" | ")
        for value in shlex.split(values):
            for each in VALUES.get(value, (value,)):
                whole = f"{command}{REPLACES}{option}{each}"
                assert whole not in lines, f"it stands twice: {whole}"
                lines[whole] = STATUSES[sign], message
    return lines


REFUSED = """
generate {pair} --max-new-tokens 3 --prompt a
    = "--setting k=0.1" "--setting K=0.5" "--setting budget=fixed" "--rule no_opt --setting k=0.1"
    = "--rule cold_start --setting k=2 --k 1" "--rule rcad --setting alpha=1 --setting alpha=2"
    = "--rule memfree --passages {prompts} --setting passages=[]"
    = "--rule anchored --setting debt_window=3" "--rule rcad --setting alpha=nan"
    = "--rule rcad --setting alpha=null" "--rule system --setting prompt=5"
    = "--rule cp_fuse --setting grid_size=1000000"
    = "--rule memfree --setting n=99999999999 --setting corpus={letters}"
    = "--rule token_swap --setting words=lamp"
    ~ "--rule memfree --setting corpus={missing}"
    = "--k 1 --k 2" "--seed 1 --seed 2" "--chat --no-chat" "--temperature 1 --temperature=0.5"
    = "--max-new-bytes 4 --max_new_bytes 5"
    ~ "--ledger {safe}/config.json --overwrite"
    ~ "--ledger {risky}/model.safetensors --overwrite"
    = "--ledger {new}/" "--prompt-ratios {other}"
    = "--stop ''" "--divergence tv" "--debt some" "--budget none" "--unknown-option 1"
    = "--prompt-file {prompts}"
    ~ --chat
    --max-new-tokens = COUNTS HUGE
    --max-new-bytes = 0 -1 many
    --max-new-bytes ~ 9
    --num-return-sequences = -1 NOT_WHOLE HUGE
    --seed = -1 NOT_WHOLE HUGE
    --k = -1 NOT_FINITE
    --K = -1 NOT_FINITE
    --temperature = -1 NOT_FINITE
    --repetition-penalty = 0 -1 NOT_FINITE
    --top-k = -1 NOT_WHOLE
    --top-p = 0 -0.1 1.1 NOT_FINITE
    --min-p = -0.1 1 NOT_FINITE
    --bank = -1 NOT_FINITE "1 --budget fixed" "3 --K 2"
    --debt-window = COUNTS
    --batch-size = COUNTS
    --speculate = 0 -1 1.5 maybe
    --byte.prefetch = -1 1.5 many
    --rule = nonsense "safe_only --k 2" "risky_only --budget fixed" rcad
    --rule = "pathwise --k nan" "pathwise --bank -1" "pathwise --setting bank=3"
    --rule ~ "memfree --passages {missing}" "memfree --passages {garbage}"
    --rule = "rcad --setting alpha=-1" "cp_fuse --setting grid_size=1"
    --rule = "token_swap --setting words=[]"
    --rule ~ "token_swap --level byte"
    --level = word "byte --max-new-bytes 0" "token --max-new-bytes 9"
    --dtype = int8 float23 ""
    --device = cuda:-1 tpu meta cpu:0 "''"
    --device ~ cuda:7
    --risky-device = cpu gpu
    --risky-quantization ~ {missing} {folder} {empty} {garbage} {prompts} {list} {no_method}
    --ledger ~ {existing} {folder} {fifo} {link} {under_file} {long_name} /proc/none/x.jsonl
    = "--k 1 --K 2" | give either k or K
    = "--continue-from {ledger}" | give either --prompt, --prompt-file,
    = "--chat --continue-from {ledger}" | give either --prompt, --prompt-file,
    --num-return-sequences = 0 | --num-return-sequences must be >= 1, got 0
    --risky-revision ~ v2 | a revision is that of a Hub id, got 'v2' for
    --safe-revision ~ v2 | a revision is that of a Hub id, got 'v2' for
    --risky-attn-implementation ~ no | attn_implementation="no"` is not
    --risky-device-map ~ nope | found nope
    --rule = "pathwise --K 3" "pathwise --budget global" | --rule pathwise takes of a budget only
    --rule = "pathwise --divergence max" | --rule pathwise takes of a budget only
    --rule = "rcad --k 1" | --rule rcad takes no budget: remove --k and the like
    --rule = "cold_start --K 2" | --rule cold_start takes of a budget only --k
    --rule = memfree | --rule memfree needs --passages FILE or --setting corpus=FILE
    --rule = "rcad --setting alpha" | --setting must be NAME=VALUE, got 'alpha'
    --rule = "rcad --setting beta=1" | there is no 'beta'; it has compared, alpha
    --risky ~ {weights_nan} | the risky model's logits over the prompt are NaN
    --rule = global_switch | --rule global_switch needs --K
    --k = 1,5 | generate: --k must be a number, got '1,5'
    --K = "" | generate: --K needs a value
    --ledger = "''" | generate: --ledger must not be empty
    --divergence = kI | generate: --divergence must be one of kl, max, got 'kI'
    --seed = -2 | generate: --seed must be in [0, 2**63), got -2
    --max-new-tokens = -2 | --max-new-tokens must be >= 1, got -2
    --prompt = "the keeper" | 'keeper' belongs to no option; quote a value that has spaces
    = "-k 1" | there is no option -k; anchored generate --help lists all
    = --quiet | there is no option --quiet; anchored generate --help lists all
    --rule = "cp_fuse --setting grid=3" | there is no 'grid'; it has compared, grid_size
    --safe ~ ./nope | generate: there is no folder ./nope
    --safe ~ ~/nope | generate: there is no folder ~/nope
    --safe ~ {texts}/nope | there is no folder /
    --safe ~ {folder}/../tokns | (did you mean /
generate {pair} --max-new-tokens 3
    = ""
    ~ "--prompt-file {prompts_huge_seed}" "--prompt-file {prompts_huge_k}"
    ~ "--prompt-file {prompts_deep}" "--prompt-file {prompts_bom}"
    ~ "--prompt-file {prompts} --rule rcad" "--prompt-file {prompts_passage} --rule rcad"
    ~ "--prompt-file {prompts} --chat" "--messages {prompts_huge_seed}"
    ~ "--prompt-file {prompts} --ledger {prompts} --overwrite"
    ~ "--continue-from {ledger} --ledger {ledger} --overwrite"
    ~ "--continue-from {ledger} --ledger {hard_link} --overwrite"
    --prompt = "" "''"
    --prompt ~ "'{long_text}'"
    --prompt-file ~ {missing} {folder} {empty} {garbage} {ledger} {prompts_broken} {prompts_list}
    --prompt-file ~ {prompts_without} {prompts_number} {prompts_seed} {prompts_k} {prompts_nan}
    --prompt-file ~ {prompts_negative} {prompts_key} {prompts_blank}
    --prompt-file ~ {prompts_twice} | line 2: id 1 occurs twice, first in line 1
    --messages ~ {missing} {folder} {empty} {garbage} {prompts}
    --continue-from ~ {missing} {folder} {empty} {garbage} {ended}
generate {pair} --max-new-tokens 3 --prompt a --overwrite
    --ledger ~ {folder} {fifo} {link} {under_file}
generate
    = "{safe} {risky} --prompt a"
generate --prompt a
    --pair ~ {missing} {folder} {garbage} {prompts} "{folder} --safe {safe}"
    --safe = {safe}
generate --risky {risky} --prompt a --max-new-tokens 3
    --safe ~ MODELS
score --safe {safe} --prompt a --continuation b
    --risky ~ MODELS
score {pair} --prompt a --continuation b
    = "--rule nonsense" "--temperature 1"
    --horizon = COUNTS
    --prompt = "''"
    --prompt ~ "'{long_text}'"
    --continuation = ""
    --continuation ~ "'{long_text}'"
    --k = -1 NOT_FINITE
score {pair}
    = "" "--prompt a" "--continuation b" "--prompt a --prompt b --continuation c"
    = "--prompt a --continuation b --continuation c"
verify {pair} --ledger {ledger} --overwrite
    --divergences ~ {folder} {fifo} {link} {ledger}
    --divergences new.png --picture = new.png {new}.png
verify {pair} --ledger {ledger}
    = "--divergences {new}/" "--picture ''" "--unknown 1"
    ~ "--divergences {hard_link} --overwrite"
    ~ "--device cuda:7"
    --ledger ~ {missing} {folder} {empty} {garbage} {prompts} {other} {cut_ledger} {line_missing}
    --ledger ~ {list_ledger} {step_text} {field_missing} {field_unknown} {field_mistyped}
    --ledger ~ {field_null}
    --divergences ~ {existing} {folder} {fifo} {under_file} {ledger}
    --picture = {new} {folder} {fifo} x.txt {under_file}
    --picture ~ {existing_png}
verify {pair}
    = "" | verify: --ledger is needed; anchored verify --help says more
    = one.jsonl | 'one.jsonl' belongs to no option; did you mean --ledger one.jsonl?
    = --ledger
    ~ "--ledger {ledger} --ledger {missing}"
retrieve
    = "--corpus {texts}"
    ~ "--corpus {missing} --prompt-file {empty}"
    = "--corpus {letters} --prompt-file {prompts} --output {new}/"
    ~ "--corpus {letters} --prompt-file {prompts} --output {letters} --overwrite"
    ~ "--corpus {letters} --prompt-file {prompts} --output {prompts} --overwrite"
    ~ "--corpus {letters} --prompt-file {prompts} --index {new}"
    ~ "--corpus {no_text} --prompt-file {prompts} --index {new}"
    = "--corpus {letters} --prompt-file {prompts} --instruction Find"
serve --safe {safe} --risky {risky}
    = "--divergence tv" "--max-k -1"
    --k = -1 nan x
serve --engine vllm
    ~ "--safe {missing} --risky {risky}"
ledgers
    = ""
    ~ "--journal {folder} --out {existing}"
    --journal = "''"
    --journal ~ {missing} {folder} {empty} {garbage}
accounts
    = ""
    --accounts = "''"
    --accounts ~ {missing} {folder} {empty} {garbage} {mixture_key}
    --accounts ~ {toml_broken} | is not valid TOML
accounts apply
    = ""
    ~ {missing} {folder} {empty} {garbage} {mixture_key}
    = "{toml_broken} --account client/alice" "{toml_broken} --extra 5"
accounts settle
    = "" server
    ~ "server --accounts {missing}"
decontaminate --against {mixture_key} --output {new}
    = "" "--source s"
    ~ "--source s --input {missing}" "--source s --input {folder}"
    --source s --input {texts} --against ~ {missing} {folder} {garbage} {empty} {texts}
    --source s --input {texts} --against ~ {prompts_blank} {garbage_jsonl} {fifo}
    --source s --input {texts} --output ~ {somebody} {under_file} {existing}
    --source s --input {texts} --least-chars = -1 NOT_WHOLE
    --source s --input {texts} --workers = -1 NOT_WHOLE
    --mixture ~ {missing} {folder} {toml_broken} {toml_odd}
tokenize --source s --tokenizer {tokens} --output {new} --input {texts}
    --tokenizer ~ {missing} a@b {empty} {garbage} {tokenizer_other}
    --input ~ {missing} {folder} {garbage}
    --output ~ {somebody} {existing} {under_file} {fifo}
    --mixture ~ {missing} {folder} {empty} {garbage} {toml_odd}
    --heldout-fraction = -0.1 1.1 nan many
    --max-document-bytes = 0 -1 many
    --shard-tokens = -1 1.5
    --workers = many
    --dataset = a/b | give one of --input, --dataset
    --shard-tokens = 0 | --shard-tokens must be >= 1, got 0
    --workers = -1 | --workers must be >= 0, got -1
    --max-invalid-documents = -1 | --max-invalid-documents must be >= 0, got -1
    --tokenizer ~ missing | tokenizer missing is neither a file, nor a folder
    --tokenizer ~ a/b | nor OWNER/NAME@REVISION
    --tokenizer ~ {folder} | has no tokenizer.json
    --end-token ~ a {missing} none
    --begin-token ~ </s> a {missing} <|end|>
    --end-token ~ </s> | has no token </s> (--end-token)
    --input ~ {empty_jsonl} {garbage_jsonl} | no text to write
    --text-field ~ nowhere | no text to write
    --licenses ~ GPL | no text to write: 1 refused; refused licenses: (none given)
tokenize --tokenizer {tokens}
    = "" "--source s" "--output {new}" "--sample 1"
    --sample = -1 NOT_WHOLE
    --source s --sample 1 --input ~ {missing} {folder}
tokenize --source s --tokenizer {tokens} --output {new}
    = "" | give one of --input, --dataset
plan
    ~ "--config nothing-of-this-name" "--step 1 --stage stage9"
    --config ~ {missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} {toml_circle}
    --config ~ {mixture_weight} {mixture_key}
    --max-epochs = -1 many nan
    --step = -1 x
    --output ~ {existing} {folder} {fifo} {under_file}
    ~ "--step 1" | --stage must be one of stage1, stage2, got ''
    ~ "--step 1 --stage stage2" | shards of every source are needed; missing: wikimedia
    = "--document a:b:1 --step 3" | give step or document, not both: 3, a:b:1
plan --config {toml_odd}
    = "--document a" "--document a:b:c" "--document a:b:1 --step 2"
    ~ --verify
    ~ "--output {toml_odd} --overwrite"
    --document a:b:1 ~ "" "--stage nothing"
export --checkpoint {folder} --tokenizer {safe} --output {new}
    --checkpoint ~ {missing} {folder} {empty} {safe}
    --tokenizer ~ {missing} {empty}
    --output ~ {folder} {existing} {under_file}
    --dtype = float64 int8
    --average-last = 0 x
    --max-position-embeddings = x
export
    = ""
pretrain
    = ""
    --config ~ {missing} {folder}
pretrain --config tinycomma-1.8b-stage1 --dry-run
    --gpus = 0 -1 x
    --mfu = 0 2 nan
    --peak-flops = 0 -1 nan
look
    = story "--output ''"
quickstart
    --preset = huge ""
    --model = ""
    --model ~ {missing} {texts}
    --output ~ {somebody} {existing} {under_file} {other_quickstart}
demo
    ~ "" "--safe {missing} --risky {missing}"
    --safe {safe} --risky {risky} --port = 0 -1 65536 NOT_WHOLE
prompts
    = ""
    ~ "--kind books --input {missing} --output {missing}"
    = "--kind poems"
    ~ "--kind books --input {books} --output {books} --overwrite"
    --kind books --output new.jsonl --input ~ {folder} {empty} {garbage}
    --kind books --input {prompts} --output ~ {existing} {folder} {fifo}
prompts --kind books --output new.jsonl
    --input ~ {empty} | holds no records
    --input ~ {prompts_broken} | is not JSON
    --input ~ {prompts_list} | row 1 must be a JSON object
    --input ~ {prompts} | record 1 has no text 'input'
    --input ~ {prompts_input} | record 1 has no text 'reference'
sweep
    = ""
    ~ {missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} "{toml_circle} --dry-run"
    = "{toml_odd} --inputs" "{toml_odd} --output"
    ~ "no-such-methods --dry-run"
    ~ "~no-such-user/x.toml --dry-run" "{sweep_label} --dry-run" "{sweep_rule} --dry-run"
    ~ "{sweep_type} --dry-run" {sweep_prompts} "{base_number} --dry-run"
    ~ "{base_missing} --dry-run"
compare
    = ""
    ~ {missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} "{toml_circle} --dry-run"
    = "{toml_odd} --model ours" "{toml_odd} --limit -1"
    ~ "quickstart-methods --dry-run" | is not the config of a comparison: it has no benchmarks
compare downstream
    = "--model ours" | --model must be LABEL=FOLDER
    ~ "--model ours=/no/such/folder" | ours: there is no folder /no/such/folder
evaluate
    = "''"
    ~ {existing} {empty} {garbage} {prompts} {texts}
    = "{folder} --evidence {existing}"
    {folder} --texts = -1 NOT_WHOLE
    {folder} --ledgers = x
    {folder} --ncr-of ~ {missing} {existing}
    {folder} --judge-model m --limit = 0 x
    {folder} --judge-model m --evidence = "{existing} --serper"
    {folder} --judge-model m --evidence ~ {missing}
    ~ {missing} | there is no file or folder
    ~ {folder} | holds no generations/*.jsonl
    = "{folder} --ledgers -1" | --ledgers must be >= 0, got -1
evaluate {texts}/one.jsonl
    = "--only nothing"
    ~ --only
    ~ "--only copying --output {texts}/one.jsonl"
    ~ "--only copying --prompts {prompts} --output {prompts}"
    --only copying ~ "" "--prompts {missing}" "--prompts {garbage}"
    --only nonliteral = "--comparator <" "--num-characters -1" "--num-characters x"
    --only nonliteral ~ ""
    --judge-model = "" "''"
    --judge-model m --judge-url = http://user:key@host/v1 ftp://host "''"
    ~ "" | texts without references
    = --serper | give --judge-model too
    ~ "--judge-model m" | the environment has no key
    = "--judge-model m --judge-url nowhere" | base_url must be
    --only ~ copying | has no "reference": give --prompts FILE
    --only ~ nonliteral | has no "characters": give --prompts FILE
    --only ~ report | a report is on a run's folder
    --only = fluency | a judge is needed
    --only = "factuality --judge-model m" | give one of --serper
evaluate {texts}/one.jsonl --judge-model m --judge-url http://127.0.0.1:9/v1
    ~ "--answers {existing}" "--pool nobody"
    --output ~ {existing} {fifo} {under_file}
    --prompts ~ {missing} {garbage} {prompts_list}
    --concurrency = COUNTS
    --max-retries = -1 NOT_WHOLE
    --limit = -1 1.5
    --timeout-s = 0 -1 NOT_FINITE
    --price-in = -1 NOT_FINITE
    --only factuality = "" "--serper --corpus {texts}/one.jsonl"
    --corpus ~ {missing} {folder}
    --evidence ~ {missing} {folder} {garbage} {prompts}
    --num-comparisons = COUNTS
paper
    = "" llama3.1-70b+tinycomma-1.8b "nothing --books {folder} --bios {folder}"
    llama3.1-70b+tinycomma-1.8b --bios {folder} --books ~ {missing} {texts} {folder}
    llama3.1-70b+tinycomma-1.8b --books {folder} --bios ~ {missing} {texts}
calibrate
    = ""
    ~ "--safe {missing} --risky {risky} --prompt-file {prompts}"
calibrate --safe {safe} --risky {risky}
    --prompt-file ~ {missing} {folder} {empty} {garbage} {prompts}
calibrate --safe {safe} --risky {risky} --prompt-file {prompts}
    --output ~ {existing} {fifo} {under_file}
    --metric = nonsense
    --target = -1 nan x
    --confidence = 0 1 nan
    --certify = 0 1 nan
    --smallest-k = 0 -1 30 nan
    --first-ks = 0 1 x
    ~ "" | line 1 must have the key "id", which
    --prompt-file ~ {prompts_id} | line 1 must have the key "reference", which
    --metric = char_lcs | --metric char_lcs needs a --target
    --seeds = 0 | --seeds must be >= 1, got 0
    --temperature = -1 | temperature must be finite and >= 0, got -1.0
certify
    = ""
    ~ "--safe {missing} --risky {risky} --prompt-file {prompts}"
certify --safe {safe} --risky {risky}
    --prompt-file ~ {missing} {folder} {empty} {garbage} {prompts}
certify --safe {safe} --risky {risky} --prompt-file {prompts}
    --window = 0 300
    --length = COUNTS
    --bank = -1 NOT_FINITE "5 -1"
    --target = 0 1 nan | --target must be in (0, 1), got
    --temperature = 0 | --temperature must be > 0: greedy decoding has no bound
lm-eval
    = --nonsense nonsense "run --limit x" "run --model" validate
bench kernel
    --batch-sizes = 0 x
    --threads = -1
bench decode --vocab-size 64
    = "--new-length 1" "--methods nonsense" "--drafts 0" "--runs 0" "--safe x" "--k nan"
    = "--clock cpu --device cuda" "--passage-words 0" "--level byte" "--vocab-size 2"
bench pretrain
    = "--levers nonsense" "--vocab-size 2" "--steps 4 --skipped-steps 4" "--rounds 3"
    --config ~ {missing} {garbage}
bench
    = "" nonsense
nonsense
    = "" --help-me
generat
    = ""
"""

OF_PROCESSES = """
generate {pair} --max-new-tokens 3 --prompt a
    --device ~ cuda:7
    --k = 1,5
generate --safe {tokenizer_short} --risky {risky}
    --prompt ~ "'{long_text}'"
verify {pair} --ledger {ledger}
    --ledger ~ {cut_ledger}
verify {pair}
    = ""
pretrain
    --config ~ {garbage} {toml_odd}
pretrain --dry-run
    --config ~ {empty} {garbage} {toml_odd}
"""
"""Run as processes, on whose stderr the warnings of libraries would stand; the last ones import
torchtitan, which this one must not."""
