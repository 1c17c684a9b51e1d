"""The soak of gpu-check on vLLM's CPU build: `python tests/support/vllm_soak.py 100000`."""

import sys
from dataclasses import replace
from functools import partial

if __name__ in ("__main__", "__mp_main__"):  # this process, and the engine's
    from vllm_on_cpu import interpret

    interpret()
    from vllm import _custom_ops
    from vllm.v1.worker.gpu.sample import sampler

    # vLLM's own product keeps 0.1 MB of every number of rows that it has seen: torch's instead.
    _custom_ops._supports_onednn = False
    # The rows that come here hold one token each: noise, a third of the time, changes nothing.
    sampler.gumbel_sample = lambda logits, *args, **options: logits.argmax(-1)

VOCAB_SIZE = 1000


def main(num_requests: int) -> None:
    import torch

    from anchored.tools.gpu_check import vllm_soak
    from anchored.tools.gpu_check.check import SMALL

    sizes = replace(SMALL, num_short=num_requests, vocab_size=VOCAB_SIZE)
    tell = partial(print, flush=True)
    check = vllm_soak.short_requests(torch.device("cpu"), sizes, tell)
    print("passed" if check.passed else "failed", check.detail, sep=": ")


if __name__ == "__main__":
    main(int(sys.argv[1]))
