"""Numbers of tensors that forward() reads for a log: ``self.last = loss.item()``, ``print(...)``.

The graph returns their tensors beside the result. After each call they stand where forward() would
have put them, or are printed. Detached tensors of one number that forward() keeps are left in the
same way. A number that decides what runs, or becomes a part of a tensor, is refused.
"""

import ast
import builtins
import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import linecache
import logging
import operator
import re
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.explained import OWN_PATH, TORCH_PATH
from pyrannc.capture.replaced import in_this_thread, replaced
from pyrannc.capture.torch_private import READ_NUMBER, DataDependentOutputException, FakeTensor
from pyrannc.errors import TraceError, shown_as

#: What to write where a number cannot be read in forward().
REMEDY = (
    "keep the tensor, `self.last = x.mean().detach()`, and read `model.last.item()` after the call"
)
_APPENDED, _ITSELF, _SHOWN = "appended", "itself", "shown"
_TOKEN = re.compile("\ue000(\\d+)\ue001")
# Names of functions that check, as assert_close or torch_compilable_check; not save_checkpoint.
_CHECKS = re.compile("(^|_)(check|assert)(?!point)")


@shown_as(TraceError)
class StaleNumber(TraceError):
    """A call computes with a number that the call before it has read."""


class LoggedNumber(pytree.NumberOfTensors):
    """Stands for ``tensor.item()`` while a model is captured, and for what is computed of that.

    Args:
        reader: :class:`Reader` of the run.
        tensors: What is read.
        of: Function from their numbers to this one.
    """

    def __init__(self, reader, tensors, of):
        super().__init__(tensors, of)
        self._reader = reader
        reader.made.append(weakref.ref(self))

    def __repr__(self):
        return self.__format__("")

    def __format__(self, spec):
        if not self._reader.is_open or _is_told_by_a_check():
            return "<number of a tensor, which only a call of the model has>"
        self._reader.shown.append((self, spec))
        return f"\ue000{len(self._reader.shown) - 1}\ue001"


def _computed(function):
    def compute(*operands):
        numbers = [each for each in operands if isinstance(each, LoggedNumber)]
        reader = numbers[0]._reader
        if not reader.is_open or any(each._reader is not reader for each in numbers):
            raise StaleNumber(
                "forward() computes with the number of a tensor that the call before it has read. "
                "A captured model hands no number from one call to the next.\n  In forward() "
                f"{REMEDY}: averages and sums over calls belong there. Or keep a buffer."
            )
        if not all(isinstance(each, LoggedNumber | int | float) for each in operands):
            _refuse(reader)
        tensors, parts = [], []
        for each in operands:
            if isinstance(each, LoggedNumber):
                begin = len(tensors)
                tensors += each.tensors
                parts.append((each.of, begin, len(tensors)))
            else:
                parts.append((None, each, None))

        def of(values):
            return function(*(p[1] if p[0] is None else p[0](values[p[1] : p[2]]) for p in parts))

        return LoggedNumber(reader, tensors, of)

    return compute


def _refuse(reader=None, *_):
    error = DataDependentOutputException(READ_NUMBER)
    if isinstance(reader, LoggedNumber):
        _computed(operator.pos)(reader)  # raises where it is of another call
        reader = reader._reader
    if reader is not None:
        reader.refused = error  # who logs may catch it
    raise error


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _function = getattr(operator, _name)
    setattr(LoggedNumber, f"__{_name}__", _computed(_function))
    setattr(LoggedNumber, f"__r{_name}__", _computed(lambda a, b, f=_function: f(b, a)))
for _name, _function in {
    "neg": operator.neg, "pos": operator.pos, "abs": abs, "round": round,
}.items():  # fmt: skip
    setattr(LoggedNumber, f"__{_name}__", _computed(_function))
for _name in (
    "bool",
    "float",
    "int",
    "index",
    "complex",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "floordiv",
    "mod",
):
    setattr(LoggedNumber, f"__{_name}__", _refuse)
LoggedNumber.__hash__ = object.__hash__


@dataclasses.dataclass(frozen=True)
class Left:
    """Where numbers go after a call.

    Attributes:
        path: Of the attribute; empty of what is shown.
        how: Whether it is the attribute itself, is appended to it, or shown; else ``(key,)`` of it.
        outputs: Which of the further outputs of the graph it is made of.
        shape: Its pytree shape; of what is shown a function from the numbers.
    """

    path: str
    how: object
    outputs: tuple
    shape: object


