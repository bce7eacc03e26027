"""Which dimension of each tensor argument holds the rows (samples) of the batch."""

import collections
import inspect
import re

from pyrannc import _C, log
from pyrannc.errors import ConfigError, TraceError

_OF_NAMES = (AttributeError, KeyError, NameError, ImportError, NotImplementedError)
# How torch, numpy and asserts in models speak of sizes.
_OF_SIZES = re.compile(
    "size|shape|dim|batch|row|match|expand|broadcast|length|range|bound|index|element|view|divi",
    re.IGNORECASE,
)


def input_names(model, call):
    """A name for each tensor argument: that of forward()'s parameter, and the path below it."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = []
    for path in call.paths:
        root, rest = _split(path)
        if isinstance(root, int):
            root = positional[root] if root < len(positional) else f"args_{root}"
        words = "".join(c if c.isalnum() or c == "_" else "." for c in rest).split(".")
        names.append(".".join([root, *filter(None, words)]))
    return names


def keys_of(path, name) -> list:
    """What a user may call a tensor argument, the longest first: its path (``args[0]['mask']``),
    the same below the parameter (``batch['mask']``), ``name`` (``batch.mask``), and the position
    and name of the argument that it is, or is in."""
    position, rest = _split(path)
    root = name.partition(".")[0]
    return [path, f"{root}{rest}", name, position, root]


def no_argument(setting, key, call, names, others=()) -> str:
    """What is told where ``setting`` names ``key``. ``others``: names in later calls."""
    keys = [keys_of(path, name) for path, name in zip(call.paths, names, strict=True)]
    words = {each for these in keys for each in these if isinstance(each, str)}
    return (
        f"{setting} names {key!r}, which is no tensor argument of this call; did you mean "
        f"{_C.util.closest(str(key), sorted(words.union(others)))!r}?\n  The tensor arguments are "
        f"{', '.join(these[1] for these in keys)}."
    )


def _split(path):
    """``("labels", "")`` of ``kwargs['labels']``; the position for positional arguments."""
    key, _, rest = path.partition("[")[2].partition("]")
    return (int(key) if path.startswith("args") else key.strip("'\""), rest)


def find_batch_dims(call, names, batch_dims, known=None):
    """The dimension of each input that holds the rows, or None.

    ``known``: those of an earlier call by path, for inputs that stand in the same place.
    """
    if not call.tensors:
        raise TraceError("the call has no tensor argument, so there is nothing to split")
    said = said_batch_dims(call, names, batch_dims, known or {})
    stated = {
        call.tensors[i].shape[dim]: call.paths[i] for i, dim in said.items() if dim is not None
    }
    if len(stated) > 1:
        lines = ", ".join(f"{path} has {size} rows" for size, path in stated.items())
        raise ConfigError(f"batch_dims does not fit this call: {lines}")
    rows = next(iter(stated)) if stated else _majority(call, said)
    dims = [
        said[i] if i in said else (0 if tensor.dim() > 0 and tensor.shape[0] == rows else None)
        for i, tensor in enumerate(call.tensors)
    ]
    if len(said) < len(dims):
        _tell(call.paths, dims, said, rows)
    if not said and (path := _list_of_examples(call)):
        log.warn(
            "frontend",
            f"{path} is a list, and dimension 0 of each tensor in it is taken for the {rows} rows "
            f"of the batch. {_STACK}",
        )
    return dims


_STACK = "If each is an example, they have none: stack them in front of the model (torch.stack)."


def _list_of_examples(call):
    """The first list that may hold a tensor for each row, as images of other sizes are handed to
    detectors, where no tensor stands outside of lists; its path."""
    found = ""
    for path, value in _by_path(call).items():
        if isinstance(value, list) and len(value) > 1:
            found = found or path
        elif any(each.startswith(path) for each in call.paths):
            return ""
    return found


def _by_path(call) -> dict:
    args, kwargs = call.arguments()
    named = {f"kwargs[{key!r}]": value for key, value in kwargs.items()}
    return {f"args[{i}]": value for i, value in enumerate(args)} | named


def _list_of_numbers(call, rows) -> str:
    """The path of a list of as many numbers as there are rows; "" where there is none."""
    for path, value in _by_path(call).items():
        numbers = isinstance(value, list | tuple) and len(value) == rows
        if numbers and all(type(each) in (int, float) for each in value):
            return path
    return ""


def _tell(paths, dims, said, rows):
    """Logs which dimensions nobody has said."""
    guessed = [i for i in range(len(dims)) if i not in said]
    having = ", ".join(paths[i] for i in guessed if dims[i] is not None) or "none"
    lacking = ", ".join(paths[i] for i in guessed if dims[i] is None) or "none"
    log.debug(
        "frontend",
        f"guessed which inputs hold the {rows} rows of the batch in dimension 0: {having}; which "
        f"have no rows: {lacking}",
    )


def doubt(error, call, names, dims, rows) -> str:
    """What is told beside ``error`` of a trace with ``rows`` rows, where it may be one of sizes and
    the call has another number, or inputs differ in whether, or where, they have rows: a wrong
    guess gives them sizes that do not fit each other."""
    if isinstance(error, _OF_NAMES) or not _OF_SIZES.search(str(error)):
        return ""
    first = next((index for index, dim in enumerate(dims) if dim is not None), None)
    own = None if first is None else call.tensors[first].shape[dims[first]]
    if own is not None and own != rows and (path := _list_of_numbers(call, own)):
        return (
            f"\n  {path} is a list with a number for each of the {own} rows, and stays so long "
            "where the model is called with other numbers of rows: pass a tensor, which has one "
            "for each row."
        )
    if len(set(dims)) < 2:
        if own is None or own == rows:
            return ""
        return (
            f"\n  The model was called with {rows} rows instead of {own}, dimension {dims[first]} "
            f"of {names[first]} being that of the batch, which one example alone needs, too "
            f"(x[None]).{_taken_too(names, dims)}"
        )
    places = ", ".join(
        f"{path} {'none' if dim is None else f'in dimension {dim}'}"
        for path, dim in zip(call.paths, dims, strict=True)
    )
    return (
        f"\n  The model was called with {rows} rows, which inputs have so: {places}. Where that is "
        "wrong, name the dimensions: RaNNCModule(..., batch_dims={...}); None: no rows."
    )


def _taken_too(names, dims) -> str:
    """What is told of inputs that have as many entries as the first has rows, as weights of classes
    may by chance."""
    others = [name for name, dim in zip(names, dims, strict=True) if dim is not None][1:]
    if not others:
        return ""
    return (
        f" Rows of {', '.join(map(str, others))} are counted with it, as there are as many: for an "
        f"argument that has none, say RaNNCModule(..., batch_dims={{{others[-1]!r}: None}})."
    )


def said_batch_dims(call, names, batch_dims, known):
    """``{input: dim}`` for those that ``batch_dims`` names, or that are known."""
    said = {
        i: known[path]
        for i, (path, tensor) in enumerate(zip(call.paths, call.tensors, strict=True))
        if path in known and tensor.dim() > (known[path] or 0)
    }
    if batch_dims is None:
        return said
    if isinstance(batch_dims, int):
        batch_dims = {i: batch_dims for i in range(len(call.tensors))}
        keys = [{i} for i in range(len(call.tensors))]
    else:
        if isinstance(batch_dims, (list, tuple)):
            batch_dims = dict(enumerate(batch_dims))
        keys = []
        for path, name in zip(call.paths, names, strict=True):
            keys.append(set(keys_of(path, name)))
    unknown = [key for key in batch_dims if not any(key in these for these in keys)]
    if unknown and not known:  # a later call may lack what the first one had
        raise ConfigError(no_argument("batch_dims", unknown[0], call, names))
    for i, (tensor, these) in enumerate(zip(call.tensors, keys, strict=True)):
        for key in these & set(batch_dims):
            dim = batch_dims[key]
            is_number = isinstance(dim, int) and not isinstance(dim, bool)
            if dim is not None and not (is_number and -tensor.dim() <= dim < tensor.dim()):
                raise ConfigError(
                    f"batch_dims says dimension {dim!r} for {call.paths[i]}, which has shape "
                    f"{list(tensor.shape)}"
                )
            said[i] = dim if dim is None else dim % tensor.dim()
    return said


def _majority(call, said):
    counts = collections.Counter(
        tensor.shape[0]
        for i, tensor in enumerate(call.tensors)
        if i not in said and tensor.dim() > 0
    )
    if not counts:
        raise TraceError(
            "no tensor argument has a dimension for the rows of the batch; name one in batch_dims"
        )
    (rows, count), *others = counts.most_common()
    if others and others[0][1] == count:
        lines = ", ".join(
            f"{path} has shape {list(tensor.shape)}"
            for path, tensor in zip(call.paths, call.tensors, strict=True)
        )
        advice = _STACK if _list_of_examples(call) else ""
        raise TraceError(
            f"which inputs hold the rows of the batch? As many have {rows} as {others[0][0]} in "
            f"dimension 0: {lines}.\n  Name those with rows in batch_dims={{...}}; None: no rows. "
            f"{advice}".rstrip()
        )
    return rows
