"""Names of RaNNC 0.7 that do nothing here: what to use instead, and what is not there yet."""

import difflib
import inspect

from pyrannc.config import ITEMS
from pyrannc.errors import RaNNCError

_SHARDS = (
    "no rank keeps shards of parameters: build the model in DistributeModelParams() or on the meta "
    "device, and the first call gives each rank the parameters that it uses"
)
_GATHER = "optimizer.state_dict() has the state of all ranks, on rank 0; pyrannc.save() keeps it"
_EVENTS = "pyrannc.trace() and the setting trace_events write what all ranks do to a file"
_ZERO = "with zero=True a rank's part of the optimizer's state has no name of its own"
_APEX = "Apex is gone: torch.autocast and pyrannc.GradScaler take the place of pyrannc.amp"

#: Of the module ``pyrannc``.
FUNCTIONS = {
    "store_dist_param": _SHARDS,
    "load_dist_param": _SHARDS,
    "set_dist_param": _SHARDS,
    "get_dist_param_range": _SHARDS,
    "set_dist_param_dtype": _SHARDS,
    "patch_optimizer": "RaNNCModule(model, optimizer) does all that the optimizer needs",
    "_dump_events": _EVENTS,
    "_run_dp_dry": "the command rannc plan, and pyrannc.plan(), plan from files",
}
#: Of ``pyrannc.amp``.
AMP = {
    "zip_params": f"{_APEX}; parameters have no master copies",
    "register_amp_params": f"{_APEX}; parameters have no master copies",
    "named_master_params": f"{_APEX}; use named_parameters() of the model",
    "patch_amp_scaler": f"{_APEX}, whose ranks skip a step together",
    "unset_master_grads": f"{_APEX}; use zero_grad() of the optimizer",
}
#: Of ``pyrannc.opt``.
OPT = {
    "gather_optimizer_state_dict": _GATHER,
    "patch_optimizer": FUNCTIONS["patch_optimizer"],
    "merge_state_dict": _GATHER,
    "append_param_ranks": _GATHER,
    "remove_params_from_state": _GATHER,
    "to_cuda_tensor": "use tensor.cuda()",
}
#: Methods of DistributedDataParallel.
OF_TORCH = {
    "join": "a rank without rows calls the model with none, model(x[:0]), as often as the others",
}
#: Methods of ``RaNNCModule``.
METHODS = {
    "align_params": "parameters are those of the model, and nothing has to be aligned",
    "sync_param_zero": f"{_ZERO}; get_param(name) is the whole of a parameter",
    "get_local_param_range": f"{_ZERO}; optimizer.state_dict() has the whole",
    "get_local_param_segment": f"{_ZERO}; get_param(name) is the whole of a parameter",
    "_sync_orig_params": "state_dict(rank0_only=False) gives every rank the whole model",
}
#: Arguments of ``RaNNCModule`` that are accepted: their defaults, and what to say of others.
ARGUMENTS = {
    "enable_apex_amp": (False, _APEX),
    "allreduce_amp_master_params": (False, _APEX),
    "check_unused_values": (True, None),
    "offload_params": (False, "parameters are not offloaded: without a device they are in memory"),
}
#: Arguments of DistributedDataParallel and DataParallel: what to do in their place.
_NO_NEED = "leave it out"
_OF_TORCH = {
    "device_ids": "move the model with .to(device), or set Config(device=...), and leave it out",
    "output_device": "outputs are where the model is; leave it out",
    "dim": "batch_dims={...} names the dimension that holds the rows",
    "process_group": "all ranks of the job take part; leave it out",
    "bucket_cap_mb": _NO_NEED,
    "broadcast_buffers": "buffers are those of one process; leave it out",
    "find_unused_parameters": _NO_NEED,
    "gradient_as_bucket_view": _NO_NEED,
    "static_graph": _NO_NEED,
    "check_reduction": _NO_NEED,
    "delay_all_reduce_named_params": _NO_NEED,
    "mixed_precision": "call the model under torch.autocast, and leave it out",
    "init_sync": _NO_NEED,
}
#: The same with another name here.
RENAMED_ARGUMENTS = {"enable_zero": "zero"}


def take_arguments(given: dict, wrapper) -> list[str]:
    """The lines to tell about arguments of ``RaNNCModule`` that only RaNNC 0.7 had; ``wrapper``:
    the class.

    Raises:
        TypeError: It had none of this name.
    """
    lines = []
    for name, value in given.items():
        if name in ARGUMENTS:
            default, line = ARGUMENTS[name]
            if line is None:
                line = "values that nothing uses are never an error"
            if value != default or name == "check_unused_values":
                lines.append(f"RaNNCModule({name}={value!r}) does nothing here: {line}")
        else:
            _, *own, _ = inspect.signature(wrapper.__init__).parameters
            raise TypeError(
                f"RaNNCModule() got an unexpected keyword argument '{name}'{_hint(name, own)}"
            )
    return lines


def _hint(name, own) -> str:
    if name in _OF_TORCH:
        return f", which is one of torch's DistributedDataParallel: {_OF_TORCH[name]}"
    if name in ITEMS:
        return f", which is a setting: RaNNCModule(..., pyrannc.Config({name}=...))"
    known = [*own, *ARGUMENTS, *RENAMED_ARGUMENTS]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean '{close[0]}'?" if close else f"; it takes {', '.join(own)}"


def answer(table: dict, name: str, owner: str):
    """A function that says why there is none of this name."""

    def instead(*_, **__):
        raise RaNNCError(f"{owner}{name}(): {table[name]}")

    instead.__name__ = name
    instead.__doc__ = f"Of RaNNC 0.7: {table[name]}."
    return instead
