"""A keyed permutation of 0 .. size-1 that is computed, not stored."""

import hashlib

_MASK64 = (1 << 64) - 1
_NUM_ROUNDS = 6


class KeyedPermutation:
    """A bijection of range(size): the same key gives the same order on every machine.

    A balanced Feistel network permutes the smallest power of four that holds `size`; an image
    outside range(size) is permuted again until it falls inside (cycle walking), at most four
    times on average. Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
    """

    def __init__(self, size: int, key: str) -> None:
        """size: at least 1. key: any text; other texts give other orders."""
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, got {size}")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _NUM_ROUNDS).digest()
        self._round_keys = [
            int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_NUM_ROUNDS)
        ]

    def __getitem__(self, index: int) -> int:
        """The element at `index`, both in range(size)."""
        if not 0 <= index < self.size:
            raise IndexError(f"index must be in [0, {self.size}), got {index}")
        image = self._encrypt(index)
        while image >= self.size:
            image = self._encrypt(image)
        return image

    def _encrypt(self, value: int) -> int:
        half_bits = self._half_bits
        mask = (1 << half_bits) - 1
        left, right = value >> half_bits, value & mask
        for round_key in self._round_keys:
            left, right = right, left ^ (_scramble(right ^ round_key) & mask)
        return left << half_bits | right


def _scramble(value: int) -> int:
    # Finaliser of splitmix64 (Steele et al. 2014): every input bit reaches every output bit.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
