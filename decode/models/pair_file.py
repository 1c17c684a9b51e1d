"""A pair as one small file, pair.json: two models with their revisions, to share or to cite.

{"schema": "anchored-pair/1", "safe": "OWNER/NAME", "risky": "OWNER/NAME", "safe_revision": COMMIT,
"risky_revision": COMMIT, "k": 1.5, "level": "token"}, of which schema, safe and risky are needed.
"""

import json
import os
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from ...durable_files import write_durably
from ...field_types import field_error
from ..settings import LevelName
from .folder import ModelFolder, read_json

SCHEMA: Final = "anchored-pair/1"
PAIR_FILE: Final = "pair.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFile:
    """Two models that decode together, and how they do unless a call says otherwise."""

    schema: Literal["anchored-pair/1"] = SCHEMA
    safe: str
    """Hub id or folder; in a file, a folder may be relative to it."""
    risky: str
    """Hub id or folder of the risky model."""
    safe_revision: str | None = None
    """Branch, tag or commit of a Hub id."""
    risky_revision: str | None = None
    """Branch, tag or commit of the risky model."""
    k: float | None = None
    """Nats a token, or a byte, for commands that are given neither k nor K."""
    level: LevelName | None = None
    """The level of commands that are given none."""

    @classmethod
    def read(cls, name: str | Path) -> "PairFile":
        """The pair.json of a folder, a file by itself, or that of a repository of the Hub.

        Raises FileNotFoundError where there is none, and ValueError, with the file and the key, for
        one that holds anything else.
        """
        file = _located(name)
        content = read_json(file)
        if content.get("schema") != SCHEMA:
            raise ValueError(f"{file}: schema must be {SCHEMA!r}, got {content.get('schema')!r}")
        if error := field_error(cls, content):
            raise ValueError(f"{file}: {error}")
        models = {model: _beside(file, content[model]) for model in ("safe", "risky")}
        return cls(**{**content, **models})

    @classmethod
    def of(cls, given: Mapping[str, str | Path], found: Mapping[str, ModelFolder]) -> "PairFile":
        """Both models as they were asked for, by "safe" and "risky", and where they were found.

        A Hub id is pinned to the commit that was downloaded.
        """
        names: dict[str, Any] = {}
        for model, name in given.items():
            folder = found[model].parts[-1]
            is_local = Path(name).expanduser().exists()
            names[model] = str(folder.resolve()) if is_local else str(name)
            names[f"{model}_revision"] = None if is_local else folder.name
        return cls(**names)

    def save(self, folder: str | Path) -> None:
        """Write pair.json in a folder, where models in folders are named relative to it."""
        folder = Path(folder).expanduser()
        content = {name: value for name, value in asdict(self).items() if value is not None}
        for model in ("safe", "risky"):
            if Path(content[model]).is_dir():
                content[model] = os.path.relpath(content[model], folder.resolve())
        write_durably(folder / PAIR_FILE, json.dumps(content, indent=1) + "\n")

    def push(self, repo_id: str) -> str:
        """Upload pair.json and a README as one commit of a repository of the Hub; its address.

        Raises ValueError for a model in a folder, which nobody else has.
        """
        for model in (self.safe, self.risky):
            if Path(model).is_dir():
                raise ValueError(f"{model} is a folder: upload that model first, name it by its id")
        api = HfApi()
        api.create_repo(repo_id, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            (Path(folder) / "README.md").write_text(self._readme(repo_id), encoding="utf-8")
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message="Name a pair of models"
            )
        return str(commit)

    def _readme(self, repo_id: str) -> str:
        return f"""\
---
tags:
- anchored-decoding
base_model:
- {self.risky}
- {self.safe}
---
# {repo_id}

A pair of models for Anchored Decoding: `{self.risky}` generates within an information budget of
`{self.safe}`. This repository holds no weights, only `pair.json`.

```sh
anchored generate --pair {repo_id} --prompt "Once upon a time"
```

```python
pair = anchored.ModelPair.from_pretrained("{repo_id}")
```
"""


def _located(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.exists():
        if (path / PAIR_FILE).is_file():
            return path / PAIR_FILE
        raise FileNotFoundError(f"there is no {PAIR_FILE} in {name}")
    try:
        return Path(hf_hub_download(str(name), PAIR_FILE))
    except HFValidationError:
        reason = "there is no such folder, nor is it the id of a repository of the Hub"
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = textwrap.shorten(str(error), 200)
    raise FileNotFoundError(f"no {PAIR_FILE} at {name}: {reason}")


def _beside(file: Path, name: str) -> str:
    """A model of a pair.json: the folder beside it of that name, where there is one."""
    folder = file.parent / Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if Path(name).exists():  # it would be loaded in place of the model that is meant
        raise ValueError(f"{file}: {name!r} is a folder where this runs, but not beside the file")
    return name
