"""What ``rannc ckpt`` does with a checkpoint, in one process and without its model's code."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from pyrannc.checkpoint import nested
from pyrannc.errors import RaNNCError
from pyrannc.stored import index as index_file
from pyrannc.stored import parts


def inspect(folder: Path) -> list[str]:
    """Lines that say what is in it."""
    index = index_file.read(folder)
    lines = [
        f"{folder}: written by {index.ranks} rank{'s' * (index.ranks > 1)}, {len(index.files)} "
        f"files of {sum(index.files.values()) / 2**20:.1f} MiB",
        f"model: {len(index.model)} tensors, {_elements(index.model.values()):,} numbers",
    ]
    for name, entry in index.model.items():
        tied = [other for other, main in index.tied.items() if main == name]
        also = f", also {', '.join(tied)}" if tied else ""
        lines.append(f"  {name}{also}: {entry['dtype']} {entry['shape']}, in {entry['file']}")
    for optimizer in index.optimizers:
        groups = [len(group["params"]) for group in optimizer["groups"]]
        lines.append(
            f"optimizer: {optimizer['class']}, groups of {groups} parameters, state of "
            f"{len(optimizer['state'])}"
        )
    for name, value in index.beside.items():
        if value not in (None, {}):
            lines.append(f"{name}: {_short(value)}")
    return lines


def facts(folder: Path) -> dict:
    """The same as data; ``bytes`` are of the files."""
    index = index_file.read(folder)
    return {
        "ranks": index.ranks,
        "bytes": sum(index.files.values()),
        "files": index.files,
        "model": {
            name: {key: entry[key] for key in ("dtype", "shape", "file")}
            for name, entry in index.model.items()
        },
        "tied": index.tied,
        "optimizers": [
            {
                "class": each["class"],
                "groups": [len(group["params"]) for group in each["groups"]],
                "state": len(each["state"]),
            }
            for each in index.optimizers
        ],
    }


def _elements(entries):
    return sum(torch.Size(entry["shape"]).numel() for entry in entries)


def _short(value):
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def verify(folder: Path) -> int:
    """Reads every byte; returns how many tensors there are.

    Raises:
        RaNNCError: Something is missing, of another size, or damaged; names the first.
    """
    index = index_file.read(folder)
    index_file.check_sizes(folder, index)
    reader = parts.Reader(folder)
    for kind in (index.model, index.state):
        for key, entry in kind.items():
            reader.tensor(key, entry)
    return len(index.model) + len(index.state)


def merge(folder: Path, target: Path) -> None:
    """Writes the weights as one ``model.safetensors``, with ``config.json`` where there is one."""
    weights = _weights(folder)
    with _new(target) as inside:
        save_file(weights, inside / "model.safetensors", metadata={"format": "pt"})
        _copy_config(folder, inside)


def to_hugging_face(folder: Path, target: Path) -> None:
    """Writes the weights as transformers would have, by its class in ``config.json``: with the
    names and the cut of its hub, which may differ from those in memory.

    Raises:
        RaNNCError: It is no checkpoint of a model of transformers, or that is not installed.
    """
    if not (folder / "config.json").exists():
        raise RaNNCError(
            f"{folder} has no config.json: it is not of a model of transformers.\n  `rannc ckpt "
            "merge` writes the weights of any model."
        )
    try:
        import transformers
    except ImportError as error:
        raise RaNNCError("this needs transformers: pip install transformers") from error
    config = transformers.AutoConfig.from_pretrained(folder)
    name = (config.architectures or ["?"])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise RaNNCError(f"transformers has no class '{name}', which config.json names")
    with torch.device("meta"):
        model = kind(config)
    weights = _weights(folder, tied=True)
    missing = [key for key in model.state_dict() if key not in weights]
    if missing:
        raise RaNNCError(f"{folder} lacks '{missing[0]}' of {name}: it is of another model")
    with _new(target) as inside:
        model.save_pretrained(inside, state_dict=weights)


def to_torch(folder: Path, target: Path) -> None:
    """Writes ``model.pt`` and ``optimizer-N.pt``, the state_dict() that one process would have."""
    index, weights = index_file.read(folder), _weights(folder, tied=True)
    with _new(target) as inside:
        torch.save(weights, inside / "model.pt")
        reader = parts.Reader(folder)
        for position, optimizer in enumerate(index.optimizers):
            torch.save(_state(index, reader, optimizer), inside / f"optimizer-{position}.pt")


def _state(index, reader, optimizer):
    order = [name for group in optimizer["groups"] for name in group["params"]]
    number = {name: at for at, name in enumerate(order)}
    kept = {number[name]: entry for name, entry in optimizer["state"].items()}
    kept |= optimizer.get("of_none", {})
    state = {}
    for key, entry in kept.items():
        tensors = {p: reader.tensor(p, index.state[p]) for p in nested.tensor_paths(entry)}
        state[key] = nested.decode(entry, tensors)
    groups = [
        {**nested.decode(each["options"], {}), "params": [number[n] for n in each["params"]]}
        for each in optimizer["groups"]
    ]
    return {"state": state, "param_groups": groups}


def _weights(folder, tied=False):
    index = index_file.read(folder)
    index_file.check_sizes(folder, index)
    reader = parts.Reader(folder)
    found = {name: reader.tensor(name, entry) for name, entry in index.model.items()}
    if tied:
        found |= {other: found[main] for other, main in index.tied.items()}
    return found


@contextmanager
def _new(target):
    """A folder beside ``target`` to write to, which takes its place when all of it is there."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        what = "is a file" if target.is_file() else "is not empty"
        raise RaNNCError(f"{target} {what}.\n  Name a new folder.")
    place = target.resolve()
    inside = place.with_name(f"{place.name}.{os.getpid()}.partial")
    inside.mkdir(parents=True)
    try:
        yield inside
        inside.replace(place)  # also of an empty one
    except BaseException:  # whatever has failed, Ctrl-C included: no half of a folder stays
        shutil.rmtree(inside, ignore_errors=True)
        raise


def _copy_config(folder, target):
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, target / name)
