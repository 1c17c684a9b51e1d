"""Texts of numbered words, whose copied spans can be told from their numbers."""

NUMBERS = " ".join(f"w{i}" for i in range(1, 161))  # w1 .. w160, all different


def number_words(first, last):
    return " ".join(f"w{i}" for i in range(first, last + 1))
