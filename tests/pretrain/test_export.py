"""Export: transformers loads the folder, and its logits are those of the trained model."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from training_runs import save_weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.durable_files import file_sha256
from anchored.pretrain.export import export_checkpoint, model_card
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.model.tinycomma import TinyComma, model_args
from anchored.pretrain.run.record import RunRecord

FORM = {"model": {"flavor": "quickstart"}, "training": {"seq_len": 48}}


@pytest.fixture(scope="module")
def trained(begin, tmp_path_factory):
    """A model in memory and its checkpoint, as a run of flavor quickstart leaves it."""
    folder = tmp_path_factory.mktemp("export") / "run"
    begin(folder, **FORM)
    config = load_job_config(["--job.config_file", str(folder.with_suffix(".toml"))])
    model = TinyComma(model_args(config))
    model.init_weights()
    with torch.no_grad():
        for parameter in model.parameters():  # norms away from 1, so that swapping them shows
            parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
    checkpoint = folder / "checkpoint" / "step-24"
    save_weights(model.state_dict(), checkpoint)
    return model, checkpoint


@pytest.fixture(scope="module")
def exported(trained, corpus, tmp_path_factory):
    """With the tokenizer's file from a model that had other ends and a chat template."""
    folder = tmp_path_factory.mktemp("exported")
    instruct = shutil.copytree(corpus.tokenizer_folder, folder / "instruct")
    path = instruct / "tokenizer_config.json"
    other = {"eos_token": "the", "bos_token": "rain", "chat_template": "{{ x }}"}
    path.write_text(json.dumps(json.loads(path.read_text()) | other | {"model_max_length": 9}))
    (instruct / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (instruct / "LICENSE").write_text("free")
    export_checkpoint(trained[1], instruct, folder / "model", max_position_embeddings=512)
    return folder / "model"


def test_logits_config_and_tokenizer_are_what_decoding_needs(trained, exported):
    trained_model, _ = trained
    model = AutoModelForCausalLM.from_pretrained(exported)
    token_ids = torch.randint(300, (3, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = trained_model(token_ids)
        actual = model(token_ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    config, tokenizer = model.config, AutoTokenizer.from_pretrained(exported)
    assert config.max_position_embeddings == tokenizer.model_max_length == 512
    for one in (config, tokenizer, model.generation_config):
        assert (one.bos_token_id, one.eos_token_id) == (298, 299)
    assert config.pad_token_id is None
    assert tokenizer.pad_token_id == model.generation_config.pad_token_id == 299
    assert not config.tie_word_embeddings and tokenizer.chat_template is None
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert len(tokenizer) == config.vocab_size and (exported / "LICENSE").read_text() == "free"


def test_an_unfit_export_is_refused_and_leaves_nothing(trained, corpus, exported, tmp_path):
    model, checkpoint = trained
    folder = shutil.copytree(checkpoint.parents[1], tmp_path / "run") / "checkpoint"
    lost = model.state_dict()
    lost["norm.weight"] = torch.full_like(lost["norm.weight"], torch.inf)
    save_weights(lost, folder / "step-99")
    data = folder / "step-24" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    for change, message in (
        ({"output": exported}, r"and .* exists"),
        ({"checkpoint": folder / "step-24"}, "complete checkpoint: __0_0.distcp is not what was w"),
        ({"checkpoint": folder / "step-99"}, "holds norm.weight, which is not finite"),
        ({"max_position_embeddings": 40}, "at least the training length 48, got 40"),
    ):
        sound = {"checkpoint": checkpoint, "tokenizer_folder": corpus.tokenizer_folder}
        with pytest.raises(ValueError, match=message):
            export_checkpoint(**{**sound, "output": tmp_path / "m", **change})
    assert not (tmp_path / "m").exists()


def test_the_model_card_says_what_was_read_under_which_licenses(exported, trained, corpus):
    card = (exported / "README.md").read_text()
    # 24 steps of 4 sequences of 48 tokens, from three equal sources.
    assert "4,608 tokens in sequences of 48; weights count tokens" in card
    assert "| max_position_embeddings | 512 |" in card
    (row,) = (line for line in card.splitlines() if line.startswith("| quarry | quarry"))
    assert "| quarry @ 1 | 1,536 | 33.33% |" in row and "| CC0-1.0 (25) |" in row
    assert "| harbour | not searched |" in card and "| optimizer.weight_decay | 0.033 |" in card
    assert card.endswith("several documents, without a mask between them.\n")
    assert RunRecord.read(trained[1].parents[1]).identity["data.plan_hash"] in card


def test_the_card_of_a_second_stage_tells_of_the_first(trained, begin, tmp_path):
    stage = {"checkpoint": {"initial_load_path": str(trained[1])}}
    data = {"sources": {"quarry": 2.0}, "mask_documents": True}
    _, record = begin(tmp_path / "second", data=data, **stage, **FORM)
    card = model_card(record, step=10, title="second")
    first, second = card.split("## Stage 2: 10 steps")
    assert "## Stage 1: 24 steps" in first and "| harbour |" in first
    assert "| quarry | quarry @ 1 | 1,920 | 100.00% |" in second and "harbour" not in second
    assert card.endswith("several documents, without a mask between them, in some stages.\n")
    card = model_card(replace(record, earlier=None), step=10, title="alone")
    assert card.endswith("several documents, and attention did not cross from one to another.\n")


@pytest.mark.parametrize(("adds", "began"), [(True, False), (False, True)])
def test_prompts_begin_as_the_documents_of_training_began(trained, corpus, tmp_path, adds, began):
    folder = shutil.copytree(trained[1].parents[1], tmp_path / "run")
    table = json.loads((corpus.tokenizer_folder / "tokenizer.json").read_text())
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(table if adds else table | {"post_processor": None}))
    record = replace(RunRecord.read(folder), tokenizer_sha256=file_sha256(file))
    replace(record, bos_id=record.bos_id if began else None).write(folder)
    checkpoint = folder / "checkpoint" / "step-24"
    export_checkpoint(checkpoint, tmp_path, tmp_path / "model", dtype="bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (298 if began else None, 299)
    assert tokenizer.model_max_length == 48
    first, *rest = tokenizer("salt and rain").input_ids
    assert (first == 298) == began and not {298, 299} & {*rest}
    card = (tmp_path / "model/README.md").read_text()
    assert ("began with the tokenizer's `bos_token` and ended with" in card) == began
