"""A model as the planner's input file: no GPU, and no memory for the parameters."""

import contextlib
import gc
import importlib.machinery
import importlib.util
import os
import sys
import traceback

import torch

import pyrannc
from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.capture.torch_private import FakeTensorMode
from pyrannc.errors import ConfigError
from pyrannc.profiling import operators

MEASURED = "measured"
LEVELS = ("operator", "module")
DTYPES = {
    "fp16": torch.float16, "float16": torch.float16, "half": torch.float16,
    "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "fp32": torch.float32, "float32": torch.float32,
    "fp64": torch.float64, "float64": torch.float64,
}  # fmt: skip


def graph_profile(
    build,
    device="a100",
    dtype=None,
    rows=(1, 2, 4, 8),
    level="operator",
    depth=0,
    real=False,
    autocast=None,
):
    """The ``rannc-graph-profile`` (docs/planner-files.md) of the model that ``build`` returns.

    The model is traced on tensors that have shapes and no contents, and its costs are computed
    from a device of the catalogue (docs/device-models.md): a model of 175 B parameters takes
    seconds and little memory. ``device="measured"`` times its operators on this CPU instead.

    Args:
        build: Returns ``(model, inputs)``; ``inputs`` of one call, a tuple, or a dict for keyword
            arguments. It is called where tensors are made on the meta device and take no
            memory.
        device: A name of docs/device-models.md, such as ``h100``, or ``measured``.
        dtype: ``bf16`` and the like: parameters, buffers and inputs in floating point get it.
        rows: Numbers of samples at which costs and saved bytes are taken, at least one each.
        level: ``operator``, or ``module`` to fold the operators of each module's call into one.
        depth: With ``module``: cut module paths to so many components; 0 keeps them.
        real: Call ``build`` with real tensors, for a model whose construction reads them.
        autocast: ``bf16`` or ``fp16``: the call is under ``torch.autocast``, as on the CPU, whose
            list of operators in 16 bits is a little shorter than a GPU's.

    Returns:
        ``_C.cost.GraphProfile``; ``to_json()`` is the file.

    Raises:
        ConfigError: An argument is wrong, or ``build`` fails or returns something else.
        TraceError: The forward pass depends on tensor values; names module and line.
    """
    if device != MEASURED:
        check_device(device)
    rows = _checked_rows(rows)
    for name in (dtype, autocast):
        check_dtype(name)
    if autocast is not None and DTYPES[autocast].itemsize != 2:
        raise ConfigError(f"autocast computes in bf16 or fp16, not in {autocast}")
    if level not in LEVELS:
        raise ConfigError(f"unknown level '{level}'; {_closest(level, LEVELS)}")
    if depth < 0 or (depth and level != "module"):
        raise ConfigError(f"depth {depth}: it is a number of components for level 'module'")
    with _no_collection():
        found = _traced(build, device, dtype, rows, real, autocast)
    return found if level == "operator" else _C.cost.fold_modules(found, depth)


def load_build(target):
    """The function that ``train.py:build`` names; the file is run as a module, not as a script.

    Raises:
        ConfigError: The file or the function is missing, or the file cannot be run.
    """
    path, _, name = target.rpartition(":")
    if not path:
        raise ConfigError(
            f"'{target}' names no function; expected FILE:FUNCTION, as train.py:build"
        )
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file '{path}'")
    # Any file name will do, and what the file defines can be found by its name, as dataclasses do.
    loader = importlib.machinery.SourceFileLoader("rannc_capture", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    # As for a script: modules beside it can be imported.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{_place(error, path)}: {_named(error)}") from error
    if not callable(getattr(module, name, None)):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f"'{path}' has no function '{name}'; {_closest(name, functions)}")
    return getattr(module, name)


def check_dtype(name):
    """Raises ConfigError, naming the closest, unless ``name`` is None or one of DTYPES."""
    if name is not None and name not in DTYPES:
        raise ConfigError(f"unknown dtype '{name}'; {_closest(name, DTYPES)}")


def check_device(name):
    """Raises ConfigError, naming the closest, unless the catalogue has ``name``."""
    try:
        _C.cost.device_model(name)
    except ConfigError as error:
        raise ConfigError(f"{error}, {MEASURED} (times the operators on this CPU)") from None