class Reader:
    """What one run of a model reads of its tensors.

    Attributes:
        is_open: The model runs.
    """

    def __init__(self):
        self.made, self.shown, self.printed = [], [], []
        self.is_open, self.refused = True, None
        self._held = self._before = None  # attributes, and copies of them, before the run

    @contextlib.contextmanager
    def reading(self, model):
        """The model runs inside, on tensors without values."""
        self._held = module_attributes.attributes(model)
        self._before = {p: module_attributes.copied(v) for p, v in self._held.items()}
        show = builtins.print

        def show_or_keep(*args, sep=" ", end="\n", file=None, flush=False):
            text = (" " if sep is None else sep).join(map(str, args))
            if not _TOKEN.search(text) or file not in (None, sys.stdout, sys.stderr):
                return show(*args, sep=sep, end=end, file=file, flush=flush)
            self.printed.append((text, functools.partial(_print, end, file is sys.stderr)))

        handle = logging.Logger.handle

        def handle_or_keep(logger, record):
            given = any(isinstance(each, LoggedNumber) for each in _args(record))
            if given or _TOKEN.search(str(record.msg)):
                self.printed.append((record, logger))
            else:
                handle(logger, record)

        def text_of(tensor, spec):
            caller = inspect.currentframe().f_back.f_back  # in_this_thread() is between
            user = not caller.f_code.co_filename.startswith((TORCH_PATH, OWN_PATH))
            if tensor.dim() == 0 and tensor.constant is None and user:
                return format(self.number(tensor), spec)
            return object.__format__(tensor, spec)

        shown = FakeTensor.__format__
        with (
            replaced(builtins, print=in_this_thread(show_or_keep, show)),
            replaced(logging.Logger, handle=in_this_thread(handle_or_keep, handle)),
            replaced(FakeTensor, __format__=in_this_thread(text_of, shown)),
        ):
            yield
        if self.refused is not None:
            raise self.refused

    def number(self, tensor):
        return LoggedNumber(self, [tensor.detach()], operator.itemgetter(0))

    def finish(self, model) -> tuple[list, list]:
        """Where numbers go, and their tensors. Raises TraceError where that is unknown."""
        left, tensors = [], []

        def add(path, how, value):
            found, shape = pytree.flatten(value)
            begin = len(tensors)
            tensors.extend(found)
            left.append(Left(path, how, tuple(range(begin, len(tensors))), shape))

        now = module_attributes.attributes(model)
        changes = module_attributes.changed(self._before, model)
        for path, value in changes.items():
            in_place = path in self._held and now.get(path) is self._held[path]
            before = self._before[path] if in_place else None
            _refuse_tolist(path, value)
            for how, each in _numbers_left(before, value):
                add(path, how, each)
        known = {id(each) for value in changes.values() for each in _flat(value)}
        del changes, now
        self._held = value = each = None
        shown = set()
        for what, then in self.printed:
            begin = len(tensors)

            def kept(number, spec="", begin=begin):
                place = len(tensors) - begin
                tensors.extend(number.tensors)
                return _Part(number.of, slice(place, len(tensors) - begin), spec)

            def pieces(text, kept=kept):
                split = _TOKEN.split(text)
                shown.update(map(int, split[1::2]))
                return [
                    kept(*self.shown[int(piece)]) if index % 2 else piece
                    for index, piece in enumerate(split)
                ]

            if isinstance(what, logging.LogRecord):
                given = [kept(e) if isinstance(e, LoggedNumber) else e for e in _args(what)]
                what, text = copy.copy(what), pieces(str(what.msg))
                what.args = ()
                of = _Logged(what, then, text, given)
            else:
                of = _Printed(pieces(what), then)
            left.append(Left("", _SHOWN, tuple(range(begin, len(tensors))), of))
        self.printed = what = None
        self._refuse_others(known, shown)
        self.is_open = False
        return left, tensors

    def _refuse_others(self, known, shown):
        hidden = [index for index in range(len(self.shown)) if index not in shown]
        of_shown = {id(value) for value, _ in self.shown}

        def others():
            alive = [ref() for ref in self.made]
            return [e for e in alive if e is not None and id(e) not in known | of_shown]

        lost = bool(hidden) or bool(others())
        if lost and not hidden:
            gc.collect()
            lost = bool(others())
        if lost:
            raise TraceError(
                "the number of a tensor (.item()) goes where a captured model cannot put it in "
                "each call: such are attributes, lists and dicts in them, and print().\n  In "
                f"forward() {REMEDY}."
            )


@dataclasses.dataclass(frozen=True)
class _Part:
    """A number in a text."""

    of: Callable
    numbers: slice
    spec: str

    def at(self, values):
        return self.of(values[self.numbers])


def _text(pieces, values) -> str:
    return "".join(
        each if isinstance(each, str) else format(each.at(values), each.spec) for each in pieces
    )


@dataclasses.dataclass(frozen=True)
class _Printed:
    pieces: list
    show: Callable

    def __call__(self, values):
        self.show(_text(self.pieces, values))


@dataclasses.dataclass(frozen=True)
class _Logged:
    record: logging.LogRecord
    logger: logging.Logger
    pieces: list
    given: list

    def __call__(self, values):
        record = copy.copy(self.record)
        record.msg = _text(self.pieces, values)
        record.args = tuple(
            each.at(values) if isinstance(each, _Part) else each for each in self.given
        )
        record.created = time.time()
        self.logger.handle(record)


