"""Weights on disk: one file of safetensors, a folder of Hugging Face's, or one of ``save()``."""

import json
from pathlib import Path

import safetensors
import torch

from pyrannc.errors import RaNNCError
from pyrannc.stored import index as index_file
from pyrannc.stored import parts


def opened(path: Path):
    """The weights at ``path``.

    Raises:
        RaNNCError: There are none, a file is damaged, or an index names what is not in its folder.
    """
    if path.is_file():
        return _Safetensors(path.parent, {path.name: None})
    if (path / index_file.NAME).exists():
        return _Saved(path)
    if (path / index_file.WEIGHTS).exists():
        return _Safetensors(path, _files_of_index(path))
    if (path / index_file.WHOLE).exists():
        return _Safetensors(path, {index_file.WHOLE: None})
    raise RaNNCError(
        f"'{path}' holds no weights: it is neither a file nor a folder with {index_file.WHOLE}, "
        f"{index_file.WEIGHTS} or {index_file.NAME} in it.\n  Name a folder of pyrannc.save() or "
        "of save_pretrained() of transformers, or a file of safetensors."
    )


def _files_of_index(folder) -> dict:
    """The keys of each file that the index of Hugging Face's layout names."""
    path = folder / index_file.WEIGHTS
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        found = {}
        for key, file in weights.items():
            found.setdefault(file, set()).add(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RaNNCError(f"{path} is no index of weights: {error!r}") from error
    for file in found:
        if Path(file).name != file or file in (".", ".."):
            raise RaNNCError(
                f"{path} names the file '{file}', which is not one of its own folder.\n  It was "
                "edited; load other weights."
            )
        if not (folder / file).exists():
            raise RaNNCError(f"{folder / file} is missing, which {index_file.WEIGHTS} names")
    return found


class _Safetensors:
    """Tensors by their keys in files of safetensors.

    Attributes:
        shapes: Of each tensor.
        is_floating: Whether each has floating numbers.
        bytes_read: Of tensors, so far.

    Args:
        files: For each the keys that it must have; None for whatever it has.
    """

    def __init__(self, folder, files):
        self.folder, self.shapes, self.is_floating, self.bytes_read = folder, {}, {}, 0
        self._file_of, self._open, self._mapped = {}, {}, 0
        for file, wanted in files.items():
            content = self._file(file)
            keys = set(content.keys())
            if missing := sorted((wanted or set()) - keys):
                raise RaNNCError(
                    f"{folder / file} lacks '{missing[0]}', which {index_file.WEIGHTS} says is in "
                    "it: one of them was edited.\n  Load other weights."
                )
            for key in keys if wanted is None else wanted:
                part = content.get_slice(key)
                self._file_of[key] = file
                self.shapes[key] = list(part.get_shape())
                self.is_floating[key] = part.get_dtype().startswith(("F", "BF"))
        self._open.clear()

    def tensor(self, key: str) -> torch.Tensor:
        """In memory of the file: it is to be copied."""
        try:
            tensor = self._file(self._file_of[key]).get_tensor(key)
        except (safetensors.SafetensorError, OSError) as error:
            where = self.folder / self._file_of[key]
            raise RaNNCError(f"'{key}' of {where} cannot be read: {error}") from error
        self.bytes_read += tensor.nbytes
        self._mapped += tensor.nbytes
        return tensor

    def _file(self, name):
        if self._mapped > parts.MOST_MAPPED_BYTES:
            self._open.clear()
            self._mapped = 0
        if name not in self._open:
            try:
                self._open[name] = safetensors.safe_open(self.folder / name, framework="pt")
            except (safetensors.SafetensorError, OSError) as error:
                raise RaNNCError(
                    f"{self.folder / name} cannot be read: {error}\n  It is no file of "
                    "safetensors, or was cut off."
                ) from error
        return self._open[name]


class _Saved:
    """The same of a checkpoint of ``save()``, whose checksums are compared."""

    def __init__(self, folder):
        self.folder, self.bytes_read = folder, 0
        self._index = index_file.read(folder)
        index_file.check_sizes(folder, self._index)
        names = {name: name for name in self._index.model} | self._index.tied
        self._entries = {name: self._index.model[main] for name, main in names.items()}
        self._names = names
        self.shapes = {name: entry["shape"] for name, entry in self._entries.items()}
        self.is_floating = {
            name: getattr(torch, entry["dtype"]).is_floating_point
            for name, entry in self._entries.items()
        }
        self._reader = parts.Reader(folder)

    def tensor(self, key: str) -> torch.Tensor:
        tensor = self._reader.tensor(self._names[key], self._entries[key])
        self.bytes_read += tensor.nbytes
        return tensor
