"""``pyrannc.save()``: the state of a training run, written by all ranks at once."""

import contextlib
import secrets
from pathlib import Path

import torch

import pyrannc
from pyrannc import progress
from pyrannc.checkpoint import job, layout, nested, random_states
from pyrannc.errors import CommError, RaNNCError
from pyrannc.materialize import values
from pyrannc.optimizer.state import kept_state, named_state
from pyrannc.ranks import on_all, on_rank_0
from pyrannc.state import checkpoint
from pyrannc.stored import hugging_face, parts
from pyrannc.stored import index as index_file

_SAME_FOLDER = (
    "Give the same folder on every rank, without its number or the time in its name, on a file "
    "system that all ranks see."
)


def save(folder, module, optimizer=None, *, scheduler=None, scaler=None, extra=None) -> None:
    """Writes model, optimizers and random generators into ``folder``. Every rank calls it.

    Each rank writes what it holds, tensors by the names of the model in safetensors, at the same
    time as the others. :func:`load` reads it in a job of any number of ranks, under any plan, or in
    one process without RaNNC; no file has pickled objects. The weights are in Hugging Face's layout
    with ``config.json`` where the model has one.

    A folder that has a checkpoint keeps it until the new one is complete and on the disk: what is
    interrupted, or finds the disk full, leaves the old one as it was. Beyond what it holds a rank
    takes at most 256 MB, unless one tensor of a device is larger than that.

    Args:
        folder: On a file system that all ranks see; made where it is not there.
        module: A :class:`RaNNCModule`, before its first call or after, or any other module, of
            which rank 0's values are saved.
        optimizer: One, or a list of them.
        scheduler: Or a list of them; and
        scaler: What has a ``state_dict()``. Of rank 0.
        extra: Whatever :func:`load` is to return, of rank 0: tensors, numbers, texts, None, and
            lists, tuples and dicts of them.

    Raises:
        RaNNCError: A rank cannot write; something in ``scheduler``, ``scaler`` or ``extra`` is
            neither data nor a tensor, and is named. On every rank.

    >>> import tempfile
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyrannc.save(folder, model, optimizer, extra={"epoch": 3})
    ...     pyrannc.load(folder, model, optimizer)
    {'epoch': 3}
    """
    task = job.of("pyrannc.save()", module, optimizer)
    task.refuse_optimizers_of_others("pyrannc.save()")
    if names := values.without_values(task.model):
        raise RaNNCError(
            f"pyrannc.save(): '{names[0]}' has no values, as the model was built on the meta "
            "device.\n  Save it after its first call, which gives each rank its part."
        )
    world, folder = task.world, Path(folder)
    beside = {"scheduler": scheduler, "scaler": scaler, "extra": extra}
    plan = on_rank_0(world, lambda: _begin(folder, task))
    where, token = layout.Layout(**plan["layout"]), plan["token"]
    written = {}
    try:
        # Here, as the ranks work together for it, and one that cannot write does so no more.
        entries = [
            task.states(optimizer, lambda name: where.writer.get(where.name(name)))
            for optimizer in task.optimizers
        ]
        wholes = task.wholes(where.writer)
        with progress.phase(f"writing {folder}", world.rank == 0):
            written = on_all(
                world, lambda: _write(folder, token, task, where, beside, entries, wholes)
            )
        on_rank_0(world, lambda: _finish(folder, task, where, written))
    except CommError:
        # A rank is gone, and rank 0 may have made the checkpoint whole before it knew, or be about
        # to: what each has written stays. If it belongs to nobody, the next save removes it.
        raise
    except Exception:  # whatever has failed, on this rank or another: no part of it stays
        index_file.remove_parts(folder, token, world.rank)
        raise


@contextlib.contextmanager
def _writing(folder):
    try:
        yield
    except OSError as error:
        raise RaNNCError(
            f"pyrannc.save(): {folder} cannot be written: {error}\n  A checkpoint that was in it "
            "is still whole. Make room, get the right to write there, or name another folder."
        ) from error


