"""Files that appear whole or not at all, and replace nothing that was not there at the start."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anchored.durable_files import new_file, new_folder, write_durably


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writers_of_one_file_at_once_each_write_a_whole_one(tmp_path):
    folder = tmp_path / "new" / "folder"
    with new_file(folder / "a") as first, new_file(folder / "a") as second:
        first.write_text("first")
        second.write_text("second")
    assert (folder / "a").read_text() == "first" and names(folder) == {"a"}


@pytest.mark.parametrize("has_links", [True, False])
def test_of_several_writers_that_replace_nothing_one_gets_the_name(
    tmp_path, monkeypatch, has_links
):
    if not has_links:

        def link(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)

    def written(number: int) -> Path | None:
        """Where what could not get its name is kept."""
        try:
            write_durably(tmp_path / "a", str(number), overwrite=False)
        except FileExistsError as error:
            assert f"{tmp_path / 'a'} has appeared meanwhile and is kept; " in str(error)
            return Path(str(error).split("; ")[1].split(" holds")[0])
        return None

    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(written, range(8)))
    winner = kept.index(None)
    assert (tmp_path / "a").read_text() == str(winner) and kept.count(None) == 1
    assert [path.read_text() for path in kept if path] == [str(n) for n in range(8) if n != winner]


def test_an_error_leaves_nothing_and_names_the_file(tmp_path):
    write_durably(tmp_path / "a", "old")
    with pytest.raises(OSError, match=r"No space left on device: '.*/a'"), new_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "a") as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == {"a"}


def test_of_two_writers_of_one_folder_the_second_is_refused_and_harms_nothing(tmp_path):
    (tmp_path / "a.partial").mkdir()
    (tmp_path / "a.partial" / "half").touch()  # by a process that was killed
    with new_folder(tmp_path / "a") as first:
        (first / "weights").write_text("first")
        message = "another process is writing .*/a"
        with pytest.raises(FileExistsError, match=message), new_folder(tmp_path / "a"):
            pytest.fail("two writers fill one folder")
    assert names(tmp_path / "a") == {"weights"} and names(tmp_path) == {"a"}
