"""The index of a checkpoint: the file that says what is in the others, and makes them a whole.

It is written last, under a temporary name, and renamed: a folder has the checkpoint that its index
names, and what an interrupted save has left beside it belongs to nobody.
"""

import dataclasses
import json
import os
import re
import shutil
import zlib
from pathlib import Path

from pyrannc import files, log
from pyrannc.errors import RaNNCError

NAME = "rannc.json"
#: Of Hugging Face: which file has which of the model's tensors.
WEIGHTS = "model.safetensors.index.json"
#: Of Hugging Face: the file of weights that are not cut into several.
WHOLE = "model.safetensors"
INDEX_FORMAT = 1
_CHECKSUM = "crc32"  # the last entry, of all before it
#: What save() writes beside the index: kind, eight digits of the save, rank, number of the part.
_PARTS = re.compile(
    r"(model|state)-[0-9a-f]{8}-\d{5}-\d{5}\.safetensors|saving-[0-9a-f]{8}"
    r"|(rannc|config|model\.safetensors\.index)\.json\.\d+(-[0-9a-f]+)?\.partial"
)


@dataclasses.dataclass
class Index:
    """What a checkpoint holds.

    Attributes:
        ranks: That wrote it.
        files: Bytes of each file.
        model: Tensors of the model by name: file, shape, dtype, crc32 of their bytes.
        state: The same of all other tensors, by path.
        tied: Names of the model's tensors that are another one: that one's name.
        optimizers: Of each its class, its groups, the state of each parameter by name, and what of
            its state is of none.
        beside: Scheduler, scaler, extra state of modules, and what the user has given.
        random: Generators, by rank, and the draws of deterministic dropout.
    """

    ranks: int
    files: dict
    model: dict
    state: dict
    tied: dict
    optimizers: list
    beside: dict
    random: dict

    def named(self, name: str) -> dict | None:
        """The entry of the model's tensor ``name``; None where there is none."""
        return self.model.get(self.tied.get(name, name))


def part(kind: str, save: str, rank: int, number: int) -> str:
    """The name of a file: ``kind`` model or state."""
    return f"{kind}-{save}-{rank:05}-{number:05}.safetensors"


def read(folder: Path) -> Index:
    """Reads and checks the index; whether the files are as it says is not looked at.

    Raises:
        RaNNCError: There is none, it is damaged, names files outside of its folder, or has the
            format of a newer version.
    """
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RaNNCError(_no_checkpoint(folder)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RaNNCError(f"{path} cannot be read: {error}\n  Load another checkpoint.") from error
    written = content.get("format") if isinstance(content, dict) else None
    if not isinstance(written, int):
        raise RaNNCError(f"{path} is no index of a checkpoint: it has no format number")
    if written > INDEX_FORMAT:
        raise RaNNCError(
            f"{path} has format {written}, of pyrannc {content.get('pyrannc', '?')}; this version "
            f"reads up to {INDEX_FORMAT}.\n  Load it with that version or a newer one."
        )
    names = [field.name for field in dataclasses.fields(Index)]
    for name in names:
        if name not in content:
            raise RaNNCError(f"{path} lacks '{name}': it was edited or is damaged")
    index = Index(**{name: content[name] for name in names})
    try:
        _check(path, index)
    except (AttributeError, KeyError, TypeError) as error:
        raise RaNNCError(
            f"{path} was edited or is damaged ({type(error).__name__}: {error}).\n  Load another "
            "checkpoint."
        ) from error
    saved = content.pop(_CHECKSUM, None)  # older ones have none
    if saved is not None and saved != _checksum(content):
        raise RaNNCError(
            f"{path} was edited or is damaged: its content is not what was saved.\n  Load another "
            f"checkpoint; or, where it was edited on purpose, take its '{_CHECKSUM}' out."
        )
    return index


def _checksum(content) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _check(path, index):
    for kind in (index.model, index.state):
        for tensor, entry in kind.items():
            if not isinstance(entry, dict) or entry.keys() != {"file", "shape", "dtype", "crc32"}:
                raise RaNNCError(f"{path}: the entry of '{tensor}' is damaged")
            if entry["file"] not in index.files:
                raise RaNNCError(f"{path}: '{tensor}' is in '{entry['file']}', which it lacks")
    for file in index.files:
        if Path(file).name != file or file in (".", ".."):
            raise RaNNCError(
                f"{path} names the file '{file}', which is not one of its own folder.\n  It was "
                "edited; load another checkpoint."
            )


def _no_checkpoint(folder) -> str:
    advice = "Name a folder that pyrannc.save() has written to the end."
    if folder.is_file():
        what = "it is a file."
        advice += " What torch.save() has written loads by load_state_dict(torch.load(...))."
    else:
        what = f"there is no {NAME} in it."
    if (folder / WEIGHTS).exists() or (folder / WHOLE).exists():
        advice = (
            "It holds weights alone, which RaNNCModule(weights=...) and from_pretrained() of "
            "transformers read."
        )
    return f"'{folder}' holds no checkpoint: {what}\n  {advice}"


def check_sizes(folder: Path, index: Index) -> None:
    """Raises RaNNCError where a file is missing or of another size than the index says."""
    for file, size in index.files.items():
        try:
            found = (folder / file).stat().st_size
        except FileNotFoundError:
            raise RaNNCError(
                f"{folder / file} is missing, which {NAME} names.\n  Every rank reads the whole "
                "folder: is it on a file system of all hosts?"
            ) from None
        if found != size:
            raise RaNNCError(
                f"{folder / file} has {found} bytes, and {NAME} says {size}: it was cut off or "
                "edited.\n  Load another checkpoint."
            )


def write(folder: Path, index: Index, version: str) -> None:
    """Makes ``index`` that of ``folder``, and removes what other saves have left there.

    Raises:
        OSError: It cannot be written.
    """
    weights = {name: entry["file"] for name, entry in index.model.items()}
    total = sum(index.files[file] for file in set(weights.values()))
    weights = {"metadata": {"total_size": total}, "weight_map": weights}
    files.write_safely(folder / WEIGHTS, json.dumps(weights, indent=2))
    content = {"format": INDEX_FORMAT, "pyrannc": version} | dataclasses.asdict(index)
    content[_CHECKSUM] = _checksum(content)
    files.write_safely(folder / NAME, json.dumps(content))
    for path in folder.iterdir():
        if _PARTS.fullmatch(path.name) and path.name not in index.files:
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:  # the checkpoint is whole, and the next save tries again
                log.warn("checkpoint", f"{path} of another save cannot be removed: {error}")


def unfinished(folder: Path, save: str) -> Path:
    """Where files are until they are complete; safetensors has temporary names of its own there."""
    path = folder / f"saving-{save}"
    path.mkdir(exist_ok=True)
    return path


def remove_parts(folder: Path, save: str, rank: int) -> None:
    """What ``rank`` has written in a save that has failed, unless the index names it already."""
    try:
        if f"-{save}-" in (folder / NAME).read_text(encoding="utf-8"):
            return
    except FileNotFoundError:
        pass
    except (OSError, ValueError):  # nobody knows; the next save removes what is left
        return
    for path in folder.glob(f"*-{save}-{rank:05}-*"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / f"saving-{save}", ignore_errors=True)  # each rank tries


def file_sync(path: Path) -> None:
    """Returns when what was written to ``path``, a file or a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
