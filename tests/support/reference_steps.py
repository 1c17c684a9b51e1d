"""The paper's algorithm over the text that a decoder has begun."""

from transformers import GenerationConfig

from anchored import Anchored, ModelPair, Pathwise
from anchored.decode.engine.request import random_key
from anchored.decode.reference_decoder import ReferenceStep, anchored_decode, prefix_debt
from anchored.decode.settings import SamplingConfig


def reference_steps(
    pair: ModelPair,
    prompt: list[int],
    rule: Anchored | Pathwise,
    *,
    length: int,
    seed: int,
    sampling: SamplingConfig | None = None,
) -> tuple[float, list[ReferenceStep]]:
    """The prompt's debt in nats, and what the algorithm draws for the seed.

    sampling: its warpers are those of transformers.
    """
    models, warpers = (pair.safe, pair.risky), None
    if sampling is not None:
        config = GenerationConfig(do_sample=True, eos_token_id=1, **sampling.as_dict())
        warpers = pair.risky._get_logits_processor(config, len(prompt), device="cpu")
    debt = prefix_debt(models, prompt, pair.tokenizer.all_special_ids, rule.debt_window)
    steps = anchored_decode(
        models,
        prompt,
        K=(rule.bank or 0.0) + rule.k * length,
        max_new_tokens=length,
        key=random_key(seed, prompt, level="token", place=0),
        stop_token_ids=pair.stop_token_ids,
        debt=debt,
        charge=rule.charge,
        schedule="adaptive" if isinstance(rule, Pathwise) else rule.budget,
        bank=rule.bank,
        warpers=warpers,
    )
    return debt, list(steps)