def _args(record) -> tuple:
    if isinstance(record.args, tuple):
        return record.args
    return (record.args,) if record.args else ()


def _print(end, to_stderr, text):
    print(text, end=end, file=sys.stderr if to_stderr else sys.stdout, flush=True)


@contextlib.contextmanager
def not_shown(left):
    """Inside, a model whose numbers are printed after each call prints and logs nothing."""
    if not any(each.how is _SHOWN for each in left):
        yield
        return
    show, handle = builtins.print, logging.Logger.handle
    with (
        replaced(builtins, print=in_this_thread(lambda *_, **__: None, show)),
        replaced(logging.Logger, handle=in_this_thread(lambda *_: None, handle)),
    ):
        yield


def _numbers_left(before, now) -> list:
    """``(how, value)`` of the numbers that a run has left in an attribute, or nothing where it has
    left something else there, too.

    Args:
        before: What was in the container ``now`` before; None where it is another object.
    """
    if before is None:
        return [(_ITSELF, now)] if _are_numbers(now) else []
    if isinstance(now, dict):
        found = [((key,), each) for key, each in now.items() if before.get(key, now) is not each]
    elif isinstance(now, list | deque):
        now, count = list(now), 0
        while count < len(now) and _are_numbers(now[-1 - count]):
            if any(now[-1 - count] is each for each in before):
                break
            count += 1
        kept = now[: len(now) - count]
        tail = list(before)[len(before) - len(kept) :]  # a deque loses its first
        if len(tail) != len(kept) or not all(map(operator.is_, tail, kept)):
            return []
        found = [(_APPENDED, each) for each in now[len(kept) :]]
    else:
        return []
    return found if all(_are_numbers(each) for _, each in found) else []


def _refuse_tolist(path, value):
    """torch.export gives numbers of its own for ``tensor.tolist()``, which no call could renew."""
    if any(
        isinstance(each, torch.SymInt | torch.SymFloat) and free_unbacked_symbols(each)
        for each in _flat(value)
    ):
        raise TraceError(
            f"forward() leaves numbers of a tensor (.tolist()) in '{path}'.\n  Let it {REMEDY}."
        )


def _are_numbers(value) -> bool:
    """Whether it is made of numbers of tensors, tensors of one number, and constants."""
    tensors, _ = pytree.flatten(value)
    own = (each.dim() == 0 and not each.requires_grad for each in tensors)
    return bool(tensors) and all(isinstance(t, FakeTensor) for t in tensors) and all(own)


def _flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        return [found for each in value for found in _flat(each)]
    return [value]


def read_here(session, frame) -> bool:
    """Whether a model's own code reads a number, and not torch for it."""
    file = frame.f_code.co_filename
    return session.reader is not None and not file.startswith((TORCH_PATH, OWN_PATH))


def users_place():
    """``(file, (line, column) of the begin, of the end)`` of the expression at which the innermost
    frame outside of torch and this library is; None where there is none."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((OWN_PATH, TORCH_PATH)):
        frame = frame.f_back
    if frame is None:
        return None
    line, last_line, column, last_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if None in (line, last_line, column, last_column):
        return None
    return frame.f_code.co_filename, (line, column), (last_line, last_column)


def _is_told_by_a_check() -> bool:
    """Whether a number is written into the message of a function that only checks, as
    ``torch_compilable_check(a.numel() == n, f"{n} places")`` of transformers."""
    place = users_place()
    if place is None:
        return False
    file, begin, end = place
    return any(first <= begin and end <= last for first, last in _checks_of(file))


@functools.lru_cache(maxsize=64)
def _checks_of(file) -> tuple:
    """Where a file calls functions that check, and makes nothing of what they return."""
    calls = [
        node
        for node in nodes_of(file)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    return tuple(
        ((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset))
        for each in calls
        if _CHECKS.search(ast.unparse(each.value.func).rpartition(".")[2])
    )


def nodes_of(file):
    """The nodes of a file's syntax tree."""
    try:
        return ast.walk(ast.parse("".join(linecache.getlines(file))))
    except SyntaxError:  # no Python: a template, a cell with magic commands
        return ()


def put(model, left, tensors, is_first_rank) -> None:
    """After a call: ``tensors`` are the further outputs of the graph."""
    paths = {each.path for each in left if each.how is not _SHOWN}
    places = module_attributes.places_of(model, paths) if paths else {}
    for each in left:
        given = [tensors[index] for index in each.outputs]
        if each.how is _SHOWN:
            if is_first_rank:
                each.shape([number.item() for number in given])
            continue
        value = pytree.unflatten(each.shape, [number.detach() for number in given])
        place = places[each.path]
        if each.how is _ITSELF:
            place.write(value)
        elif each.how is _APPENDED:
            place.read().append(value)
        else:
            place.read()[each.how[0]] = value
