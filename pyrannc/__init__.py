"""RaNNC trains an unmodified PyTorch model that is too big for one device.

Importing this package starts nothing: no MPI, no device, no output. Names are loaded at first use,
so that the planning commands of ``rannc`` run without torch.
"""

import importlib

__version__ = "0.8.0"

_HOME = {
    "RaNNCModule": "module",
    "Config": "config",
    "GradScaler": "optimizer.grad_scaler",
    "measure": "report.measurement",
    "get_rank": "launch",
    "get_world_size": "launch",
    "barrier": "launch",
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


def __getattr__(name):
    if name == "_C":
        return importlib.import_module(".native", __name__).load()
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'pyrannc' has no attribute '{name}'")


def __dir__():
    return sorted(__all__)
