"""What torch.export's expressions of sizes say of numbers of rows."""

import sympy


def at(expression, rows):
    """An expression of torch's with ``rows`` rows, in every tensor that has them."""
    return expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(rows)))


def is_of_values(expression) -> bool:
    """Whether the values of a tensor decide: torch's names of such symbols."""
    return any(str(each).startswith(("u", "zuf")) for each in expression.free_symbols)
