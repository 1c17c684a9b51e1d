"""A pair as one small file, pair.json: two models with their revisions, to share or to cite.

{"schema": "anchored-pair/1", "safe": "OWNER/NAME", "risky": "OWNER/NAME", "safe_revision": COMMIT,
"risky_revision": COMMIT, "k": 1.5, "level": "token"}, of which schema, safe and risky are needed.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from ...durable_files import write_durably
from ...fields import check_fields, checked_nats, from_record
from ..settings import LevelName
from .folder import ModelFolder, check_is_id, not_on_hub, read_json

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
    """Nats per token, or per byte, for commands with neither k nor K."""
    level: LevelName | None = None
    """The level of commands that name none."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.k is not None:
            checked_nats("k", self.k)

    @classmethod
    def read(cls, name: str | Path) -> "PairFile":
        """The pair.json of a folder, a file by itself, or that of a repository of the Hub.

        Raises FileNotFoundError where there is none, and ValueError, with the file and the key, for
        one that holds anything else.
        """
        file = _located(name)
        content = read_json(file)
        try:
            if (schema := content.get("schema")) != SCHEMA:
                raise ValueError(f"schema must be {SCHEMA!r}, got {schema!r}")
            pair = from_record(cls, content)
            return replace(pair, safe=_next_to(file, pair.safe), risky=_next_to(file, pair.risky))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    @classmethod
    def of(
        cls,
        names: Mapping[str, str | Path],
        folders: Mapping[str, ModelFolder],
        named: "PairFile | None" = None,
    ) -> "PairFile":
        """The pair of both models by "safe" and "risky": the names asked for, and their folders.

        A Hub id is pinned to the commit that was downloaded. named: the pair.json that names them,
        whose k and level are kept.
        """
        fields: dict[str, Any] = {} if named is None else {"k": named.k, "level": named.level}
        for model, name in names.items():
            folder = folders[model].parts[-1]
            is_local = Path(name).expanduser().exists()
            fields[model] = str(folder.resolve()) if is_local else str(name)
            fields[f"{model}_revision"] = None if is_local else folder.name
        return cls(**fields)

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

        Raises ValueError for a model in a folder, which is not on the Hub.
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
anchored generate --pair {repo_id} --prompt "The keeper before me"
```

```python
pair = anchored.ModelPair.from_pretrained("{repo_id}")
```
"""


def _located(name: str | Path) -> Path:
    path = Path(name).expanduser()
    for file in (path, path / PAIR_FILE):
        if file.is_file():
            return file
    if path.exists():
        raise FileNotFoundError(f"there is no {PAIR_FILE} in {name}")
    check_is_id(name)
    try:
        return Path(hf_hub_download(str(name), PAIR_FILE))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise not_on_hub(name, PAIR_FILE, error) from error


def _next_to(file: Path, name: str) -> str:
    """A model of a pair.json: the folder next to it of that name, where there is one."""
    folder = file.parent / Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if Path(name).exists():  # it would be loaded in place of the model that is meant
        raise ValueError(f"{name!r} is a folder where this runs, but not next to the file")
    return name