@contextlib.contextmanager
def _no_collection():
    """Keeps Python's collector from walking all tensors of the model over and over, which finds
    nothing and takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _traced(build, device, dtype, rows, real, autocast):
    # Meta tensors take no memory, and unlike FakeTensors they can be cast in place by Module.to().
    with contextlib.nullcontext() if real else torch.device("meta"):
        model, args, kwargs = _built(build)
    if dtype is not None:
        model = model.to(DTYPES[dtype])
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = _on_cpu((args, kwargs), dtype and DTYPES[dtype])
    _register_tensors(model)
    casts = torch.autocast("cpu", DTYPES[autocast or "bf16"], enabled=autocast is not None)
    with casts:
        captured = capture(model, args, kwargs)
    return _fold(captured, device, rows)


def _checked_rows(rows):
    rows = list(rows)
    for before, count in zip([0, *rows], rows, strict=False):
        if count <= before:
            raise ConfigError(f"rows must be at least 1 and rise strictly, found {rows}")
    if not rows:
        raise ConfigError("rows is empty; name at least one number of samples")
    return rows


def _built(build):
    """``(model, args, kwargs)`` of ``build()``."""
    try:
        result = build()
    except Exception as error:
        hint = ""
        if "DataDependent" in type(error).__name__ or "meta tensor" in str(error):
            hint = (
                ".\n  build() runs on tensors without contents; where it must read some, give it "
                "real ones: --real"
            )
        raise ConfigError(f"{_place(error, 'build()')}: {_named(error)}{hint}") from error
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ConfigError(f"build() must return (model, inputs), but returned {_described(result)}")
    model, inputs = result
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            "build() must return (model, inputs) with an nn.Module first, but returned "
            f"{_described(model)} there"
        )
    if isinstance(inputs, dict):
        return model, (), inputs
    if isinstance(inputs, (tuple, list)):
        return model, tuple(inputs), {}
    raise ConfigError(
        "build() must return (model, inputs) with the inputs as a tuple, or as a dict of keyword "
        f"arguments, but returned {_described(inputs)} there"
    )


def _on_cpu(tree, dtype):
    """The inputs as tensors on the CPU, without contents; those in floating point as ``dtype``."""
    if isinstance(tree, torch.Tensor):
        kept = tree.dtype if dtype is None or not tree.is_floating_point() else dtype
        made = torch.empty_strided(tree.size(), tree.stride(), dtype=kept)
        return made.requires_grad_(tree.requires_grad)
    if isinstance(tree, dict):
        return {key: _on_cpu(value, dtype) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_on_cpu(value, dtype) for value in tree)
    return tree


def _register_tensors(model):
    """Tensors that modules keep as plain attributes become buffers: without contents they can be
    no constants."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and not name.startswith("_"):
                delattr(module, name)
                module.register_buffer(name, value.detach(), persistent=False)


def _fold(captured, device, rows):
    traced = operators.trace(captured.graph, captured.objects, rows)
    if device == MEASURED:
        world = _C.comm.make_local(1, 60.0)[0]
        table = operators.time_operators(captured.graph, captured.objects, traced, world, rows)
    else:
        model = _C.cost.device_model(device)
        table = _C.cost.estimate(captured.graph, model, rows, traced.saved)
    saved = [_C.cost.SavedStorage(*storage) for storage in traced.storages]
    return _C.cost.fold(captured.graph, table, [], saved)


def _closest(word, known):
    names = sorted(known)
    if not names:
        return "it defines none"
    return f"did you mean '{_C.util.closest(word, names)}'? Known: {', '.join(names)}"


def _described(value):
    text = type(value).__name__
    if isinstance(value, (tuple, list)):
        return f"a {text} of {len(value)}"
    return text if value is None else f"a {text}"


def _named(error):
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _place(error, otherwise):
    """The innermost line that is not of torch or of this package."""
    own = (
        os.path.dirname(torch.__file__) + os.sep,
        os.path.dirname(pyrannc.__file__) + os.sep,
        "<",
    )
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if not frame.filename.startswith(own)]
    return f"{found[-1].filename}:{found[-1].lineno}" if found else otherwise
