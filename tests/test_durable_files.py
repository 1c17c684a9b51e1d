"""Files that appear whole or not at all, and replace nothing that was not there at the start."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

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
def test_of_two_writers_that_replace_nothing_one_gets_the_name(tmp_path, monkeypatch, has_links):
    if not has_links:
        error = OSError(errno.EPERM, os.strerror(errno.EPERM))
        monkeypatch.setattr(os, "link", Mock(side_effect=error))
    write_durably(tmp_path / "a", "first", overwrite=False)
    with pytest.raises(FileExistsError, match="a has appeared meanwhile and is kept; ") as refusal:
        write_durably(tmp_path / "a", "second", overwrite=False)
    kept = Path(str(refusal.value).split("; ")[1].split(" holds")[0])
    assert (tmp_path / "a").read_text() == "first" and kept.read_text() == "second"


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