def _begin(folder, task):
    """What all ranks have to know. On rank 0."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    made = layout.make(task.model, task.ranks_of, task.world.size)
    return {"layout": made, "token": secrets.token_hex(4)}


def _write(folder, token, task, where, beside, entries, wholes) -> dict:
    """This rank's files; what the index says of them."""
    rank = task.world.rank
    if not folder.is_dir():  # rank 0 has made its own
        raise RaNNCError(f"pyrannc.save(): there is no '{folder}' on this rank.\n  {_SAME_FOLDER}")
    mine = {
        name: wholes.get(name, tensor)
        for name, tensor in checkpoint.persistent(task.model).items()
        if where.writer.get(name) == rank
    }
    tensors, optimizers = {}, []
    for number, optimizer in enumerate(task.optimizers):
        names = {where.name(name) for group in named_state.names(optimizer, task.model)
                 for name in group}  # fmt: skip
        optimizers.append(
            {
                where.name(name): nested.encode(dict(entry), f"optimizer.{number}.{name}", tensors)
                for name, entry in entries[number].items()
                if where.name(name) in names
            }
        )
    of_none = [
        {
            key: nested.encode(value, f"optimizer.{number}.of_none.{key}", tensors)
            for key, value in kept_state.of_none(optimizer).items()
        }
        for number, optimizer in enumerate(task.optimizers if rank == 0 else ())
    ]
    beside = nested.encode(_states(task, beside), "beside", tensors) if rank == 0 else None
    done, total = 0, sum(each.nbytes for each in (*mine.values(), *tensors.values()))

    def wrote(size):
        nonlocal done
        done += size
        progress.advance(done, total)

    with _writing(folder):
        entries, files = parts.write(folder, token, rank, {"model": mine, "state": tensors}, wrote)
    return entries | {
        "files": files,
        "optimizers": optimizers,
        "of_none": of_none,
        "beside": beside,
        "random": random_states.of_rank(task.device),
    }


def _states(task, beside) -> dict:
    """What rank 0 has that is neither a tensor of the model nor of its optimizers."""
    found = {"extra": beside["extra"]}
    for name in ("scheduler", "scaler"):
        given = beside[name]
        for each in given if isinstance(given, list | tuple) else [given]:
            if each is not None and not hasattr(each, "state_dict"):
                raise RaNNCError(
                    f"pyrannc.save(): {name}= takes what has a state_dict(), or a list of such, "
                    f"and not a {type(each).__name__}"
                )
        if isinstance(given, list | tuple):
            found[name] = [each.state_dict() for each in given]
        else:
            found[name] = None if given is None else given.state_dict()
    found["modules"] = checkpoint.extra_states(task.model)
    return found


def _finish(folder, task, where, written) -> None:
    """Makes what all ranks have written a checkpoint. On rank 0."""
    optimizers = []
    for number, optimizer in enumerate(task.optimizers):
        state = {}
        for each in written:
            state |= each["optimizers"][number]
        optimizers.append(
            {
                "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
                "groups": _groups(optimizer, task.model, where),
                "state": state,
                "of_none": written[0]["of_none"][number],
            }
        )
    joined = {kind: {} for kind in ("model", "state", "files")}
    for each in written:
        for kind, entries in joined.items():
            entries |= each[kind]
    index = index_file.Index(
        ranks=task.world.size,
        files=joined["files"],
        model={name: joined["model"][name] for name in where.writer},
        state=joined["state"],
        tied=where.tied,
        optimizers=optimizers,
        beside=written[0]["beside"],
        random={
            "ranks": [each["random"] for each in written],
            "draws": random_states.of_model(task.model, task.deployment),
        },
    )
    for rank, each in enumerate(written):
        for file in each["files"]:
            if not (folder / file).exists():
                raise RaNNCError(
                    f"pyrannc.save(): rank {rank} has written '{file}', which rank 0 does not find "
                    f"in '{folder}'.\n  {_SAME_FOLDER}"
                )
    with _writing(folder):
        hugging_face.write_config(task.model, folder)
        index_file.write(folder, index, pyrannc.__version__)


def _groups(optimizer, model, where):
    """Options and names of each group; options that are tensors of one number become numbers."""
    names = named_state.names(optimizer, model)
    found = []
    groups = named_state.options(optimizer, model)
    for index, (group, params) in enumerate(zip(groups, names, strict=True)):
        options = {key: _numbers(value) for key, value in group.items()}
        tensors = {}
        encoded = nested.encode(options, f"optimizer.group.{index}", tensors)
        for path, tensor in tensors.items():
            raise RaNNCError(
                f"'{path}' is a tensor of {tensor.numel()} numbers, and options of a group are "
                "single numbers in a checkpoint.\n  Keep it in an attribute, or in extra."
            )
        found.append({"options": encoded, "params": [where.name(name) for name in params]})
    return found


def _numbers(value):
    """Also those in a tuple, as the members of ``betas`` may be tensors."""
    if type(value) in (list, tuple):
        return type(value)(map(_numbers, value))
    single = isinstance(value, torch.Tensor) and value.numel() == 1
    return value.item() if single else value
