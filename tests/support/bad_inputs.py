"""Command lines that must be refused.

No device stands for an output: where the command fails to refuse it, root would lose the device.
{name} stands for a place of `bad_places`, {new} for one with nothing there, {pair} for the options
that name a good pair.
"""

from collections.abc import Iterator

REPLACES = " <- "
"""In a line, in front of options that stand in place of those before it: each is given once."""
HUGE = str(10**30)
NOT_WHOLE = ("1.5", "nan", "many", "")
NOT_FINITE = ("nan", "inf", "-inf", "many")

GENERATE = "generate {pair} --max-new-tokens 3"
PROMPT = f"{GENERATE} --prompt a"
SCORE = "score {pair} --prompt a --continuation b"
RATIOS = "ratios {pair} --prompt a --output {new}"
VERIFY = "verify {pair} --ledger {ledger}"
TOKENIZE = "tokenize --source s --tokenizer {tokens} --output {new} --input {texts}"
EXPORT = "export --checkpoint {folder} --tokenizer {safe} --output {new}"


def words(text: str) -> tuple[str, ...]:
    """The words of a line."""
    return tuple(text.split())


COUNTS = ("0", "-1", *NOT_WHOLE)
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    PROMPT: {
        "--max-new-tokens": (*COUNTS, HUGE),
        "--max-new-bytes": ("0", "-1", "9", "many"),
        "--num-return-sequences": (*COUNTS, HUGE),
        "--seed": ("-1", *NOT_WHOLE, HUGE),
        "--k": ("-1", *NOT_FINITE),
        "--K": ("-1", *NOT_FINITE),
        "--temperature": ("-1", *NOT_FINITE),
        "--repetition-penalty": ("0", "-1", *NOT_FINITE),
        "--top-k": ("-1", *NOT_WHOLE),
        "--top-p": ("0", "-0.1", "1.1", *NOT_FINITE),
        "--min-p": ("-0.1", "1", *NOT_FINITE),
        "--debt-window": COUNTS,
        "--batch-size": COUNTS,
        "--stop": ("''",),
        "--speculate": ("0", "-1", "1.5", "maybe"),
        "--byte.prefetch": ("-1", "1.5", "many"),
        "--rule": (
            "nonsense",
            "safe_only --k 2",
            "risky_only --budget fixed",
            "cold_start --K 2",
            "global_switch",
            "memfree",
            "memfree --passages {missing}",
            "memfree --passages {garbage}",
            "rcad",
            "rcad --setting alpha",
            "rcad --setting alpha=-1",
            "cp_fuse --setting grid_size=1",
            "token_swap --setting words=[]",
            "token_swap --level byte",
        ),
        "--divergence": ("tv",),
        "--debt": ("some",),
        "--budget": ("none",),
        "--level": ("word", "byte --max-new-bytes 0"),
        "--dtype": ("int8", "float23", ""),
        "--device": ("cuda:7", "cuda:-1", "tpu", "meta", "cpu:0", "''"),
        "--risky-device": ("cpu", "gpu"),
        "--tp-size": ("2", *COUNTS),
        "--unknown-option": ("1",),
        "--k 1 --K": ("2",),
        "--chat --continue-from": ("{ledger}",),
        "--continue-from": ("{ledger}",),
        "--prompt-file": ("{prompts}",),
        "--chat": ("",),
        "--prompt-ratios": ("{missing}", "{folder}", "{empty}", "{garbage}", "{ledger}", "{other}"),
        "--risky-quantization": ("{missing}", "{folder}", "{empty}", "{garbage}", "{prompts}"),
        "--ledger": words(
            "{existing} {folder} {fifo} {link} {under_file} {long_name} /proc/none/x.jsonl"
        ),
    },
    GENERATE: {
        "": ("",),
        "--prompt": ("", "''", "'{long_text}'"),
        "--prompt-file": words(
            "{missing} {folder} {empty} {garbage} {ledger} {prompts_broken} {prompts_list} "
            "{prompts_without} {prompts_number} {prompts_seed} {prompts_k} {prompts_nan} "
            "{prompts_negative} {prompts_key} {prompts_blank}"
        ),
        "--messages": ("{missing}", "{folder}", "{empty}", "{garbage}", "{prompts}"),
        "--continue-from": ("{missing}", "{folder}", "{empty}", "{garbage}", "{ended}"),
    },
    "generate --prompt a": {
        "--pair": ("{missing}", "{folder}", "{garbage}", "{prompts}", "{folder} --safe {safe}"),
        "--safe": ("{safe}",),
    },
    SCORE: {
        "--horizon": ("0", "-1", *NOT_WHOLE),
        "--prompt": ("''", "'{long_text}'"),
        "--continuation": ("", "'{long_text}'"),
        "--k": ("-1", *NOT_FINITE),
        "--rule": ("nonsense",),
        "--temperature": ("1",),
        "--prompt-ratios": ("{missing}", "{garbage}", "{other}"),
    },
    "score {pair}": {"": ("", "--prompt a", "--continuation b")},
    f"{PROMPT} --overwrite": {"--ledger": ("{folder}", "{fifo}", "{link}", "{under_file}")},
    f"{RATIOS} --overwrite": {"--output": ("{folder}", "{fifo}", "{link}")},
    f"{VERIFY} --overwrite": {
        "--divergences": ("{folder}", "{fifo}", "{link}", "{ledger}"),
        "--divergences one.png --picture": ("one.png",),
    },
    RATIOS: {
        "--prompt": ("", "''", "'{long_text}'"),
        "--output": ("{existing}", "{folder}", "{fifo}", "{under_file}", ""),
        "--k": ("-1", "nan"),
    },
    "ratios {pair}": {"": ("--prompt a", "--output {new}")},
    "retrieve": {"": ("--corpus {texts}", "--corpus {missing} --prompt-file {empty}")},
    VERIFY: {
        "--ledger": words(
            "{missing} {folder} {empty} {garbage} {prompts} {other} {cut_ledger} {line_missing} "
            "{list_ledger} {step_text} {field_missing} {field_unknown} {field_mistyped} "
            "{field_null}"
        ),
        "--unknown": ("1",),
        "--device": ("cuda:7",),
        "--divergences": ("{existing}", "{folder}", "{fifo}", "{under_file}", "{ledger}"),
        "--picture": ("{existing_png}", "{new}", "{folder}", "{fifo}", "x.txt", "{under_file}"),
    },
    "verify {pair}": {"": ("",)},
    TOKENIZE: {
        "--tokenizer": words("{missing} {folder} a/b a@b {empty} {garbage}"),
        "--input": ("{missing}", "{folder}", "{garbage}"),
        "--output": ("{somebody}", "{existing}", "{under_file}", "{fifo}"),
        "--mixture": ("{missing}", "{folder}", "{empty}", "{garbage}", "{toml_odd}"),
        "--heldout-fraction": ("-0.1", "1.1", "nan", "many"),
        "--max-document-bytes": ("0", "-1", "many"),
        "--shard-tokens": ("0", "-1", "1.5"),
        "--workers": ("-1", "many"),
        "--dataset": ("a/b",),
    },
    "plan": {
        "--config": words(
            "{missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} {toml_circle} "
            "{mixture_weight} {mixture_key}"
        ),
        "--max-epochs": ("-1", "many", "nan"),
        "--step": ("1", "-1", "x"),
        "--step 1 --stage": ("stage9",),
        "--output": ("{existing}", "{folder}", "{fifo}", "{under_file}"),
    },
    "vllm serve --safe {safe} --risky {risky}": {
        "--default-k": ("-1", "nan", "x"),
        "--divergence": ("tv",),
        "--max-k": ("-1",),
    },
    "vllm serve": {"": ("", "--safe {missing} --risky {risky}")},
    "ledgers": {"--journal": words("{missing} {folder} {empty} {garbage} ''"), "": ("",)},
    "dry-run": {
        "--config": ("{missing}", "{folder}"),
        "--gpus": ("0", "-1", "x"),
        "--mfu": ("0", "2", "nan"),
        "--peak-flops": ("0", "-1", "nan"),
    },
    EXPORT: {
        "--checkpoint": ("{missing}", "{folder}", "{empty}", "{safe}"),
        "--tokenizer": ("{missing}", "{empty}"),
        "--output": ("{folder}", "{existing}", "{under_file}"),
        "--dtype": ("float64", "int8"),
        "--average-last": ("0", "x"),
        "--max-position-embeddings": ("x",),
    },
    "export": {"": ("",)},
    "tokenize --tokenizer {tokens}": {
        "": ("", "--source s", "--output {new}", "--sample 1"),
        "--sample": ("-1", *NOT_WHOLE),
        "--source s --sample 1 --input": ("{missing}", "{folder}"),
    },
    "decontaminate --against {mixture_key} --output {new}": {
        "": ("", "--source s", "--source s --input {missing}", "--source s --input {folder}"),
        "--source s --input {texts} --against": (
            *("{missing}", "{folder}", "{garbage}", "{empty}", "{texts}", "{prompts_blank}"),
            *("{garbage_jsonl}", "{fifo}"),
        ),
        "--source s --input {texts} --output": ("{somebody}", "{under_file}", "{existing}"),
        "--source s --input {texts} --least-chars": ("-1", *NOT_WHOLE),
        "--source s --input {texts} --workers": ("-1", *NOT_WHOLE),
        "--mixture": ("{missing}", "{folder}", "{toml_broken}", "{toml_odd}"),
    },
    "plan --config {toml_odd}": {
        "": ("--verify", "--document a", "--document a:b:c", "--document a:b:1 --step 2"),
        "--document a:b:1": ("", "--stage nothing"),
    },
    "paper": {
        "": ("", "llama3.1-70b+tinycomma-1.8b", "nothing --books {folder} --bios {folder}"),
        "llama3.1-70b+tinycomma-1.8b --bios {folder} --books": ("{missing}", "{texts}", "{folder}"),
        "llama3.1-70b+tinycomma-1.8b --books {folder} --bios": ("{missing}", "{texts}"),
    },
    "quickstart": {
        "--preset": ("huge", ""),
        "--model": ("{missing}", "{texts}", ""),
        "--output": ("{somebody}", "{existing}", "{under_file}", "{other_quickstart}"),
    },
    "demo": {
        "": ("", "--safe {missing} --risky {missing}"),
        "--safe {safe} --risky {risky} --port": ("0", "-1", "65536", *NOT_WHOLE),
    },
    "sweep": {
        "": (
            *("", "{missing}", "{folder}", "{empty}", "{garbage}", "{toml_odd}", "{toml_broken}"),
            *("{toml_circle} --dry-run", "{toml_odd} --inputs", "{toml_odd} --output"),
        ),
    },
    "calibrate": {"": ("", "--safe {missing} --risky {risky} --prompt-file {prompts}")},
    "calibrate --safe {safe} --risky {risky}": {
        "--prompt-file": ("{missing}", "{folder}", "{empty}", "{garbage}", "{prompts}"),
    },
    "calibrate --safe {safe} --risky {risky} --prompt-file {prompts}": {
        "--output": ("{existing}", "{fifo}", "{under_file}"),
        "--metric": ("nonsense",),
        "--target": ("-1", "nan", "x"),
        "--confidence": ("0", "1", "nan"),
        "--smallest-k": ("0", "-1", "30", "nan"),
        "--first-ks": ("0", "1", "x"),
    },
    "evaluate": {
        "": words("'' {missing} {existing} {folder} {empty} {garbage} {prompts} {texts}"),
        "{folder} --texts": ("-1", *NOT_WHOLE),
        "{folder} --ledgers": ("-1", "x"),
        "{folder} --ncr-of": ("{missing}", "{existing}"),
        "{folder} --evidence": ("{existing}",),
        "{folder} --judge-model m --limit": ("0", "x"),
        "{folder} --judge-model m --evidence": ("{missing}", "{existing} --serper"),
    },
    "evaluate {texts}/one.jsonl": {
        "": ("", "--only", "--only nothing", "--only report", "--only fluency"),
        "--only copying": ("", "--prompts {missing}", "--prompts {garbage}"),
        "--only nonliteral": ("", "--comparator <", "--num-characters -1", "--num-characters x"),
        "--judge-model": ("", "''", "m --judge-url nowhere"),
        "--judge-model m --judge-url": ("http://user:key@host/v1", "ftp://host", "''"),
    },
    "evaluate {texts}/one.jsonl --judge-model m --judge-url http://127.0.0.1:9/v1": {
        "--output": ("{existing}", "{fifo}", "{under_file}"),
        "--prompts": ("{missing}", "{garbage}", "{prompts_list}"),
        "--answers": ("{existing}",),
        "--concurrency": COUNTS,
        "--max-retries": ("-1", *NOT_WHOLE),
        "--limit": ("-1", "1.5"),
        "--timeout-s": ("0", "-1", *NOT_FINITE),
        "--price-in": ("-1", *NOT_FINITE),
        "--only factuality": ("", "--serper --corpus {texts}/one.jsonl"),
        "--corpus": ("{missing}", "{folder}"),
        "--evidence": ("{missing}", "{folder}", "{garbage}", "{prompts}"),
        "--pool": ("nobody",),
        "--num-comparisons": COUNTS,
    },
    "compare": {
        "": (
            *("", "{missing}", "{folder}", "{empty}", "{garbage}", "{toml_odd}", "{toml_broken}"),
            *("{toml_circle} --dry-run", "{toml_odd} --model ours", "{toml_odd} --limit -1"),
        ),
    },
    "prompts": {
        "": ("", "--kind books --input {missing} --output {missing}"),
        "--kind books --output new.jsonl --input": ("{folder}", "{empty}", "{garbage}"),
        "--kind books --input {prompts} --output": ("{existing}", "{folder}", "{fifo}"),
        "--kind": ("poems",),
    },
    "lm-eval": {"": ("--nonsense", "nonsense", "run --limit x", "run --model", "validate")},
    "bench kernel": {"--batch-sizes": ("0", "x"), "--threads": ("-1",)},
    "bench decode --vocab-size 64": {
        "--new-length": ("1",),
        "--methods": ("nonsense",),
        "--drafts": ("0",),
    },
    "bench pretrain": {"--config": ("{missing}", "{garbage}"), "--levers": ("nonsense",)},
    "nonsense": {"": ("", "--help-me")},
    "bench": {"": ("", "nonsense")},
}
MODELS = words(
    "missing folder empty config_empty config_garbage config_type tokenizer_missing "
    "tokenizer_empty tokenizer_garbage weights_missing no/such/place a/b@c config_list "
    "config_sizes tokenizer_other weights_empty weights_truncated weights_garbage weights_partial"
)
SINGLE_COMMAND_LINES = (
    # A budget or a setting that another option would silently replace.
    f"{PROMPT} --setting k=0.1",
    f"{PROMPT} --setting K=0.5",
    f"{PROMPT} --setting budget=fixed",
    f"{PROMPT} --rule no_opt --setting k=0.1",
    f"{PROMPT} --rule cold_start --setting k=2 --k 1",
    f"{PROMPT} --rule rcad --setting alpha=1 --setting alpha=2",
    f"{PROMPT} --rule memfree --passages {{prompts}} --setting passages=[]",
    f"{PROMPT} --rule anchored --setting debt_window=3",
    f"{PROMPT} --rule rcad --setting alpha=nan",
    f"{PROMPT} --rule rcad --setting alpha=null",
    f"{PROMPT} --rule rcad",
    f"{PROMPT} --rule system --setting prompt=5",
    f"{PROMPT} --rule cp_fuse --setting grid_size=1000000",
    f"{PROMPT} --rule memfree --setting n=99999999999 --setting corpus={{letters}}",
    f"{PROMPT} --rule memfree --setting corpus={{missing}}",
    f"{PROMPT} --rule token_swap --setting words=lamp",
    f"{PROMPT} --k 1 --k 2",
    f"{PROMPT} --seed 1 --seed 2",
    f"{PROMPT} --chat --no-chat",
    f"{PROMPT} --temperature 1 --temperature=0.5",
    f"{PROMPT} --max-new-bytes 4 --max_new_bytes 5",
    "score {pair} --prompt a --prompt b --continuation c",
    "score {pair} --prompt a --continuation b --continuation c",
    "verify {pair} --ledger {ledger} --ledger {other}",
    # Prompts that no model need be loaded for.
    f"{GENERATE} --prompt-file {{prompts_huge_seed}}",
    f"{GENERATE} --prompt-file {{prompts_huge_k}}",
    f"{GENERATE} --prompt-file {{prompts_deep}}",
    f"{GENERATE} --prompt-file {{prompts_bom}}",
    f"{GENERATE} --prompt-file {{prompts}} --rule rcad",
    f"{GENERATE} --prompt-file {{prompts_passage}} --rule rcad",
    f"{GENERATE} --prompt-file {{prompts}} --chat",
    f"{GENERATE} --messages {{prompts_huge_seed}}",
    # Outputs that the same command reads, or that are no place for a file.
    f"{GENERATE} --prompt-file {{prompts}} --ledger {{prompts}} --overwrite",
    f"{GENERATE} --continue-from {{ledger}} --ledger {{ledger}} --overwrite",
    f"{GENERATE} --continue-from {{ledger}} --ledger {{hard_link}} --overwrite",
    f"{PROMPT} --ledger {{safe}}/config.json --overwrite",
    f"{PROMPT} --ledger {{risky}}/model.safetensors --overwrite",
    f"{PROMPT} --prompt-ratios {{other}} --ledger {{other}} --overwrite",
    f"{PROMPT} --ledger ''",
    f"{PROMPT} --ledger {{new}}/",
    f"{VERIFY} --divergences {{new}}/",
    f"{RATIOS}{REPLACES}--output {{new}}/",
    "retrieve --corpus {letters} --prompt-file {prompts} --output {new}/",
    "ratios {pair} --prompt a --output {safe}/tokenizer.json --overwrite",
    f"{VERIFY} --divergences {{hard_link}} --overwrite",
    f"{VERIFY} --picture ''",
    "evaluate {texts}/one.jsonl --only copying --output {texts}/one.jsonl",
    "evaluate {texts}/one.jsonl --only copying --prompts {prompts} --output {prompts}",
    "prompts --kind books --input {books} --output {books} --overwrite",
    "retrieve --corpus {letters} --prompt-file {prompts} --output {letters} --overwrite",
    "retrieve --corpus {letters} --prompt-file {prompts} --output {prompts} --overwrite",
    "retrieve --corpus {letters} --prompt-file {prompts} --index {new}",
    "retrieve --corpus {no_text} --prompt-file {prompts} --index {new}",
    "retrieve --corpus {letters} --prompt-file {prompts} --instruction Find",
    # Configs by name, and what they hold.
    "sweep no-such-methods --dry-run",
    "sweep ~nobody/x.toml --dry-run",
    "sweep {sweep_label} --dry-run",
    "sweep {sweep_rule} --dry-run",
    "sweep {sweep_type} --dry-run",
    "sweep {sweep_prompts} --dry-run",
    "sweep {base_number} --dry-run",
    "sweep {base_missing} --dry-run",
    "compare quickstart-methods --dry-run",
    "plan --config nothing-of-this-name",
    "plan --config {toml_odd} --output {toml_odd} --overwrite",
    "quickstart --output {existing}",
    # Words.
    "vllm",
    "generat",
    "generate {safe} {risky} --prompt a",
    "ledgers --journal {folder} --out {existing}",
)
"""One line each, as a user may type them."""
READ_COMMAND_LINES = (
    f"{TOKENIZE}{REPLACES}--input {{empty_jsonl}}",
    f"{TOKENIZE}{REPLACES}--input {{garbage_jsonl}}",
    f"{TOKENIZE}{REPLACES}--text-field nowhere",
    f"{TOKENIZE}{REPLACES}--licences GPL",
)
"""Lines whose mistake shows only when the data are read."""


