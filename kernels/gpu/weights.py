"""Weights of tokens in float64, and sums that stay in the lanes of a warp until their end."""

import triton
import triton.language as tl

NUM_LANES = tl.constexpr(32)
"""A program is one warp: what its lanes hold is summed without a barrier."""

TO_INTEGER = tl.constexpr(1.5 * 2.0**52)
"""Added to a float64, it leaves the nearest integer in the last digits of the sum."""

LEAST_BITS = tl.constexpr(-1000.0)
"""A lower power of 2 counts as 0, before float64 loses digits; no sum below 2**-900 is trusted."""

C1 = tl.constexpr(float.fromhex("0x1.62e42fefa37d5p-1"))
C2 = tl.constexpr(float.fromhex("0x1.ebfbdff81be0ap-3"))
C3 = tl.constexpr(float.fromhex("0x1.c6b08d70c8610p-5"))
C4 = tl.constexpr(float.fromhex("0x1.3b2ab7240fde0p-7"))
C5 = tl.constexpr(float.fromhex("0x1.5d87fd93c2800p-10"))
C6 = tl.constexpr(float.fromhex("0x1.430897f74f000p-13"))
C7 = tl.constexpr(float.fromhex("0x1.ffce2f1a00000p-17"))
C8 = tl.constexpr(float.fromhex("0x1.63e691f000000p-20"))
C9 = tl.constexpr(float.fromhex("0x1.b3deb30000000p-24"))


@triton.jit
def weights(bits, is_there):
    """2**bits where is_there, else 0, and 0 where that is less than 2**LEAST_BITS; float64.

    bits: float64, at most 1000; any, NaN too, where not is_there. is_there: None where all are and
    no power is that low, which saves a quarter of the instructions.
    Relative error 2e-14; exactly 1 at 0. The library's takes twice the instructions.
    Source: Cody and Waite 1980, chapter 6, with the polynomial of least relative error.
    """
    shifted = bits + TO_INTEGER
    part = bits - (shifted - TO_INTEGER)
    series = C5 + part * (C6 + part * (C7 + part * (C8 + part * C9)))
    series = C1 + part * (C2 + part * (C3 + part * (C4 + part * series)))
    digits = (1.0 + part * series).to(tl.int64, bitcast=True)
    exponent = shifted.to(tl.int64, bitcast=True)
    powers = (digits + (exponent << 52)).to(tl.float64, bitcast=True)
    if is_there is not None:
        powers = tl.where(is_there & (bits > LEAST_BITS), powers, 0.0)
    return powers


@triton.jit
def in_lanes(values):
    """(NUM_LANES,) sums of what each lane holds of the values, which are as many for every lane."""
    return tl.sum(tl.reshape(values, [NUM_LANES, values.shape[0] // NUM_LANES]), 1)


@triton.jit
def largest_in_lanes(values):
    """(NUM_LANES,) the largest of what each lane holds of the values."""
    return tl.max(tl.reshape(values, [NUM_LANES, values.shape[0] // NUM_LANES]), 1)


@triton.jit
def power_sums(weight, tilt, square, cube):
    """(NUM_LANES, 2, 2) sums in lanes of weights, and of them times powers of the tilt.

    One tensor, for the interpreter takes long over each operation.
    """
    terms = tl.join(tl.join(weight, weight * tilt), tl.join(weight * square, weight * cube))
    return tl.sum(tl.reshape(terms, [NUM_LANES, weight.shape[0] // NUM_LANES, 2, 2]), 1)
