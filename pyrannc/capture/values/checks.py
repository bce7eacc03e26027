"""What a model looks at only to raise an error: ``if labels.max() >= n: raise ...``, ``assert``; or
to do something about numbers that are not finite: ``if not x.isfinite().all(): x = x.clamp(...)``.

The trace goes on as if the check had passed, and the graph checks again: what the check looks at
passes through a node that computes it from the values of a call, for each part of the batch.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import operator

import torch

from pyrannc import operators
from pyrannc.capture.arguments import pytree
from pyrannc.capture.replaced import in_this_thread, replaced
from pyrannc.capture.torch_patches import PythonCall
from pyrannc.capture.torch_private import READ_NUMBER, DataDependentOutputException, FakeTensor
from pyrannc.capture.values.logged_numbers import nodes_of, read_here, users_place
from pyrannc.errors import RaNNCError
from pyrannc.operators import Trait

#: The operator of the nodes that look.
CHECK = "rannc::check"
# What a check computes of the tensors that it looks at; each is of any number of rows.
_LOOKS = operators.of(Trait.checked)
_COMPARISONS = {
    "__eq__": operator.eq, "__ge__": operator.ge, "__gt__": operator.gt, "__le__": operator.le,
    "__lt__": operator.lt, "__ne__": operator.ne,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Operand:
    index: int

    def of(self, tensors):
        return tensors[self.index]


@dataclasses.dataclass(frozen=True)
class Step:
    """An operator on steps, operands and constants."""

    function: str
    arguments: tuple

    def of(self, tensors):
        given = [
            each.of(tensors) if isinstance(each, Step | Operand) else each
            for each in self.arguments
        ]
        return getattr(torch, self.function)(*given)


@dataclasses.dataclass(frozen=True)
class Check:
    """A statement of the model, and what it asks of its tensors."""

    statement: str
    place: str
    look: Step | Operand
    comparison: tuple | None  # name and number, of a number that Python has read
    passes: bool
    raises: bool  # else it would do something about numbers that are not finite

    def look_at(self, tensors):
        if any(tensor.numel() == 0 for tensor in tensors):  # a share without rows has no largest
            return
        answer = self.look.of(tensors).item()
        if self.comparison is not None:
            answer = _COMPARISONS[self.comparison[0]](answer, self.comparison[1])
        if bool(answer) == self.passes:
            return
        if self.raises:
            raise RaNNCError(
                f"a check of the model fails for a part of the batch: `{self.statement}` "
                f"({self.place})"
            )
        raise RaNNCError(
            f"numbers of the model are no longer finite: `{self.statement}` ({self.place}) would "
            "go the other way now, which is not in the captured graph.\n  Train with smaller "
            "steps, with bfloat16 or float32 instead of float16, or clamp() without asking."
        )


class Checked:
    """Called as an autograd function is; the first of what is looked at goes through unchanged."""

    @staticmethod
    def apply(check, *tensors):
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            with torch.no_grad():
                check.look_at(tensors)
        return tensors[0].view_as(tensors[0])


class Looks:
    """What has been computed by operators that a check may consist of."""

    def __init__(self):
        self._found = {}  # id of a result -> the result, function, arguments, versions of these

    def add(self, name, args, kwargs, result):
        """A call of the operator ``aten::name``, in a trace or hidden from it."""
        if name in _LOOKS and not kwargs and isinstance(result, torch.Tensor):
            self._found[id(result)] = result, name, args, _versions(args)

    def step(self, tensor, leaves):
        """How ``tensor`` is computed of ``leaves``, which grow."""
        result, name, arguments, versions = self._found.get(id(tensor), (None, "", (), None))
        if result is tensor and _versions(arguments) == versions:
            steps = [
                self.step(each, leaves) if isinstance(each, torch.Tensor) else each
                for each in arguments
            ]
            return Step(name, tuple(steps))
        for index, leaf in enumerate(leaves):
            if leaf is tensor:
                return Operand(index)
        leaves.append(tensor)
        return Operand(len(leaves) - 1)


def _versions(arguments):
    return [each._version for each in arguments if isinstance(each, torch.Tensor)]


@contextlib.contextmanager
def repeated(session):
    """While a model is traced, its checks become nodes."""
    item, truth = FakeTensor.item, FakeTensor.__bool__

    def known(tensor, look, answer, of_number, otherwise):
        """``look(tensor)``, or the answer in a check where that is not known."""
        if session.makes_symbols and session.here() and tensor.constant is None:
            number = session.known_number(tensor)
            if number is not None:
                return of_number(number)
            found = _statement_here()
            return otherwise(tensor) if found is None else answer(found)
        try:
            return look(tensor)
        except DataDependentOutputException:
            found = _statement_here() if session.here() else None
            if found is None:
                return otherwise(tensor)
            return answer(found)

    def read(tensor):
        frame = inspect.currentframe().f_back.f_back  # that of in_this_thread() is between

        def logged(tensor):
            return session.reader.number(tensor) if read_here(session, frame) else item(tensor)

        return known(tensor, item, lambda found: _Read(session, tensor, found), _itself, logged)

    def decided(tensor):
        return known(
            tensor, truth, lambda found: _checked(session, tensor, found, None), bool, truth
        )

    own = {"item": in_this_thread(read, item), "__bool__": in_this_thread(decided, truth)}
    with replaced(FakeTensor, **own):
        yield


def _itself(number):
    return number


class _Read:
    """The number ``tensor.item()`` in a check, of which nothing but a comparison is known."""

    def __init__(self, session, tensor, statement):
        self._known = session, tensor, statement

    def __bool__(self):
        return _checked(*self._known, None)

    __hash__ = object.__hash__


def _refuse(*_):
    raise DataDependentOutputException(READ_NUMBER)


def _compared(name):
    def compare(read, number):
        if not isinstance(number, int | float):
            _refuse()
        return _checked(*read._known, (name, number))

    return compare


for _name in _COMPARISONS:
    setattr(_Read, _name, _compared(_name))
for _name in dir(int):  # arithmetic, conversions, what shows it
    if _name not in _COMPARISONS and not hasattr(object, _name) and _name != "__bool__":
        setattr(_Read, _name, _refuse)
for _name in ("__str__", "__repr__", "__format__"):
    setattr(_Read, _name, _refuse)


def _checked(session, tensor, statement, comparison) -> bool:
    """What the check has to find; records a node that looks."""
    text, place, passes, raises = statement
    leaves = []
    look = session.looks.step(tensor, leaves)
    check = Check(text, place, look, comparison, passes, raises)
    _, shape = pytree.flatten((check, *leaves))
    session.record_check(PythonCall(Checked, shape), leaves)
    return passes


def _statement_here():
    """``(text, place, what the look has to find, whether an error comes else)`` where the caller's
    innermost frame outside of torch and this library is in the test of an assertion, or of an
    ``if`` that only raises or only asks whether numbers are finite."""
    place = users_place()
    if place is None:
        return None
    file, first, last = place
    for statement, passes in _checks_of(file):
        test, begin, end = statement.test, first, last
        if (begin, end) == (_begin(statement), _end(statement)):
            begin, end = _begin(test), _end(test)
        if passes is not None:
            wanted = _wanted(test, begin, end, passes)
        elif _begin(test) <= begin and end <= _end(test):
            wanted = _if_finite(test)
        else:
            continue
        if wanted is not None:
            text = " ".join(ast.unparse(test).split())
            asserts = isinstance(statement, ast.Assert)
            raises = passes is not None
            return f"{'assert' if asserts else 'if'} {text}", f"{file}:{first[0]}", wanted, raises
    return None


@functools.lru_cache(maxsize=64)
def _checks_of(file) -> tuple:
    """Statements of a file that only raise errors, and what their tests have to find; and those for
    numbers that are not finite, with None."""
    found = []
    for node in nodes_of(file):
        if isinstance(node, ast.Assert):
            found.append((node, True))
        elif isinstance(node, ast.If):
            if not node.orelse and _only_raises(node.body):
                found.append((node, False))
            elif _if_finite(node.test) is not None:
                found.append((node, None))
    return tuple(found)


def _only_raises(body) -> bool:
    leaves = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Try, ast.With)
    return isinstance(body[-1], ast.Raise) and not any(
        isinstance(inner, leaves) for statement in body for inner in ast.walk(statement)
    )


def _if_finite(test):
    """What each part of a test comes to where all numbers are finite, of those that Python asks for
    by itself; None where parts are not alike, or ask something else of numbers."""
    parts = [part for part in _parts(test) if not _is_setting(part)]
    found = {_part_if_finite(part) for part in parts}
    return found.pop() if len(found) == 1 else None


def _parts(test):
    match test:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _parts(part)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _parts(inner)
        case _:
            yield test


def _is_setting(part) -> bool:
    """Whether it is such as `self.training` or `x.dtype == torch.float16`, which is no tensor."""
    nodes = list(ast.walk(part))
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return not any(
        isinstance(node, ast.Call) or (isinstance(node, ast.Name) and id(node) not in bases)
        for node in nodes
    )


def _part_if_finite(part):
    match part:
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            found = _part_if_finite(inner)
            return None if found is None else not found
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd(), left=left, right=right):
            found = {_part_if_finite(left), _part_if_finite(right)}
            return found.pop() if len(found) == 1 else None
        case ast.Call(func=ast.Attribute(attr="isinf" | "isnan" | "isfinite" as name)):
            return name == "isfinite"
        case ast.Call(func=ast.Attribute(attr="any" | "all" | "item", value=value), args=args):
            return _part_if_finite(args[0] if args else value)
    return None


def _wanted(test, begin, end, passes):
    """What the part of ``test`` from ``begin`` to ``end`` has to be; None where it is not in it, or
    nobody can tell."""
    if not (_begin(test) <= begin and end <= _end(test)):
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        # The jump after `not x` stands at x, or at the whole.
        return _wanted(test.operand, max(begin, _begin(test.operand)), end, not passes)
    if isinstance(test, ast.BoolOp):
        # The jump after one of them may stand at another, or at the whole; where all are to be
        # alike, it does not matter which one it is.
        _, *asked = ast.iter_child_nodes(test)  # the first is `and` or `or`
        if isinstance(test.op, ast.And) is not passes:
            # One is enough: those before the last were not it.
            last = asked[-1]
            whole = (begin, end) == (_begin(test), _end(test))
            if not whole and _wanted(last, begin, end, passes) is None:
                return None
            asked = [last]
        found = {_wanted(each, _begin(each), _end(each), passes) for each in asked}
        return found.pop() if len(found) == 1 else None
    return passes


def _begin(node):
    return node.lineno, node.col_offset


def _end(node):
    return node.end_lineno, node.end_col_offset
