"""The lm-eval model: what it generates, and how it is made from an argument string."""

from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval")

from anchored import Anchored, Decoder, SafeOnly
from anchored.eval.harness import AnchoredLM

CONTEXT = "the keeper of the lamp wrote"


def request(*args):
    return SimpleNamespace(args=args)


@pytest.fixture
def safe_lm(pair):
    return AnchoredLM(Decoder(pair, SafeOnly()), max_gen_toks=64)


def test_sampled_texts_depend_on_seed_context_and_repetition_alone(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    settings = {"until": [], "max_new_tokens": 12, "do_sample": True, "temperature": 0.9}
    other = request("Nine tides", settings | {"max_new_tokens": 5})
    twice = [request(CONTEXT, settings), other, request(CONTEXT, settings)]
    first, _, again = AnchoredLM(decoder, seed=3).generate_until(twice, disable_tqdm=True)
    (alone,) = AnchoredLM(decoder, seed=3).generate_until(
        [request(CONTEXT, settings)], disable_tqdm=True
    )
    (reseeded,) = AnchoredLM(decoder, seed=4).generate_until(
        [request(CONTEXT, settings)], disable_tqdm=True
    )
    assert first == alone
    assert len({first, again, reseeded}) == 3


def test_generation_ends_at_a_stop_text(safe_lm):
    settings = {"max_gen_toks": 12, "do_sample": False}
    (whole,) = safe_lm.generate_until([request(CONTEXT, settings)], disable_tqdm=True)
    stop = whole[3:5]
    (cut,) = safe_lm.generate_until(
        [request(CONTEXT, settings | {"until": [stop, ""]})], disable_tqdm=True
    )
    assert cut == whole[: whole.index(stop)]


def test_warpers_are_off_unless_a_task_sets_them(safe_lm, monkeypatch):
    calls = []

    def generate(prompts, **settings):
        calls.append(settings)
        return [SimpleNamespace(text="", error="") for _ in prompts]

    monkeypatch.setattr(safe_lm.decoder, "generate", generate)
    for gen_kwargs in (
        {"until": "\n"},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2},
    ):
        safe_lm.generate_until([request(CONTEXT, gen_kwargs)], disable_tqdm=True)
    chosen = [{name: v for name, v in call.items() if name != "seed"} for call in calls]
    default = {"max_new_tokens": 64, "repetition_penalty": 1.0}
    assert chosen == [
        default | {"temperature": 0.0, "stop": ("\n",)},
        default | {"temperature": 1.0, "stop": ()},
        default | {"temperature": 0.7, "stop": (), "top_p": 0.9, "repetition_penalty": 1.2},
    ]


def test_unknown_generation_settings_are_refused(safe_lm):
    with pytest.raises(ValueError, match=r"generation settings must be among .*'num_beams'"):
        safe_lm.generate_until([request(CONTEXT, {"num_beams": 4})], disable_tqdm=True)


def test_more_tokens_than_the_context_are_refused(safe_lm):
    with pytest.raises(ValueError, match=r"max_gen_toks must leave room.* got 128"):
        safe_lm.generate_until([request(CONTEXT, {"max_gen_toks": 128})], disable_tqdm=True)


def test_chats_go_through_the_tokenizers_own_template(safe_lm, monkeypatch):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    monkeypatch.setattr(
        safe_lm.tokenizer, "chat_template", template + "{% if add_generation_prompt %}>{% endif %}"
    )
    chat = [{"role": "user", "content": "hello"}]
    assert safe_lm.apply_chat_template(chat) == "[user]hello>"
    assert safe_lm.chat_template(True) == safe_lm.tokenizer.chat_template
    assert isinstance(safe_lm.tokenizer_name, str)


@pytest.mark.parametrize("level", ["byte", "token"])
def test_the_level_is_an_argument(pair_folders, level):
    safe, risky = pair_folders
    lm = AnchoredLM.create_from_arg_string(f"safe={safe},risky={risky},k=1.0,level={level}")
    assert lm.decoder.level.name == level
