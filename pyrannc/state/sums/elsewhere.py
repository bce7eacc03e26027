"""Numbers that are made of parameters which other ranks hold: penalties of a training loop.

``0.1 * sum(p.pow(2).sum() for p in model.parameters())`` is on each rank a number of what this
rank holds, with the gradients of that, and the terms that it lacks. Ranks that hold the parameters
of these compute them when such a number is read, before parameters change.
"""

import dataclasses
import functools
import operator
import weakref

import torch

from pyrannc.errors import RaNNCError
from pyrannc.ranks import gathered
from pyrannc.state import named_tensors, torch_private

#: Steps in which ranks ask each other for such numbers, until one has asked.
#: tuned by: a penalty is there from the first step, or from the second where that one is skipped.
#: without it: a rank that holds all parameters would wait for nobody in each step, or answer none.
_FIRST_STEPS = 2
_REDUCTIONS = "sum mean norm std var max min amax amin prod"
_LINEAR = {
    "add": operator.add, "__add__": operator.add, "__iadd__": operator.add, "add_": operator.add,
    "__radd__": lambda a, b: b + a, "sub": operator.sub, "__sub__": operator.sub,
    "__isub__": operator.sub, "__rsub__": lambda a, b: b - a, "rsub": lambda a, b: b - a,
}  # fmt: skip
_SCALED = {
    "mul": operator.mul, "__mul__": operator.mul, "__rmul__": operator.mul,
    "__imul__": operator.mul, "multiply": operator.mul, "div": operator.truediv,
    "__truediv__": operator.truediv, "__itruediv__": operator.truediv, "divide": operator.truediv,
}  # fmt: skip
# What is read of such a number without its value.
_KNOWN = {
    "dtype", "device", "shape", "ndim", "requires_grad", "grad_fn", "is_leaf", "size", "dim",
    "numel", "is_floating_point", "__hash__", "element_size", "layout", "is_sparse", "is_cpu",
    "is_cuda", "is_meta", "is_complex",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter, by its name."""

    name: str


@dataclasses.dataclass(eq=False)
class Step:
    """A function of steps, parameters and constants; ``number``: what it is, once that is known."""

    place: str
    function: str
    args: tuple
    kwargs: dict
    number: float | None = None

    def names(self):
        for each in (*self.args, *self.kwargs.values()):
            if isinstance(each, Leaf):
                yield each.name
            elif isinstance(each, Step):
                yield from each.names()

    def of(self, tensors):
        args = [_value(each, tensors) for each in self.args]
        kwargs = {key: _value(each, tensors) for key, each in self.kwargs.items()}
        place = {"linalg": torch.linalg, "torch": torch}.get(self.place, torch.Tensor)
        return getattr(place, self.function)(*args, **kwargs)


def _value(each, tensors):
    if isinstance(each, Leaf):
        return tensors[each.name].detach()
    return each.of(tensors) if isinstance(each, Step) else each


def is_whole_reduction(function) -> bool:
    return getattr(function, "__name__", "") in {*_REDUCTIONS.split(), "vector_norm"}


def step_of(function, args, kwargs):
    """The step that a function of released tensors is; None where one of them has no value that
    its owner could compute."""
    given = [_step(each) for each in args]
    named = {key: _step(each) for key, each in kwargs.items()}
    if any(each is None for each in (*given, *named.values())):
        return None
    empty = {key: None if value == () else value for key, value in named.items()}
    return Step(*_named(function), tuple(None if e == () else e for e in given), empty)


def _named(function) -> tuple:
    name = function.__name__
    for module in (torch, torch.linalg):
        if getattr(module, name, None) is function:
            return module.__name__.rpartition(".")[2], name
    return "Tensor", name


def _step(each):
    """None where it cannot be told; () stands for None."""
    if each is None:
        return ()
    if not isinstance(each, torch.Tensor):
        return each if isinstance(each, (int, float, bool, str, tuple, list)) else None
    place = getattr(each, "place_elsewhere", None)
    if place is None:
        return each.detach()
    if hasattr(each, "step_elsewhere"):
        return each.step_elsewhere
    is_parameter = isinstance(each, torch.nn.Parameter) and place.what == "parameter"
    return Leaf(place.name) if is_parameter else None


def number(step, owners, dtype, device):
    """The number of ``step``, of which this rank has nothing."""
    with torch_private.without_subclasses():
        made = torch.zeros((), dtype=dtype, device=device).as_subclass(NumberElsewhere)
    made.lacks, made.owners, made.is_pure = [(1.0, step)], owners, True
    owners.questions.note(made)
    return made


class NumberElsewhere(torch.Tensor):
    """A tensor of what this rank has of a number, with ``lacks``: factors and steps of the rest."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(function, "__self__", None), "__name__", "")
        with torch_private.without_subclasses():
            if name in _KNOWN:
                return function(*args, **kwargs)
            if name == "detach":
                return _like(args[0], function(args[0]), args[0].lacks)
            if name in ("backward", "requires_grad_", "register_hook", "retain_grad", "grad"):
                return function(*args, **kwargs)
            if len(args) == 2 and not kwargs and name in _LINEAR:
                return _added(_LINEAR[name], *args, sign=name)
            if len(args) == 2 and not kwargs and name in _SCALED and _scales(name, *args):
                return _scaled(_SCALED[name], *args)
            if name in ("neg", "__neg__"):
                lacks = [(-factor, step) for factor, step in args[0].lacks]
                return _like(args[0], -_own(args[0]), lacks)
            if (made := _further(function, args, kwargs)) is not None:
                return made
            return function(*map(_resolved, args), **{k: _resolved(v) for k, v in kwargs.items()})

    def __repr__(self, **_):
        return repr(_resolved(self))

    def __format__(self, spec):
        return format(_resolved(self), spec)

    def names(self) -> set:
        """Of the parameters that it is made of."""
        return {name for _, step in self.lacks for name in step.names()} | self._held()

    def _held(self) -> set:
        """Names of parameters that this rank's own part is made of, but for the model's calls."""
        known = {id(t): n for n, t in named_tensors.tensors(self.owners.model).items()}
        waiting, seen, found = [self.grad_fn], set(), set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen or node.name() == "PipelineStep":
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found |= {known[id(node.variable)]} if id(node.variable) in known else set()
            waiting += [each for each, _ in node.next_functions]
        return found


def _own(value):
    return value.as_subclass(torch.Tensor) if isinstance(value, NumberElsewhere) else value


def _like(number, own, lacks):
    made = own.as_subclass(NumberElsewhere)
    made.lacks, made.owners, made.is_pure = lacks, number.owners, False
    number.owners.questions.note(made)
    return made


def _added(function, one, other, sign):
    number = one if isinstance(one, NumberElsewhere) else other
    minus = [1.0, -1.0] if "sub" in sign else [1.0, 1.0]
    if "rsub" in sign:
        minus.reverse()
    lacks = [
        (factor * by, step)
        for by, each in zip(minus, (one, other), strict=True)
        if isinstance(each, NumberElsewhere)
        for factor, step in each.lacks
    ]
    made = _like(number, function(_own(one), _own(other)), lacks)
    # `sum()` begins with 0.
    pure = (
        e.is_pure if isinstance(e, NumberElsewhere) else type(e) is int and e == 0
        for e in (one, other)
    )
    made.is_pure = all(pure)
    return made


def _further(function, args, kwargs):
    """A function of numbers of which this rank has nothing, as `p.norm() ** 2`, where one rank
    has all that they are made of; else None."""
    numbers = [each for each in args if isinstance(each, NumberElsewhere)]
    if not numbers or not all(each.is_pure for each in numbers):
        return None
    if getattr(function, "__name__", "") in ("item", "tolist", "__float__", "__bool__", "__int__"):
        return None
    given = [_folded(each) if isinstance(each, NumberElsewhere) else each for each in args]
    if not all(isinstance(e, Step | int | float | str | bool) for e in (*given, *kwargs.values())):
        return None
    ranks = numbers[0].owners.ranks
    names = {name for each in given if isinstance(each, Step) for name in each.names()}
    if not set.intersection(*(set(ranks[name]) for name in names)):
        return None
    step = Step(*_named(function), tuple(given), dict(kwargs))
    return number(step, numbers[0].owners, numbers[0].dtype, numbers[0].device)


def _folded(value):
    steps = [Step("Tensor", "mul", (step, factor), {}) for factor, step in value.lacks]
    return functools.reduce(lambda a, b: Step("Tensor", "add", (a, b), {}), steps)


def _scales(name, one, other) -> bool:
    number, factor = (one, other) if isinstance(one, NumberElsewhere) else (other, one)
    if isinstance(factor, torch.Tensor):
        plain = not isinstance(factor, NumberElsewhere) and factor.dim() == 0
        return plain and not factor.requires_grad and number is one
    return isinstance(factor, int | float) and (number is one or "mul" in name)


def _scaled(function, one, other):
    number, factor = (one, other) if isinstance(one, NumberElsewhere) else (other, one)
    by = float(factor)
    lacks = [(function(each, by), step) for each, step in number.lacks]
    made = _like(number, function(_own(number), factor), lacks)
    made.is_pure = number.is_pure
    return made


def _resolved(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_resolved, value))
    if not isinstance(value, NumberElsewhere):
        return value
    value.owners.questions.read(value)
    return _own(value) + sum(factor * step.number for factor, step in value.lacks)


