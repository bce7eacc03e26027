"""``pyrannc.load()``: a training run goes on from what ``save()`` has written."""

import hashlib
import json
from pathlib import Path

import torch

from pyrannc import log, progress
from pyrannc.checkpoint import job, nested, random_states
from pyrannc.errors import RaNNCError
from pyrannc.materialize import values
from pyrannc.module import RaNNCModule
from pyrannc.optimizer.state import master_weights, named_state, shard_states
from pyrannc.optimizer.step import masters, participants
from pyrannc.ranks import on_all
from pyrannc.state import checkpoint, named_tensors, tensor_parts
from pyrannc.state.released import is_released
from pyrannc.stored import differences, parts
from pyrannc.stored import index as index_file


def load(folder, module, optimizer=None, *, scheduler=None, scaler=None, strict=True):
    """Reads what :func:`save` has written; returns its ``extra``. Every rank calls it.

    Each rank reads its part, whatever plan and number of ranks wrote it. Before the first call of a
    wrapped model that is everything; where it was built without values, weights and the state of
    optimizers are read in the first call.

    Args:
        folder: Of a checkpoint.
        module: As for :func:`save`: wrapped or not, whatever it was when it was saved.
        optimizer: Of the same class and with the same parameters in its groups; or a list of them.
        scheduler: Or a list of them; and
        scaler: What has a ``load_state_dict()``.
        strict: With False, tensors that only the model or only the checkpoint has are left alone,
            and a warning names them. A checkpoint that has none of the model's is an error anyhow.

    Raises:
        RaNNCError: There is no whole checkpoint, or it is of another model or optimizer, and
            nothing has changed; or bytes of it are damaged, and part of it may have been loaded. On
            every rank.
    """
    task = job.of("pyrannc.load()", module, optimizer)
    world, folder = task.world, Path(folder)
    index = _read_on_all(world, folder)
    held = checkpoint.persistent(task.model)

    def check():
        index_file.check_sizes(folder, index)
        _check_model(folder, index, task.model, held, strict, world.rank == 0)
        task.refuse_optimizers_of_others("pyrannc.load()")
        _check_optimizers(folder, index, task)
        for name, given in (("scheduler", scheduler), ("scaler", scaler)):
            _check_beside(folder, index, name, given)

    on_all(world, check)
    reader = parts.Reader(folder)
    if values.without_values(task.model):
        _load_later(folder, module, strict, lambda: _load_optimizers(index, task, reader, False))
        _load_options(index, task)
    else:
        with progress.phase(f"reading {folder}", world.rank == 0):
            on_all(world, lambda: _load_model(index, held, reader))
            if hasattr(module, "read_in_first_call"):
                module.note_loaded(name for name in held if index.named(name) is not None)
            on_all(world, lambda: _load_optimizers(index, task, reader))
    return _load_beside(index, task, reader, scheduler, scaler)


def _read_on_all(world, folder):
    """The index, the same on every rank: files are named anew in each save."""
    read = []

    def mine():
        read.append(index_file.read(folder))
        files = json.dumps(read[0].files, sort_keys=True).encode()
        return [str(folder), hashlib.blake2b(files, digest_size=8).hexdigest()]

    told = on_all(world, mine)
    for rank, (path, digest) in enumerate(told):
        if digest != told[0][1]:
            raise RaNNCError(
                f"pyrannc.load(): rank 0 reads '{told[0][0]}', and rank {rank} another checkpoint, "
                f"'{path}'.\n  Give the same folder on every rank; let one of them choose where "
                "several may see others, as the newest one."
            )
    return read[0]


def _load_later(folder, module, strict, then):
    """A model without values gets those of ``folder`` when each rank holds its part, which then
    loads the optimizers' state, too."""
    if not hasattr(module, "read_in_first_call"):
        wrapped = any(isinstance(each, RaNNCModule) for each in module.children())
        advice = "Wrap it in a RaNNCModule first: its first call gives each rank its part."
        if wrapped:
            advice = "Load it after the first call of the RaNNCModule in it, which gives it values."
        raise RaNNCError(
            "pyrannc.load(): the model was built without values, and nothing can be loaded into "
            f"it.\n  {advice}"
        )
    module.read_in_first_call(values.Weights(folder, strict), then)


def _load_beside(index, task, reader, scheduler, scaler):
    found = {}

    def read():
        found.update(_decoded(index.beside, index, reader))
        for name, given in (("scheduler", scheduler), ("scaler", scaler)):
            if isinstance(given, list | tuple):
                for each, state in zip(given, found[name], strict=True):
                    each.load_state_dict(state)
            elif given is not None:
                given.load_state_dict(found[name])
        checkpoint.set_extra_states(task.model, found["modules"])
        random_states.restore(index.random, task.world, task.model, task.deployment, task.device)

    on_all(task.world, read)
    return found["extra"]


def _check_model(folder, index, model, held, strict, tells):
    missing = [name for name in held if index.named(name) is None]
    # A tied tensor of the model may be in the checkpoint under another of its names.
    names_of = {}
    for name, tensor in held.items():
        names_of.setdefault(id(tensor), []).append(name)
    missing = [
        name
        for name in missing
        if all(index.named(other) is None for other in names_of[id(held[name])])
    ]
    extra = [name for name in index.model if name not in held]
    extra = [n for n in extra if not any(a in held and m == n for a, m in index.tied.items())]
    # As of torch's state_dict(): what get_extra_state() has given is one of its entries.
    takes, has = checkpoint.takers_of_extra_states(model), index.beside.get("modules", {})
    missing += [each for path, each in takes.items() if path not in has]
    extra += [checkpoint.extra_state_name(path) for path in has if path not in takes]
    of_model, of_files = len(held) + len(takes), len(index.model) + len(has)
    lines = differences.lines(missing, of_model, extra, of_files)
    nothing = bool(missing) and len(missing) == of_model
    if nothing or (strict and lines):
        advice = "  Build the model that was saved, or load with strict=False."
        lines = [f"{folder} is not a checkpoint of this model:", *lines]
        raise RaNNCError("\n".join([*lines, differences.OTHER_NAMES if nothing else advice]))
    if lines and tells:
        log.warn("checkpoint", "\n".join([f"{folder}, with strict=False:", *lines]))
    for name, tensor in held.items():
        entry = index.named(name)
        if entry is not None and list(tensor.shape) != entry["shape"]:
            raise RaNNCError(
                f"'{name}' is {list(tensor.shape)} in the model and {entry['shape']} in {folder}."
                "\n  Build the model with the sizes that it was saved with."
            )