def command_lines() -> Iterator[str]:
    """All of them, with their {places} to be filled in."""
    for command, options in OPTIONS.items():
        for option, values in options.items():
            for value in values:
                yield f"{command}{REPLACES}{option} {value}".strip()
    for model in MODELS:
        place = f"{{{model}}}" if "/" not in model else model
        yield f"generate --safe {place} --risky {{risky}} --prompt a --max-new-tokens 3"
        yield f"score --safe {{safe}} --risky {place} --prompt a --continuation b"
    yield from SINGLE_COMMAND_LINES


FORKED_COMMAND_LINES = (
    f"{PROMPT}{REPLACES}--ledger {{fifo}}",
    f"{PROMPT}{REPLACES}--device cuda:7",
    f"{PROMPT}{REPLACES}--k nan",
    f"{GENERATE}{REPLACES}--prompt-file {{prompts_broken}}",
    f"{SCORE}{REPLACES}--prompt-ratios {{garbage}}",
    f"{RATIOS}{REPLACES}--output {{folder}}",
    f"{VERIFY}{REPLACES}--ledger {{cut_ledger}}",
    f"{VERIFY}{REPLACES}--divergences {{existing}}",
    "plan --config {toml_broken}",
    f"{EXPORT}{REPLACES}--output {{existing}}",
    "dry-run --config {empty}",
    "dry-run --config {garbage}",
    "dry-run --config {toml_odd}",
)
"""Run as processes; the last ones import torchtitan, which this one must not."""