class Questions:
    """Terms that numbers of this rank lack: ranks tell each other, in rounds.

    A rank that holds all parameters has no such number, and knows of none. So before anything that
    all ranks do together, which are the agreements of calls and the beginnings of optimizer steps,
    each takes part in rounds until nobody asks any more; a rank that reads a number begins one.
    After the first steps there are none where nobody has asked.

    Attributes:
        agree: Function that says whether some rank asks; see ``CallAgreement.asking``.
    """

    agree = None

    def __init__(self, owners):
        self._owners = owners
        self._steps, self._was_asked = 0, False
        self._numbers = []  # references to those that may lack a term

    def note(self, number) -> None:
        """``number`` may be read."""
        self._numbers.append(weakref.ref(number))

    def meet(self, describe) -> None:
        """Something begins that all ranks do together, in words what ``describe()`` returns.
        Collective."""
        while self._are_open() and self.agree(bool(self._lacking()), describe):
            self._tell()
        if self._numbers:
            self._numbers = [each for each in self._numbers if each() is not None]

    def before_step(self) -> None:
        """A step of an optimizer begins on all ranks. Collective."""
        self.meet(lambda: "optimizer.step()")
        self.parameters_change()
        self._steps += 1

    def parameters_change(self) -> None:
        """What numbers lack now can no longer be known."""
        self._numbers.clear()

    def read(self, number) -> None:
        """Lets ``number`` lack nothing.

        Raises:
            RaNNCError: It is too late, or other ranks do not take part.
        """
        if all(step.number is not None for _, step in number.lacks):
            return
        names = number.names()
        if all(each() is not number for each in self._numbers):
            raise RaNNCError(
                f"a number is read of tensors that this rank has released ({_listed(names)}), "
                "which have changed since.\n  Read it before optimizer.step(), and again in each "
                "step."
            )
        if self._are_open():
            self.agree(True, lambda: "a number is read that is made of parameters of other ranks")
        elif not self._everyone_lacks_some(names):
            raise RaNNCError(
                f"a number is read of tensors that this rank has released ({_listed(names)}), and "
                "some rank has all of them, which does not know of the question: nobody has asked "
                f"in the first {_FIRST_STEPS} steps.\n  Read such a number from the first step on, "
                "times 0 if need be; or compute it in forward() of a module around the model: "
                "`return self.model(x) + 0.1 * self.model.fc.weight.abs().sum()`."
            )
        self._tell()

    def _are_open(self):
        if self._was_asked or self._steps < _FIRST_STEPS:
            everyone = self._owners.world.size
            return min(map(len, self._owners.ranks.values()), default=everyone) < everyone
        return False

    def _everyone_lacks_some(self, names):
        ranks = self._owners.ranks
        world = range(self._owners.world.size)
        return all(any(rank not in ranks[name] for name in names) for rank in world)

    def _lacking(self) -> list:
        """The steps that are not known."""
        numbers = [number for each in self._numbers if (number := each()) is not None]
        steps = {id(step): step for number in numbers for _, step in number.lacks}
        return [step for step in steps.values() if step.number is None]

    def _tell(self) -> None:
        """All ranks learn what they lack. Collective."""
        owners, steps = self._owners, self._lacking()
        asked = gathered(owners.world, steps)
        self._was_asked |= any(asked)
        tensors, mine = named_tensors.tensors(owners.model), {}
        for rank, theirs in enumerate(asked):
            for place, step in enumerate(theirs):
                holders = set.intersection(*(set(owners.ranks[name]) for name in step.names()))
                if holders and owners.world.rank == min(holders):
                    mine[rank, place] = float(step.of(tensors))
        answers = {}
        for each in gathered(owners.world, mine):
            answers |= each
        for place, step in enumerate(steps):
            step.number = answers[owners.world.rank, place]


def _listed(names):
    return ", ".join(sorted(names)[:3])
