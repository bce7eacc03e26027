"""What torch.export has taken for granted of the number of rows.

It follows one branch of `if x.size(0) > 4:` and notes that the rows are more than four; an exported
program checks that when it is called, a graph does not. Where Python takes the rows as a plain
number, as `len(x)` does, it notes that they are as many as in this run.
"""

import sympy

from pyrannc.capture.explained import is_own
from pyrannc.capture.exported import rows as of_rows
from pyrannc.errors import TraceError

# At which it has to hold. More rows would meet what operators ask of sizes of 32 bits.
_LOOKED_AT = (*range(2, 65), 100, 127, 128, 129, 255, 256, 257, 500, 511, 512, 513, 1000, 1024)


class PlainNumber(TraceError):
    """Python has taken the number of rows as a plain number: a program is of that number alone."""


def refusal(shape_env) -> TraceError | None:
    """The error of a model that does not compute the same at each number of rows.

    Args:
        shape_env: torch's, after a run of the model.
    """
    plain = None
    for guard in shape_env.guards:
        if of_rows.is_of_values(guard.expr):
            continue  # which the walk refuses
        failing = [rows for rows in _LOOKED_AT if of_rows.at(guard.expr, rows) == sympy.false]
        # At one number alone it only says that the rows are not as many as another size, which
        # torch asks where it looks how tensors meet.
        if len(failing) <= 1:
            continue
        is_plain = _fixes_the_rows(guard.expr)
        found = (PlainNumber if is_plain else TraceError)(
            f"{_place(guard)}: the model calls other operators when the number of rows "
            f"differs, or computes with it in Python: torch.export goes by {guard.expr}, which "
            f"is false at {failing[0]} rows.\n  Python control flow must not depend on the "
            "batch size; compute with tensors, as x.sum(0) / x.size(0) does."
        )
        if not is_plain:
            return found
        plain = plain or found
    return plain


def _fixes_the_rows(expression) -> bool:
    """Whether it is ``a + b * rows == c``."""
    if not isinstance(expression, sympy.Eq):
        return False
    difference, symbols = expression.lhs - expression.rhs, expression.free_symbols
    return difference.is_polynomial(*symbols) and sympy.total_degree(difference, *symbols) == 1


def _place(guard) -> str:
    frame = guard.sloc.framework_loc
    file, line = getattr(frame, "filename", ""), getattr(frame, "lineno", 0)
    return f"the model ({file}:{line})" if file and not is_own(file) else "the model"
