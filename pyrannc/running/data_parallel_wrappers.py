"""Wrappers that shard or replicate a model by themselves, which cannot be around or within ours."""

from torch import nn

from pyrannc.errors import RaNNCError


def refuse_wrappers(model: nn.Module) -> None:
    """Raises RaNNCError where a part of the model is in DistributedDataParallel or the like."""
    for path, module in model.named_modules():
        if getattr(module, "_is_fsdp_managed_module", False):  # it marks them, and asks for nothing
            refuse_around("FullyShardedDataParallel")
        if name := _wrapper(module):
            where = f"'{path}' of the model" if path else "the model"
            raise RaNNCError(f"{where} is wrapped in {name}. {_REMEDY}")


def refuse_ddp(asking) -> None:
    """In the constructor of DistributedDataParallel, whose frame is ``asking``; all others, such as
    torch.jit.trace() or inspect.getmembers(), find no such attribute."""
    if isinstance(asking.f_locals.get("self"), nn.parallel.DistributedDataParallel):
        refuse_around("DistributedDataParallel")
    raise AttributeError("only DistributedDataParallel reads this")


def refuse_around(name: str) -> None:
    raise RaNNCError(f"{name} around a RaNNCModule. {_REMEDY}")


_REMEDY = (
    "RaNNC replicates, shards and sums gradients itself; with both they would be summed twice, or "
    "not at all.\n  Give the bare model to RaNNCModule, and do not wrap the result (in Accelerate: "
    "do not pass it through prepare())."
)


def _wrapper(module) -> str | None:
    """The name of the wrapper that a module is, without importing any of them."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith(
            ("torch.nn.parallel", "torch.distributed.", "deepspeed", "fairscale")
        ):
            return kind.__name__
    return None
