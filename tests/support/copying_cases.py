"""Texts of numbered words, whose copied spans can be told from their numbers."""


def number_words(first, last):
    return " ".join(f"w{i}" for i in range(first, last + 1))