def _check_optimizers(folder, index, task):
    if not task.optimizers:
        return
    if len(task.optimizers) != len(index.optimizers):
        raise RaNNCError(
            f"{folder} has the state of {len(index.optimizers)} optimizers, and "
            f"{len(task.optimizers)} were given.\n  Give those that were saved, or none to load "
            "the weights alone."
        )
    for optimizer, saved in zip(task.optimizers, index.optimizers, strict=True):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        if kind != saved["class"]:
            raise RaNNCError(
                f"{folder} has the state of {saved['class']}, and the optimizer is {kind}.\n  Give "
                "one of that class, or none to load the weights alone."
            )
        names = named_state.names(optimizer, task.model)
        theirs = [group["params"] for group in saved["groups"]]
        if len(names) != len(theirs):
            raise RaNNCError(
                f"the {kind} in {folder} has {len(theirs)} parameter groups, this one has "
                f"{len(names)}.\n  Build it with the groups that were saved."
            )
        for number, (mine, other) in enumerate(zip(names, theirs, strict=True)):
            mine = {index.tied.get(name, name) for name in mine}
            differ = sorted(mine ^ set(other))
            if differ:
                where = "this optimizer's" if differ[0] in mine else "the checkpoint's"
                raise RaNNCError(
                    f"parameter group {number} of {kind} differs from that in {folder}: "
                    f"{differences.listed(differ)}; '{differ[0]}' is in {where} only.\n"
                    "  Build the optimizer with the groups that were saved."
                )


def _check_beside(folder, index, name, given):
    saved = index.beside.get(name)
    if given is None:
        return
    if saved is None:
        raise RaNNCError(f"{folder} has no {name}: it was saved without.\n  Load without {name}=.")
    count = len(given) if isinstance(given, list | tuple) else 0
    if count != (len(saved) if isinstance(saved, list) else 0):
        raise RaNNCError(f"{name}: give as many as were saved in {folder}, in the same order")


@torch.no_grad()
def _load_model(index, held, reader):
    names_of, done = {}, set()
    for name, tensor in held.items():
        names_of.setdefault(id(tensor), []).append(name)
    for count, tensor in enumerate(held.values()):
        if id(tensor) in done or is_released(tensor):
            continue
        done.add(id(tensor))
        progress.advance(count, 2 * len(held))  # the optimizers' state takes as long again, or more
        for name in names_of[id(tensor)]:
            if (entry := index.named(name)) is not None:
                named_tensors.write(tensor, reader.tensor(index.tied.get(name, name), entry))
                break


def _load_options(index, task):
    """Now, as the user may change them before the first call loads the rest."""
    for optimizer, saved in zip(task.optimizers, index.optimizers, strict=bool(task.optimizers)):
        for group, each in zip(optimizer.param_groups, saved["groups"], strict=True):
            group.update(named_state.as_held(nested.decode(each["options"], {}), group))


def _load_optimizers(index, task, reader, with_options=True):
    for optimizer, saved in zip(task.optimizers, index.optimizers, strict=bool(task.optimizers)):
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        content, exact = {}, []
        for name, parameter in task.model.named_parameters():
            entry = saved["state"].get(index.tied.get(name, name))
            if entry is None or id(parameter) not in own or is_released(parameter):
                continue
            piece = task.piece(parameter)
            if piece == (0, 0):
                continue
            had_master = entry.get(master_weights.KEY) is not None and not task.masters_may_come
            weight = index.named(name)
            is_short = parameter.dtype in master_weights.SHORT
            if had_master or not is_short:
                # It is stepped itself here, with a state of its own dtype.
                entry = {key: each for key, each in entry.items() if key != master_weights.KEY}
                weight = None if is_short else weight
            elif master_weights.KEY not in entry and masters.attached(optimizer):
                weight = None  # a master is stepped here, and was not there
            content[name] = _decoded(entry, index, reader)
            if piece is not None:
                content[name] = shard_states.part_of(content[name], parameter, piece, name)
            elif tensor_parts.is_part(parameter):
                content[name] = tensor_parts.cut_entry(content[name], parameter.place_of_part)
            if weight and str(parameter.dtype) == f"torch.{weight['dtype']}":
                exact.append(name)
        if with_options:
            options = [nested.decode(group["options"], {}) for group in saved["groups"]]
        else:
            options = [
                {key: value for key, value in group.items() if key != "params"}
                for group in optimizer.param_groups
            ]
        of_none = _decoded(saved.get("of_none", {}), index, reader)  # older indices have none
        named_state.load(optimizer, task.model, options, content, of_none, exact)
        if any(master_weights.KEY in entry for entry in content.values()):
            participants.install()  # also without RaNNC: the state is of 32 bits
            masters.attach(optimizer)


def _decoded(value, index, reader):
    """With tensors of their own: the folder may go, or another save write into it."""
    tensors = {
        path: reader.tensor(path, index.state[path]).clone() for path in nested.tensor_paths(value)
    }
    return nested.decode(value, tensors)
