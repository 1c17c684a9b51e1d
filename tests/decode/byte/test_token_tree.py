"""The tree as it grows: what the trunk is, however long the text."""

from byte_streams import grown

PROSE = "The harbor bell rang twice; nobody'd pulled its rope.\n\n  It's  1234 caf\u00e9s! " * 3


def test_the_trunk_only_grows_and_begins_the_final_tokenization(tokenizer, tree):
    final = tokenizer.encode(PROSE).ids
    before: list[int] = []
    for byte in tree.vocabulary.normalize(PROSE):
        tree.append(byte)
        trunk = list(tree.trunk())
        assert trunk[: len(before)] == before
        assert [tree.token[node] for node in trunk] == final[: len(trunk)]
        before = trunk
    assert len(before) > 0.9 * len(final)


def test_long_texts_need_no_recursion(vocabulary):
    assert len(grown(vocabulary, b"ab" * 3000).trunk()) > 500
