"""Two models with two tokenizers: budgets and steps are bytes."""

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/miniature", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=0.5))  # nats a byte
(result,) = decoder.generate("The keeper", max_new_bytes=120)
print(result.text)
print(result)
for model, work in result.ledger.work.items():
    print(f"{model}: {work}")
