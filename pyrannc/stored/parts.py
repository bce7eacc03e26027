"""The files of one rank: safetensors, each under a temporary name until it is complete."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
from safetensors.torch import save_file

from pyrannc.errors import RaNNCError
from pyrannc.state import named_tensors
from pyrannc.stored import index

try:
    from isal.isal_zlib import crc32  # some five times as fast, of which saving is mostly made
except ImportError:  # in a bundle for a machine without a network
    from zlib import crc32

#: Of tensors that are copied to be written, as those of a device are, in one file.
#: tuned by: half of the 256 MB that a rank may take while it saves: a promise.
#: without it: a rank with a device takes its part once more on the host.
MOST_HOST_COPIES_BYTES = 128 << 20
#: Of one file.
#: tuned by: the format's custom: Hugging Face's libraries cut theirs so.
#: without it: a file system or a store with a limit refuses the part of a large model.
MOST_FILE_BYTES = 5 << 30
#: What is read of a file before it is opened anew, which lets go of its pages.
#: tuned by: a bound on memory, small beside what a rank holds of a model that needs this.
#: without it: a rank that reads its part of one large file takes that part twice.
MOST_MAPPED_BYTES = 64 << 20


def write(
    folder: Path, save: str, rank: int, kinds: dict, wrote=lambda size: None
) -> tuple[dict, dict]:
    """Writes the tensors of each kind by key; returns their entries for the index by kind, and the
    files' bytes.

    Args:
        save: Eight digits of this save.
        kinds: Tensors by key for "model" and "state".
        wrote: Told the bytes of each file when it is there.

    Raises:
        OSError: A file cannot be written.
        RaNNCError: safetensors has no form for a tensor.
    """
    for tensors in kinds.values():
        for key, tensor in tensors.items():
            if not _has_form(tensor.dtype):
                raise RaNNCError(
                    f"'{key}' is of {tensor.dtype}, and safetensors stores real numbers, integers, "
                    "truth values and complex64.\n  Convert it, or leave it out."
                )
    entries, sizes, waiting = {kind: {} for kind in kinds}, {}, []
    with ThreadPoolExecutor(1) as disk:  # which is waited for while more is written
        for kind, tensors in kinds.items():
            for number, group in enumerate(_files(tensors)):
                name = index.part(kind, save, rank, number)
                ready = _ready({key: tensors[key] for key in group})
                partial = index.unfinished(folder, save) / name
                try:
                    save_file(ready, partial, metadata={"format": "pt"})
                except safetensors.SafetensorError as error:  # what a full disk is, too
                    raise OSError(f"{partial}: {error}") from error
                sizes[name] = partial.stat().st_size
                waiting.append(disk.submit(_finish, partial, folder / name))
                entries[kind] |= {key: _entry(name, tensor) for key, tensor in ready.items()}
                wrote(sizes[name])
        for each in waiting:
            each.result()
    return entries, sizes


@functools.cache
def _has_form(dtype) -> bool:
    try:
        safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    except KeyError:  # of its table of dtypes
        return False
    return True


def _finish(partial, path):
    """Gives a file its name once it is on the disk."""
    index.file_sync(partial)
    partial.rename(path)


def _entry(file, tensor):
    return {
        "file": file,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "crc32": checksum(tensor),
    }


def checksum(tensor: torch.Tensor) -> int:
    """Of the bytes of a contiguous tensor of the host."""
    return crc32(named_tensors.raw(tensor)) if tensor.numel() else 0


def _files(tensors):
    """The keys of each file."""
    group, size, copied, seen = [], 0, 0, set()
    for key, tensor in tensors.items():
        extra = tensor.nbytes if _is_copied(tensor) or _place(tensor) in seen else 0
        if group and (
            size + tensor.nbytes > MOST_FILE_BYTES or copied + extra > MOST_HOST_COPIES_BYTES
        ):
            yield group
            group, size, copied, seen = [], 0, 0, set()
        group.append(key)
        seen.add(_place(tensor))
        size, copied = size + tensor.nbytes, copied + extra
    if group:
        yield group


def _ready(tensors):
    """As the library takes them: memory that stands there twice, as that of a rate does which is a
    tensor in a chain of schedulers, is copied."""
    ready, seen = {}, set()
    for key, tensor in tensors.items():
        again = _place(tensor) in seen and not _is_copied(tensor)
        seen.add(_place(tensor))
        ready[key] = _on_host(tensor).clone() if again else _on_host(tensor)
    return ready


def _place(tensor):
    """The memory that it lies in; each tensor without numbers has its own."""
    storage = tensor.untyped_storage()
    return (tensor.device, storage.data_ptr()) if tensor.nbytes else id(tensor)


def _is_copied(tensor):
    """The library takes what lies on the host, in one piece, and alone in its memory."""
    alone = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor.device.type != "cpu" or not tensor.is_contiguous() or not alone


def _on_host(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.cpu().contiguous().clone() if _is_copied(tensor) else tensor


class Reader:
    """Tensors of a checkpoint by their entries in its index. Holds its files open."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files, self._mapped = {}, 0  # by name

    def tensor(self, key: str, entry: dict) -> torch.Tensor:
        """The tensor of that key, in memory of the file: what is kept is to be copied.

        Raises:
            RaNNCError: The file has another one than the index says, or has changed since.
        """
        path = self._folder / entry["file"]
        if self._mapped > MOST_MAPPED_BYTES:
            self._files, self._mapped = {}, 0
        try:
            if entry["file"] not in self._files:
                self._files[entry["file"]] = safetensors.safe_open(path, framework="pt")
            tensor = self._files[entry["file"]].get_tensor(key)
        except (safetensors.SafetensorError, OSError) as error:
            raise RaNNCError(f"'{key}' of {path} cannot be read: {error}") from error
        found = [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        if found != [entry["shape"], entry["dtype"]]:
            raise RaNNCError(
                f"'{key}' of {path} is {found[1]} {found[0]}, and the index says {entry['dtype']} "
                f"{entry['shape']}: one of them was edited.\n  Load another checkpoint."
            )
        if checksum(tensor) != entry["crc32"]:
            raise RaNNCError(
                f"'{key}' of {path} is damaged: its bytes are not those that were saved.\n  Load "
                "another checkpoint."
            )
        self._mapped += tensor.nbytes
        return tensor
