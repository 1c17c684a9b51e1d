"""Pairs of texts whose copying metrics were worked out by hand."""

NUMBERS = " ".join(f"w{i}" for i in range(1, 161))  # w1 .. w160, all different


def number_words(first, last):
    return " ".join(f"w{i}" for i in range(first, last + 1))


# name, hypothesis, reference, expected values; each derived by hand as the comment says.
HAND_CASES = [
    # 7 equal words; 29 letters and 6 spaces.
    (
        "identical",
        "Grey gulls wheel over the cold pier",
        "Grey gulls wheel over the cold pier",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=7, char_lcs=35, word_acs=7, jaccard=1, minhash=1),
    ),
    # No word in common; "o" and "e" are the only shared characters, never two in a row.
    (
        "disjoint",
        "zoo",
        "wept",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=0, word_acs=0, jaccard=0, minhash=0),
    ),
    # Case differs: words are lower-cased, characters are not: "ange tin" is left.
    (
        "upper_case",
        "ORange tin",
        "orange tin",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=2, char_lcs=8, word_acs=0),
    ),
    # "sat," is another word than "sat"; ROUGE drops punctuation. Words: "an owl" and "by night".
    (
        "comma",
        "an owl sat, by night",
        "an owl sat by night",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=2, char_lcs=10, word_acs=0, jaccard=0),
    ),
    # Same words in the opposite order: every unigram matches, a subsequence has one word.
    (
        "reversed",
        "red two blue",
        "blue two red",
        dict(rouge1_f1=1, rougeL_f1=1 / 3, word_lcs=1, word_acs=0, jaccard=0),
    ),
    # Stems dog(s), walk(ed), walk(s) agree; the words do not. Shared characters: " walk".
    (
        "stems",
        "dogs walked",
        "dog walks",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=0, char_lcs=5, word_acs=0),
    ),
    # 2 of 3 words on one side, 2 of 4 on the other: F1 = 2*2/(3+4).
    (
        "partial",
        "green door shut",
        "green door swung open",
        dict(rouge1_f1=4 / 7, rougeL_f1=4 / 7, word_lcs=2, word_acs=0, jaccard=0),
    ),
    # Spans of 5 and 6 words: only the second reaches the minimum of 6. Of 12 and 12 words, 11
    # match in order; shingles shared: 3 + 4, union 10 + 10 - 7.
    (
        "five_and_six",
        number_words(1, 5) + " x " + number_words(11, 16),
        number_words(1, 5) + " y " + number_words(11, 16),
        dict(word_lcs=6, word_acs=6, jaccard=7 / 13, rouge1_f1=22 / 24, rougeL_f1=22 / 24),
    ),
    # Both spans count, whatever their order in the reference; ROUGE-L sees the longer, 7 of 13.
    (
        "swapped_spans",
        number_words(1, 6) + " " + number_words(11, 17),
        number_words(11, 17) + " " + number_words(1, 6),
        dict(word_lcs=7, word_acs=13, rouge1_f1=1, rougeL_f1=7 / 13, jaccard=9 / 13),
    ),
    # The reference's 6 words come twice: they are copied once. 11 shingles, 4 of them repeated, so
    # 7 different ones, which hold the reference's 4.
    (
        "said_twice",
        number_words(1, 6) + " x " + number_words(1, 6),
        number_words(1, 6),
        dict(word_lcs=6, word_acs=6, rouge1_f1=12 / 19, rougeL_f1=12 / 19, jaccard=4 / 7),
    ),
    # The copy starts at word 101: no word metric sees it, the character metric does.
    (
        "behind_the_limit",
        " ".join(["pad"] * 100) + " " + number_words(1, 8),
        number_words(1, 8),
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=23, word_acs=0, jaccard=0, minhash=0),
    ),
    # Of 160 equal words the first 100 are read: 98 shingles. 9*2 + 90*3 + 61*4 characters, 159
    # spaces between them.
    (
        "long",
        NUMBERS,
        NUMBERS,
        dict(word_lcs=100, word_acs=100, char_lcs=18 + 270 + 244 + 159, jaccard=1, rouge1_f1=1),
    ),
    # F1 = 2*2/(5+5) is the threshold itself.
    (
        "threshold",
        "one two six six six",
        "one two ten ten ten",
        dict(rouge1_f1=0.4, rougeL_f1=0.4, word_lcs=2),
    ),
    # Two words make no shingle of three: similarity 0, not the 1 of two empty sets.
    (
        "too_short",
        "blue door",
        "blue door",
        dict(rouge1_f1=1, word_lcs=2, char_lcs=9, word_acs=0, jaccard=0, minhash=0),
    ),
    (
        "empty_hypothesis",
        "",
        "one two three",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=0, word_acs=0, jaccard=0, minhash=0),
    ),
    (
        "only_space_in_reference",
        "one two three",
        " \n",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=1, word_acs=0, jaccard=0, minhash=0),
    ),
]
