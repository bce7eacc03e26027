"""
The C++ core of RaNNC; use the package pyrannc instead.
"""
from __future__ import annotations
from . import util
from . import ir
from . import cost
from . import plan
from . import predict
from . import partition
from . import comm
from . import frontend
from . import profile
from . import runtime
__all__: list[str] = ['comm', 'cost', 'frontend', 'ir', 'partition', 'plan', 'predict', 'profile', 'runtime', 'torch_version', 'util']
torch_version: str = '2.13.0+cpu'
