"""The tokenizer.json to tokenise with: in a local folder, or from the Hub."""

from pathlib import Path

NAME = "tokenizer.json"


def tokenizer_file(place: str) -> Path:
    """The path of a tokenizer.json, downloaded into the Hub's cache if it is not local.

    place: the file, its folder, or a Hub model as OWNER/NAME@REVISION.
    Raises: ValueError if there is no such file, or a Hub model is named without a revision.
    """
    path = Path(place)
    if path.is_file():
        return path
    if path.is_dir():
        if not (path / NAME).is_file():
            raise ValueError(f"tokenizer folder {path} has no {NAME}")
        return path / NAME
    name, has_revision, revision = place.partition("@")
    if name.count("/") != 1 or not (has_revision and revision):
        raise ValueError(
            f"tokenizer {place} is neither a file, nor a folder, nor OWNER/NAME@REVISION"
        )
    return _downloaded(name, revision)


def _downloaded(name: str, revision: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, NAME, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"tokenizer {name}@{revision} cannot be downloaded: {reason}") from error
