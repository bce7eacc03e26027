"""RaNNC trains an unmodified PyTorch model that is too big for one device.

Importing this package starts nothing: no MPI, no device, no output. Names are loaded at first use,
so that the planning commands of ``rannc`` run without torch.
"""

import difflib
import importlib

__version__ = "0.8.0"

_HOME = {
    "RaNNCModule": "module",
    "Config": "config",
    "Weights": "materialize.values",
    "GradScaler": "optimizer.grad_scaler",
    "measure": "report.measurement",
    "trace": "report.trace",
    "save": "checkpoint.save",
    "load": "checkpoint.load",
    "init": "launch",
    "on_preemption": "running.alike.preemption",
    "get_rank": "launch",
    "get_world_size": "launch",
    "barrier": "launch",
    "mean": "running.alike.outside_means",
    "padded": "running.alike.padded_targets",
    "clear": "comm_utils",
    "all_gather": "comm_utils",
    "full": "comm_utils",
    "recreate_all_communicators": "comm_utils",
    "delay_grad_allreduce": "original.switches",
    "keep_graph": "original.switches",
    "sync_params_on_init": "original.switches",
    "DistributeModelParams": "materialize.distribute_model_params",
    "plan": "planner",
    "evaluate": "planner",
    "show_deployment": "planner",
    "PlannerInputError": "planner",
    "RaNNCError": "errors",
    "ConfigError": "errors",
    "TraceError": "errors",
    "PlanError": "errors",
    "InfeasibleError": "errors",
    "CommError": "errors",
}
__all__ = ["__version__", *_HOME]
# Submodules of RaNNC 0.7, which were there without being imported.
_MODULES = ("amp", "comm_utils", "opt")
# Functions of RaNNC 0.7 that say what takes their place.
_ANSWERED = (
    "store_dist_param",
    "load_dist_param",
    "set_dist_param",
    "get_dist_param_range",
    "set_dist_param_dtype",
    "patch_optimizer",
    "_dump_events",
    "_run_dp_dry",
)


def __getattr__(name):
    if name == "_C":
        return importlib.import_module(".native", __name__).load()
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _ANSWERED:
        names = importlib.import_module(".original.names", __name__)
        return names.answer(names.FUNCTIONS, name, "pyrannc.")
    close = difflib.get_close_matches(name, [*_HOME, *_ANSWERED], n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise AttributeError(f"module 'pyrannc' has no attribute '{name}'{hint}")


def __dir__():
    return sorted(__all__)
