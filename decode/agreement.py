"""One token, and one plan, in every process that holds a part of the risky model."""

import torch.distributed
from torch import Tensor


def agreed(values: Tensor, num_processes: int) -> Tensor:
    """Values of process 0, in every process; unchanged where there is only one.

    Sums over the parts of the model may round differently from process to process, and a token
    that differed would make the caches differ from then on.
    """
    if num_processes > 1:
        torch.distributed.broadcast(values, src=0)
    return values
