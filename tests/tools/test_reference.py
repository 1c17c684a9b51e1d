"""The reference of the public names, as `make docs` writes it."""

import pytest

import anchored

pytest.importorskip("pdoc")


@pytest.mark.slow
def test_every_public_name_and_module_is_found_from_the_first_page(tmp_path):
    from anchored.tools import reference

    assert reference.run(tmp_path) == 0
    page = (tmp_path / "anchored.html").read_text()
    assert [name for name in anchored.__all__ if f'<section id="{name}">' not in page] == []
    assert "Continuations of the prompts, in order." in page  # the docstring of Decoder.generate
    for module in reference.MODULES[1:]:
        path = module.replace(".", "/") + ".html"
        assert (tmp_path / path).exists() and f'href="{path}' in page
