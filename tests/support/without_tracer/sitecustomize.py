"""First on PYTHONPATH: every process has a RaNNC whose build lacks torch's tracer.

TorchScript is deprecated since torch 2.11; this is RaNNC on a torch that no longer has it.
"""

import importlib.machinery
import os
import sys

os.environ.setdefault("RANNC_FRONTEND", "export")


class _WithoutTracer(importlib.machinery.ExtensionFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        del module.frontend.Tracer


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "pyrannc._C":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _WithoutTracer(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
