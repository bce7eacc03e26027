"""What kind operators of torch are, by the core's table of them (``rannc/ir/operators.h``)."""

from pyrannc import _C

Trait = _C.ir.Trait

# What Python's operators and casting methods are called, without underscores.
_SPELLED = {
    "add": "radd", "bitwise_and": "and", "bitwise_not": "invert", "bitwise_or": "or",
    "bitwise_xor": "xor", "div": "rdiv rtruediv truediv", "floor_divide": "floordiv rfloordiv",
    "log_sigmoid": "logsigmoid", "mul": "rmul", "positive": "pos", "pow": "rpow",
    "remainder": "mod rmod", "to": "bfloat16 bool double float half int long",
}  # fmt: skip


def of(*traits) -> frozenset:
    """Names, as ``add``, of the operators that have each of ``traits``."""
    return frozenset(set.intersection(*map(_C.ir.operators, traits)))


def in_graphs(names) -> frozenset:
    """Operators by ``names``, as graphs and torch's traces call them."""
    return frozenset(f"aten::{name}" for name in names)


def in_python(names) -> frozenset:
    """Operators by ``names``, and what else Python calls them."""
    return names | {each for name in names for each in _SPELLED.get(name, "").split()}
