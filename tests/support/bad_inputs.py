"""Command lines that must be refused.

No device stands for an output: where the command fails to refuse it, root would lose the device.
{name} stands for a place of `bad_places`, {new} for one with nothing there, {pair} for the options
that name a good pair.
"""

from collections.abc import Iterator

HUGE = str(10**30)
NOT_WHOLE = ("1.5", "nan", "many", "")
NOT_FINITE = ("nan", "inf", "-inf", "many")

GENERATE = "generate {pair} --max-new-tokens 3"
PROMPT = f"{GENERATE} --prompt a"
SCORE = "score {pair} --prompt a --continuation b"
RATIOS = "ratios {pair} --prompt a --output {new}"
VERIFY = "verify {pair} --ledger {ledger}"
DIVERGENCES = "divergences {pair} --ledger {ledger} --output {new}"
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
        "--byte.tau": ("-0.1", "1", "nan", "much"),
        "--byte.prefetch": ("-1", "1.5", "many"),
        "--byte.mode": ("odd",),
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
        "--engine": ("fast",),
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
    f"{DIVERGENCES} --overwrite": {
        "--output": ("{folder}", "{fifo}", "{link}"),
        "--output one.png --picture": ("one.png",),
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
    },
    "verify {pair}": {"": ("",)},
    DIVERGENCES: {
        "--ledger": ("{missing}", "{folder}", "{empty}", "{garbage}", "{cut_ledger}"),
        "--output": ("{existing}", "{folder}", "{fifo}", "{under_file}", "{ledger}"),
        "--picture": ("{existing_png}", "{new}", "{folder}", "{fifo}", "x.txt", "{under_file}"),
    },
    TOKENIZE: {
        "--tokenizer": words("{missing} {folder} a/b a@b {empty} {garbage}"),
        "--input": ("{missing}", "{folder}", "{garbage}"),
        "--output": ("{folder}", "{existing}", "{under_file}", "{fifo}"),
        "--mixture": ("{missing}", "{folder}", "{empty}", "{garbage}", "{toml_odd}"),
        "--heldout-fraction": ("-0.1", "1.1", "nan", "many"),
        "--max-document-bytes": ("0", "-1", "many"),
        "--shard-tokens": ("0", "-1", "1.5"),
        "--workers": ("-1", "many"),
        "--dataset": ("a/b",),
    },
    "measure copying": {
        "": words("{missing} {folder} {empty} {garbage} {prompts} {texts} {texts}/one.jsonl"),
        "{texts}/one.jsonl --prompts": ("{missing}", "{garbage}", "{prompts_list}"),
        "{texts}/one.jsonl --output": ("{existing}", "{folder}", "{fifo}", "{under_file}"),
    },
    "judge fluency --model m --base-url http://127.0.0.1:9/v1": {
        "": words("{missing} {folder} {empty} {garbage} {prompts} {texts}"),
        "{texts}/one.jsonl --output": ("{existing}", "{folder}", "{fifo}", "{under_file}"),
        "{texts}/one.jsonl --prompts": ("{missing}", "{garbage}"),
        "{texts}/one.jsonl --answers": ("{existing}",),
        "{texts}/one.jsonl --concurrency": COUNTS,
        "{texts}/one.jsonl --attempts": COUNTS,
        "{texts}/one.jsonl --max-retries": ("-1", *NOT_WHOLE),
        "{texts}/one.jsonl --limit": ("0", "-1", "1.5"),
        "{texts}/one.jsonl --timeout-s": ("0", "-1", *NOT_FINITE),
        "{texts}/one.jsonl --price-in": ("-1", *NOT_FINITE),
    },
    "judge fluency {texts}/one.jsonl": {
        "": ("", "--model ''", "--model m --base-url nowhere"),
        "--model m --base-url": ("http://user:key@host/v1", "ftp://host", "''"),
    },
    "judge factuality {texts}/one.jsonl --model m --base-url http://127.0.0.1:9/v1": {
        "": ("", "--serper --corpus {texts}/one.jsonl", "--serper --evidence {existing}"),
        "--corpus": ("{missing}", "{folder}"),
        "--evidence": ("{missing}", "{folder}", "{garbage}", "{prompts}"),
        "--evidence {prompts} --num-results": COUNTS,
    },
    "judge win-rate {texts}/one.jsonl --model m --base-url http://127.0.0.1:9/v1": {
        "": ("", "--pool nobody"),
        "--num-comparisons": COUNTS,
        "--confidence": ("0", "1", *NOT_FINITE),
        "--seed": NOT_WHOLE,
    },
    "measure nonliteral": {
        "": words("{missing} {folder} {empty} {garbage} {prompts} {texts}/one.jsonl"),
        "{texts}/one.jsonl --fluency": ("{missing}", "{folder}", "{garbage}", "{empty}"),
        "{texts}/one.jsonl --comparator": ("<", ""),
        "{texts}/one.jsonl --num-characters": ("-1", *NOT_WHOLE),
        "{texts}/one.jsonl --output": ("{existing}", "{folder}"),
    },
    "plan": {
        "--config": words(
            "{missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} {toml_circle} "
            "{mixture_weight} {mixture_key}"
        ),
        "--gpus": ("-1", "1.5"),
        "--mfu": ("-1", "1.5", "nan", "x"),
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
    "ladder": {
        "": words("{missing} {folder} {empty} {garbage} {toml_odd} {toml_broken} {toml_circle}"),
        "--confidence": ("0", "1", "-1", "nan", "most"),
    },
    "dry-run": {
        "--config": ("{missing}", "{folder}"),
        "--gpus": ("0", "-1", "x"),
        "--mfu": ("0", "2", "nan"),
        "--peak-flops": ("0", "-1", "nan"),
        "--gpu-gigabytes": ("0", "nan"),
        "--bandwidth": ("0", "x"),
        "--inputs": ("",),
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
    "train": {"": ("", "{missing}", "{folder}", "{toml_broken}")},
    "train {toml_odd}": {
        "--processes": COUNTS,
        "--max-crashes": COUNTS,
        "--shutdown-seconds": ("0", "-1", "nan"),
        "--set": ("optimizer.lr",),
    },
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
    "provenance --config {toml_odd}": {
        "": ("", "--document a", "--document a:b:c", "--document a:b:1 --steps -1"),
        "--document a:b:1": ("", "--stage nothing", "--text {existing}"),
        "--text": ("{missing} --tokenizer {tokens}", "{existing}"),
    },
    "provenance --document a:b:1 --config": {
        "": ("", "{missing}", "{folder}", "{toml_broken}", "{garbage}"),
    },
    "verify-shards": {
        "": ("", "{missing}", "{texts}", "{existing}"),
        "--config": ("{missing}", "{folder}", "{toml_broken}", "{toml_odd}"),
    },
    "rollback": {"": ("", "{folder}", "{missing} --step 1")},
    "rollback {folder}": {
        "--step": ("1", *NOT_WHOLE),
        "--step 1 --skip-steps": ("-1", *NOT_WHOLE),
        "--step 1 --set": ("optimizer.lr",),
    },
    "quickstart": {
        "--preset": ("huge", ""),
        "--output": ("{somebody}", "{existing}", "{under_file}", "{other_quickstart}"),
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
        "": ("", "{missing}", "{existing}", "{folder}", "{folder} --texts -1"),
        "{folder} --judge-model m --limit": ("0", "x"),
        "{folder} --ncr-of": ("{missing}", "{existing}"),
        "{folder} --judge-model m --evidence": ("{missing}", "{existing} --serper"),
        "{folder} --evidence": ("{existing}",),
    },
    "analyse": {"": ("", "{missing}", "{existing}", "{folder}")},
    "report": {
        "": ("", "{missing}", "{existing}", "{folder}", "{folder} --texts -1"),
        "{folder} --ledgers": ("-1", "x"),
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
    "gpu-check": {
        "--part": ("all-of-it",),
        "--output": ("{existing}", "{folder}", "{fifo}", "{under_file}"),
    },
    "bench forward": {"--shape": ("giant",), "--vocab-size": ("0", "-1", "x")},
    "bench kernel-compile": {"--variants": ("nonsense",)},
    "bench kernel": {
        "--batch-sizes": ("0", "-1", "x"),
        "--vocab-size": ("0", "x"),
        "--threads": ("0", "-1"),
    },
    "bench decode --vocab-size 64": {
        "--safe": ("giant",),
        "--new-tokens": ("1", "0"),
        "--runs": ("0",),
        "--device": ("cuda:7", "tpu"),
        "--dtype": ("float23",),
        "--k": ("-1", "nan"),
    },
    "bench byte": {
        "--runs": ("0",),
        "--tau": ("0", "1", "nan"),
        "--tables": ("nonsense",),
        "--tokenizers": ("{missing}", "{folder}"),
        "--folder": ("{existing}", "{folder}", "{under_file}"),
    },
    "bench speculate": {
        "--safe": ("{safe}",),
        "--runs": ("0",),
        "--drafts": ("0", "x"),
        "--device": ("cuda:7",),
        "--clock cpu --device": ("cuda",),
        "--dtype": ("float23",),
    },
    "bench lm-eval": {
        "--questions": ("0", "x"),
        "--runs": ("0",),
        "--k": ("-1", "nan"),
        "--device": ("cuda:7",),
    },
    "bench tokenize": {
        "": ("", "--input {missing} --tokenizer {tokens}", "--input {texts} --tokenizer {folder}"),
    },
    "bench loader": {"--sources": ("0", "x"), "--runs": ("0",), "--batches": ("-1",)},
    "bench pretrain": {
        "--config": ("{missing}", "{folder}", "{empty}", "{garbage}"),
        "--levers": ("nonsense",),
        "--rounds": ("3", "0"),
        "--gpus": ("0", "-1"),
    },
    "bench flops": {"--prompt-tokens": ("0", "x"), "--device": ("cuda:7",)},
    "nonsense": {"": ("", "--help-me")},
    "bench": {"": ("", "nonsense")},
}
MODELS = words(
    "missing folder empty config_empty config_garbage config_type tokenizer_missing "
    "tokenizer_empty tokenizer_garbage weights_missing no/such/place a/b@c config_list "
    "config_sizes tokenizer_other weights_empty weights_truncated weights_garbage weights_partial"
)
READ_COMMAND_LINES = (
    f"{TOKENIZE} --input {{empty_jsonl}}",
    f"{TOKENIZE} --input {{garbage_jsonl}}",
    f"{TOKENIZE} --text-field nowhere",
    f"{TOKENIZE} --licences GPL",
)
"""What is wrong shows only when the data are read."""


def command_lines() -> Iterator[str]:
    """All of them, with their {places} to be filled in."""
    for command, options in OPTIONS.items():
        for option, values in options.items():
            for value in values:
                yield " ".join(word for word in (command, option, value) if word)
    for model in MODELS:
        place = f"{{{model}}}" if "/" not in model else model
        yield f"generate --safe {place} --risky {{risky}} --prompt a --max-new-tokens 3"
        yield f"score --safe {{safe}} --risky {place} --prompt a --continuation b"


FORKED_COMMAND_LINES = (
    f"{PROMPT} --ledger {{fifo}}",
    f"{PROMPT} --device cuda:7",
    f"{PROMPT} --k nan",
    f"{GENERATE} --prompt-file {{prompts_broken}}",
    f"{SCORE} --prompt-ratios {{garbage}}",
    f"{RATIOS} --output {{folder}}",
    f"{VERIFY} --ledger {{cut_ledger}}",
    f"{DIVERGENCES} --output {{existing}}",
    "plan --config {toml_broken}",
    f"{EXPORT} --output {{existing}}",
    "dry-run --config {empty}",
    "dry-run --config {garbage}",
    "dry-run --config {toml_odd}",
)
"""Run as processes; the last ones import torchtitan, which this one must not."""
