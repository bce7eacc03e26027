"""Numbers that a model reads from tensors which depend on none of its inputs, parameters or random
numbers: ``if mask.any().item():`` of a mask of ones that the model has made itself, or
``int(self.queue_ptr)`` of a small buffer: a call in which that holds another number is captured
anew. And whether a random number of [0, 1) is below 0, as in ``if torch.rand([]) <
self.layerdrop:`` of a model that drops no layer.

Such a number is the same in every call, so it is computed where it is asked for: by the operators
that the trace has recorded for it, on real tensors. Where it depends on the batch size, the traces
at several batch sizes tell.
"""

import torch

from pyrannc.capture import torch_private
from pyrannc.operators import Trait, in_graphs, of

# What makes tensors of numbers alone. Others without a tensor among their operands may be random.
FACTORIES = in_graphs(of(Trait.factory) - of(Trait.draws) - of(Trait.unset))
# Of the first operand of these, only sizes and dtype count.
OF_SIZES = FACTORIES & in_graphs(of(Trait.like))
# Operators that compute the same from the same.
FUNCTIONS = in_graphs(of(Trait.known))
# What they say of a random number of [0, 1) is known where the other number is not between.
COMPARISONS = in_graphs(("ge", "lt"))
# The same into the memory of their first operand.
WRITERS = in_graphs(("copy_", "fill_", "index_put_", "masked_fill_"))


#: How many numbers a buffer may have that Python reads.
#: tuned by: a bound: pointers, flags and counts have one, or one for each of some groups.
#: without it: large buffers would be sent and compared before each call.
MOST_IN_BUFFER = 16


class _Unknown(Exception):
    """It depends on what a call gives, or nobody can tell."""


class BuffersRead:
    """The buffers of a model that Python reads in one run.

    Attributes:
        numbers: What they hold, as lists, by name.
    """

    def __init__(self):
        self.numbers = {}
        self._known = {}  # name and the model's tensor by a key of the run

    def add(self, key, name, tensor) -> None:
        self._known[key] = name, tensor

    def __contains__(self, key) -> bool:
        return key in self._known

    def read(self, key):
        """The values of a buffer, on the host; None where this rank does not know them."""
        name, tensor = self._known[key]
        place = getattr(tensor, "place_elsewhere", None)
        if place is not None:
            found = place.known_numbers
            found = None if found is None else torch.tensor(found, dtype=tensor.dtype)
        elif tensor.numel() > MOST_IN_BUFFER or tensor.is_meta:
            found = None
        else:
            found = tensor.detach().cpu().clone()
        if found is not None:
            self.numbers[name] = found.tolist()
        return found


def number(session, tensor):
    """The only element of a traced tensor, or None where it is not known while tracing."""
    value, found = torch_private.value_in_trace(tensor), {}
    buffers, before = session.buffers_read, session.buffers_read.numbers.copy()
    for fake, name, own in session.buffers:
        of_buffer = torch_private.value_in_trace(fake)
        if of_buffer.node().kind() == "prim::Param":  # nothing has been written
            buffers.add(of_buffer.debugName(), name, own)
    try:
        with session.hidden(), torch_private.disable_current_modes():
            result = _computed(value, found, buffers).item()
            if not _is_out_of_date(value.node().owningBlock(), found):
                return result
    except _Unknown:
        pass
    buffers.numbers = before
    return None


def _computed(value, found, buffers):
    name = value.debugName()
    if name not in found:
        if name in buffers:
            found[name] = buffers.read(name)
            if found[name] is None:
                raise _Unknown
        else:
            found[name] = _result_of(value.node(), found, buffers)
    return found[name]


def _result_of(node, found, buffers):
    kind, operands = node.kind(), list(node.inputs())
    if kind == "prim::Constant":
        constant = node.output().toIValue()
        if isinstance(constant, torch.Tensor):  # what the model holds may be changed between calls
            raise _Unknown
        return constant
    if kind == "aten::lift_fresh":
        return _number_in_code(operands[0].toIValue())
    if kind == "prim::ListConstruct":
        return [_computed(each, found, buffers) for each in operands]
    if kind in COMPARISONS and _is_random(operands[0].node()):
        answer = compared_random(kind, operands[1].toIValue())
        if answer is None:
            raise _Unknown
        return torch.tensor(answer)
    if kind not in FACTORIES | FUNCTIONS | WRITERS:
        raise _Unknown
    like = [_with_sizes_of(operands.pop(0))] if kind in OF_SIZES else []
    values = [*like, *(_computed(each, found, buffers) for each in operands)]
    if kind in WRITERS:  # what others read of that memory is looked at in the end
        values[0] = values[0].clone()
    result = _called(node, values)
    if not isinstance(result, torch.Tensor):
        raise _Unknown
    return result


def _is_random(node):
    """Whether it draws from [0, 1)."""
    while node.kind() == "aten::detach":
        node = next(node.inputs()).node()
    return node.kind() == "aten::rand"


def compared_random(kind, bound) -> bool | None:
    """What a comparison says of each number of [0, 1); None where it differs from one to another.

    Args:
        kind: One of ``COMPARISONS``.
        bound: The other number.
    """
    if not isinstance(bound, int | float) or not (bound <= 0 or bound >= 1):
        return None
    return (bound >= 1) == (kind == "aten::lt")


def _number_in_code(tensor):
    """``-inf`` of ``mask[found] = -inf``."""
    if isinstance(tensor, torch_private.FakeTensor):
        tensor = tensor.constant
    if tensor is None or tensor.dim() > 0:
        raise _Unknown
    return tensor


def _with_sizes_of(value):
    sizes, dtype = value.type().sizes(), value.type().dtype()
    if sizes is None or dtype is None:
        raise _Unknown
    return torch.empty(sizes, dtype=dtype, device="meta")


def _called(node, values):
    """The operator of a node, on the host, wherever the model is."""
    name = node.schema().partition("(")[0]
    namespace, _, operator = name.partition("::")
    operator, _, overload = operator.partition(".")
    call = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    arguments, named = [], {}
    for argument, value in zip(call._schema.arguments, values, strict=True):
        if argument.name == "device":
            value = torch.device("cpu")
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            arguments.append(value)
    return call(*arguments, **named)


def _is_out_of_date(block, found) -> bool:
    """Whether something of ``found`` was computed from memory that had been written, not from what
    the write gave: the write is not in ``found``, or a view from before it was read after it."""
    written = {}  # name of a value that owns memory -> values that writes to it gave
    for node in block.nodes():
        operands = list(node.inputs())
        if any(each.debugName() in found for each in node.outputs()):
            for each in operands:
                writes = written.get(_line(each)[-1], ())
                if writes and writes[-1] not in _line(each):
                    return True
        if node.kind().endswith("_") and not node.kind().endswith("__"):
            gave = node.output().debugName()
            written.setdefault(_line(operands[0])[-1], []).append(gave)
            if gave not in found and any(name in found for name in _line(operands[0])):
                return True
    return False


def _line(value):
    """Names of the value, of the first operand of what made it, and so on: each may be a view of
    the next, and all of them may share the memory of the last."""
    names = [value.debugName()]
    while (value := next(value.node().inputs(), None)) is not None:
        names.append(value.debugName())
    return names
