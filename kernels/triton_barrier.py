"""A barrier among the programs that share one request, inside a cooperative launch."""

import triton
import triton.language as tl


@triton.jit
def request_barrier(counter_ptr, NUM_SPLITS: tl.constexpr):
    """Wait until all NUM_SPLITS programs of the request have come here.

    counter_ptr: int64, counts arrivals for ever (2**63 are out of reach), so that replaying a CUDA
    graph needs no reset. The launch must be cooperative: every program must be resident.
    """
    tl.debug_barrier()  # all threads' stores precede the arrival of the program
    if NUM_SPLITS > 1:
        arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
        target = (arrived // NUM_SPLITS + 1) * NUM_SPLITS
        while tl.atomic_add(counter_ptr, 0, sem="acquire") < target:
            pass
        tl.debug_barrier()
