"""What torch.export made of a model, written down as a graph in the form that the core reads.

An exported program is a graph of torch.fx, which is Python's; an interpreter of torch.fx goes
through it. Sizes are expressions of the number of rows there, and become ``fixed + per_row * rows``
here.
"""

import collections
import json
import operator
import re

import torch
from torch.fx import Interpreter

from pyrannc import _C, operators
from pyrannc.capture.explained import OfValues
from pyrannc.capture.exported import rows as of_rows
from pyrannc.capture.exported.exporting import CHECKED, PYTHON_CALL
from pyrannc.errors import TraceError
from pyrannc.operators import Trait

# The numbers by which operators know dtypes, memory formats and layouts.
_DTYPES = {
    torch.uint8: (0, "uint8"), torch.int8: (1, "int8"), torch.int16: (2, "int16"),
    torch.int32: (3, "int32"), torch.int64: (4, "int64"), torch.float16: (5, "float16"),
    torch.float32: (6, "float32"), torch.float64: (7, "float64"),
    torch.complex64: (9, "complex64"), torch.complex128: (10, "complex128"),
    torch.bool: (11, "boolean"), torch.bfloat16: (15, "bfloat16"),
}  # fmt: skip
_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2,
    torch.channels_last_3d: 3,
}  # fmt: skip
# Operators that check what the trace already knows.
_CHECKS = re.compile(r"aten\._assert|aten\.sym_constrain|_check|_functional_sym_constrain")
_NORMALISATIONS = operators.in_graphs(operators.of(Trait.statistics))
# What torch.tensor() does beside making a constant.
_OF_NEW_CONSTANTS = (
    "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.detach_.default",
)  # fmt: skip
_OPERATOR = type(torch.ops.aten.add.Tensor)
_FILL = torch.ops.aten.fill_.Tensor
_SQUEEZES = ("aten::squeeze", "aten::squeeze_")
# Of what these give nothing flows back.
_WITHOUT_GRADIENT = operators.in_graphs(operators.of(Trait.factory) | {"detach", "detach_"})
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
# Numbers of rows at which sizes are looked at.
_SAMPLED_ROWS = (3, 5, 7)


class Value(int):
    """The number of a tensor in the graph."""


class Affine(tuple):
    """An integer that depends on the rows: ``(fixed, per_row)``."""


class Writer:
    """Writes down one exported program.

    Args:
        name: Of the graph.
        own_paths: Lines of files below these are not the user's.
        cloned: Names of constants that the model writes, of which each run needs a copy.
        attributes: Names of constants that are attributes of the model.
        autocast: :class:`~pyrannc.capture.exported.autocast.Autocast`.

    Attributes:
        objects: Tensors that are constants, as the graph counts them.
        written_constants: Names of those that some operator writes.
    """

    def __init__(self, name, own_paths, cloned=(), attributes=(), autocast=None):
        self._name, self._own_paths, self._cloned = name, tuple(own_paths), set(cloned)
        self._attributes, self.autocast = frozenset(attributes), autocast
        self.objects, self.written_constants = [], set()
        self._entries, self._operators, self._inputs, self._outputs = [], [], [], []
        self._devices = set()  # types of those that tensors are on
        self._first = {}  # storage -> the value that has it first
        self._members = collections.defaultdict(list)  # by the first value of a storage
        self._taken, self._repeats, self._counts = (
            set(),
            collections.Counter(),
            collections.Counter(),
        )
        self.at = None  # node of torch.fx
        self.grad_enabled = torch.is_grad_enabled()

    # -- what a graph begins with -----------------------------------------------------------------

    def reserve(self, names) -> None:
        """No other value gets one of these names."""
        self._taken.update(names)

    def add_input(self, name, tensor, dim) -> Value:
        entry = self._entry(self._unique(name), "input", tensor)
        if dim is not None:
            rows = {"kind": "apart", "dim": dim, "outer": 1, "inner": 1, "proved": True}
            entry["rows"] = rows
        if tensor.requires_grad:
            entry["requires_grad"] = True
        value = self._add(entry, tensor)
        self._inputs.append(value)
        return value

    def add_state(self, names, tensor, kind) -> Value:
        entry = self._entry(names[0], kind, tensor)
        if names[1:]:
            entry["aliases"] = names[1:]
        if tensor.requires_grad:
            entry["requires_grad"] = True
        return self._add(entry, tensor)

    def add_constant(self, name, tensor) -> Value:
        entry = self._entry(self._unique(name), "constant", tensor)
        entry["object"] = len(self.objects)
        self.objects.append(tensor)
        value = self._add(entry, tensor)
        if name not in self._cloned:
            return value
        copied = self._new_operator("aten::clone", [{"value": value}, None])
        made = self._add(
            self._entry(self._unique(copied["name"]), "result", tensor), tensor.clone()
        )
        copied["outputs"] = [made]
        return made

    def finish(self, outputs) -> dict:
        """The graph, as it is in JSON."""
        for value in outputs:
            if not isinstance(value, Value):
                raise TraceError(f"the model returns {value!r}, which is no tensor")
        self._mark_host()
        return {
            "format": "rannc-graph",
            "version": 1,
            "name": self._name,
            "inputs": self._inputs,
            "outputs": list(outputs),
            "values": self._entries,
            "nodes": self._operators,
        }

    def _mark_host(self) -> None:
        """Where some tensor is on an accelerator, the model is, and what is on the CPU is there on
        purpose. Else "cpu" means the device of the model."""
        on_accelerator = self._devices - {"cpu", "meta"}
        for entry in self._entries:
            if entry.pop("device") == "cpu" and on_accelerator:
                entry["host"] = True
        if on_accelerator:
            for operator in self._operators:
                operator["inputs"] = [
                    {"device": "host"} if each == {"device": "cpu"} else each
                    for each in operator["inputs"]
                ]

    # -- one operator -----------------------------------------------------------------------------

    def call(self, target, args, kwargs, result):
        """Adds a call of an operator; ``result``: what it returned, fake tensors. Returns that with
        values in place of tensors."""
        schema = target._schema
        given = [
            args[index] if index < len(args) else kwargs.get(each.name, each.default_value)
            for index, each in enumerate(schema.arguments)
        ]
        op = schema.name if not schema.overload_name else f"{schema.name}.{schema.overload_name}"
        written = self._written(schema, given)
        if schema.name in _SQUEEZES:
            op, inputs = self._squeezed(schema.name, given)
        else:
            inputs = [
                # torch.export turns cuDNN off while it traces.
                each.name.startswith("cudnn_enable") or self._argument(value, str(each.type))
                for value, each in zip(given, schema.arguments, strict=True)
            ]
        made = self._new_operator(op, inputs)
        if written:
            made["writes"] = written
        return self._finished(made, schema.name, given, written, result)

    def call_python(self, name, call, tensors, results):
        """Adds a call of a function of Python.

        Args:
            name: Of the operator.
            call: ``PythonCall``.
            tensors: Values that it is given.
            results: FakeTensors that it returned.
        """
        made = self._new_operator(name, [{"value": each} for each in tensors])
        made |= {"kind": "python", "object": len(self.objects)}
        self.objects.append(call)
        self._operators[-1] = made
        return self._finished(made, name, tensors, [], results)

    def _finished(self, made, name, given, written, result):
        """The node ``made`` has its outputs; returns ``result`` with values in place of tensors."""
        flat = _flat(result)
        learns = self.grad_enabled and name not in _WITHOUT_GRADIENT
        learns = learns and any(self._entries[each].get("requires_grad") for each in _values(given))
        found = []
        for index, each in enumerate(flat):
            if not isinstance(each, torch.Tensor):  # it takes a place
                found.append(None)
                continue
            unique = made["name"] if len(flat) == 1 else f"{made['name']}:{index}"
            entry = self._entry(self._unique(unique), "result", each)
            if learns and (each.is_floating_point() or each.is_complex()):
                entry["requires_grad"] = True
            found.append(self._add(entry, each))
        made["outputs"] = found
        for value in written:
            self._note_write(value, learns)
        return _like(result, iter(found))

    def cast(self, dtype, args, kwargs) -> tuple:
        """``args, kwargs`` of an operator with their tensors as autocast hands them to it."""
        # C++ computes arguments from the last to the first, and names of nodes count.
        kwargs = {name: self._cast(kwargs[name], dtype) for name in reversed(kwargs)}
        return [self._cast(each, dtype) for each in reversed(args)][::-1], kwargs

    def _cast(self, value, dtype):
        if isinstance(value, list | tuple) and not isinstance(value, Affine):
            return [self._cast(each, dtype) for each in value]
        if not isinstance(value, Value):
            return value
        entry = self._entries[value]
        now = next(each for each, (_, name) in _DTYPES.items() if name == entry["dtype"])

        def make():
            inputs = [{"value": value}, _DTYPES[dtype][0], False, False, None]
            node = self._new_operator("aten::to.dtype", inputs)
            made = {"name": self._unique(node["name"]), "kind": "result", "dims": entry["dims"]}
            made |= {"dtype": _DTYPES[dtype][1], "device": entry["device"]}
            if self.grad_enabled and entry.get("requires_grad"):
                made["requires_grad"] = True
            found = Value(len(self._entries))
            self._entries.append(made)
            self._members[found].append(found)
            node["outputs"] = [found]
            return found

        return self.autocast.cast(value, now, dtype, entry["kind"] == "parameter", make)

    def affine(self, number):
        """An int, or an Affine where it depends on the rows."""
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return number
        expression = number.node.expr
        if of_rows.is_of_values(expression):
            raise OfValues(
                f"{self.place()}: the values of a tensor decide how large a result is.\n  A "
                "captured model cannot depend on them: use torch.where, or masking."
            )
        seen = [float(of_rows.at(expression, rows)) for rows in _SAMPLED_ROWS]
        if all(each.is_integer() for each in seen):
            first, second, _ = map(int, seen)
            per_row = (second - first) // (_SAMPLED_ROWS[1] - _SAMPLED_ROWS[0])
            fixed = first - per_row * _SAMPLED_ROWS[0]
            if seen == [fixed + per_row * rows for rows in _SAMPLED_ROWS]:
                return Affine((fixed, per_row)) if per_row else fixed
        at = " at ".join(", ".join(f"{n:g}" for n in each) for each in (seen, _SAMPLED_ROWS))
        at += " rows"
        if isinstance(number, torch.SymFloat):
            raise TraceError(
                f"{self.place()}: a Python float depends on the batch size: {at}.\n  Compute with "
                "the integer size on tensors instead: `x / x.size(0)` rather than "
                "`x * (1.0 / x.size(0))`."
            )
        raise TraceError(
            f"{self.place()}: a number is {at}, which is not of the form a + b * rows.\n  Sizes "
            "may only grow linearly with the batch."
        )

    def place(self) -> str:
        """Where in the model the operator at hand was called, for errors."""
        module, source = self._module(), self._source()
        where = f"'{module}'" if module else "the model"
        return f"{where} ({source['file']}:{source['line']})" if source else where

    # -- parts ------------------------------------------------------------------------------------

    def _unique(self, name):
        candidate = name
        while candidate in self._taken:
            self._repeats[name] += 1
            candidate = f"{name}_{self._repeats[name]}"
        self._taken.add(candidate)
        return candidate

    def _entry(self, name, kind, tensor):
        if tensor.dtype not in _DTYPES:
            raise TraceError(f"{self.place()}: a tensor of dtype {tensor.dtype} in a graph")
        dims = [self.affine(size) for size in tensor.shape]
        dtype, device = _DTYPES[tensor.dtype][1], tensor.device.type
        self._devices.add(device)
        return {"name": name, "kind": kind, "dtype": dtype, "dims": dims, "device": device}

    def _add(self, entry, tensor) -> Value:
        value = Value(len(self._entries))
        first = self._first.setdefault(_storage(tensor), value)
        if first != value:
            entry["storage"] = first
        self._members[first].append(value)
        self._entries.append(entry)
        return value

    def _new_operator(self, op, inputs):
        module = self._module()
        short = op.split("::")[-1].split(".")[0]
        # The planner's files have no colon in a name; a key of an nn.ModuleDict may have one.
        path = (f"{module}.{short}" if module else short).replace(":", "_")
        count, self._counts[path] = self._counts[path], self._counts[path] + 1
        made = {"name": f"{path}_{count}" if count else path, "op": op, "inputs": inputs}
        made["outputs"] = []
        if like := _C.frontend.same_operator(op):
            made["like"] = like
        if not self.grad_enabled:
            made["grad_enabled"] = False
        if module:
            made["module"] = module
        if source := self._source():
            made["source"] = source
        self._operators.append(made)
        return made

    def _argument(self, value, kind):
        if isinstance(value, Value):
            return {"value": value}
        if isinstance(value, list | tuple) and not isinstance(value, Affine):
            return self._list(value, kind)
        if isinstance(value, torch.SymInt | torch.SymFloat):
            value = self.affine(value)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Affine):
            return list(value)
        if isinstance(value, float) or (isinstance(value, int) and "float" in kind):
            return {"float": repr(float(value))}
        if isinstance(value, int):
            return value
        if isinstance(value, torch.dtype):
            return _DTYPES[value][0]
        if isinstance(value, torch.memory_format):
            return _FORMATS[value]
        if isinstance(value, torch.layout) and value is torch.strided:
            return 0
        if isinstance(value, torch.device):
            return {"device": value.type}
        raise TraceError(
            f"{self.place()}: an argument of type {type(value).__name__} cannot be in a graph"
        )

    def _list(self, items, kind):
        if any(isinstance(each, Value) for each in items) or (not items and "Tensor" in kind):
            return {"values": list(items)}
        if items and all(isinstance(each, bool) for each in items):
            return {"bools": list(items)}
        if "float" in kind or any(isinstance(each, float) for each in items):
            return {"floats": [repr(float(each)) for each in items]}
        numbers = [self.affine(each) for each in items]
        return {"ints": [list(each) if isinstance(each, Affine) else each for each in numbers]}

    def _squeezed(self, name, given):
        """What a squeeze leaves out depends on sizes: here it is named."""
        value, *asked = given
        dims = self._entries[value]["dims"]
        wanted = range(len(dims)) if not asked else asked[0]
        wanted = [wanted] if isinstance(wanted, int) else wanted
        wanted = [each % len(dims) for each in wanted] if dims else []
        gone = [each for each in wanted if dims[each] == 1]
        return f"{name}.dims", [{"value": value}, {"ints": gone}]

    def _written(self, schema, given):
        pairs = list(zip(given, schema.arguments, strict=True))
        # Which schemas do not say.
        of_batch = schema.name in _NORMALISATIONS and any(
            value for value, each in pairs if each.name in ("training", "use_input_stats")
        )
        return _values(
            [
                value
                for value, each in pairs
                if (each.alias_info is not None and each.alias_info.is_write)
                or (of_batch and each.name in ("running_mean", "running_var"))
            ]
        )

    def _note_write(self, value, learns):
        first = self._entries[value].get("storage", value)
        if self._entries[first]["kind"] == "constant":
            name = self._entries[first]["name"]
            if name in self._attributes:
                raise TraceError(
                    f"{self.place()}: writes to the tensor attribute '{name}' in place; register "
                    "it with register_buffer()"
                )
            self.written_constants.add(name)
        # What was made without a gradient has one once something that has is written into it.
        for each in self._members[first] if learns else ():
            entry = self._entries[each]
            if entry["kind"] == "result" and entry["dtype"].startswith(("float", "bfloat", "comp")):
                entry["requires_grad"] = True

    def _module(self):
        stack = self.at.meta.get("nn_module_stack") if self.at is not None else None
        if not stack:
            return ""
        path, _ = list(stack.values())[-1]
        return re.sub(r"@\d+", "", path).removeprefix("model").removeprefix(".")

    def _source(self):
        trace = self.at.meta.get("stack_trace") if self.at is not None else None
        for file, line in reversed(_FRAME.findall(trace or "")):
            if not file.startswith((*self._own_paths, "<")):
                return {"file": file, "line": int(line)}
        return None


def is_written_number(node) -> bool:
    """Whether a constant is the number of ``x[i] = 0.5`` alone, which torch up to 2.14 records as a
    tensor made of it."""
    return node.meta["val"].dim() == 0 and all(
        (user.target is _FILL and user.args[0] is not node)
        or (str(user.target) in _OF_NEW_CONSTANTS and is_written_number(user))
        for user in node.users
    )


class Walk(Interpreter):
    """Goes through a graph of torch.fx with :class:`Value` in place of tensors."""

    def __init__(self, module, writer, python_calls):
        super().__init__(module, garbage_collect_values=False)
        self._writer, self._python_calls = writer, python_calls
        self.extra_traceback = False  # errors say module and source line themselves

    def run_node(self, n):
        self._writer.at = n
        return super().run_node(n)

    def get_attr(self, target, args, kwargs):
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.Tensor):
            return self._writer.add_constant(target, found)
        return found

    def call_function(self, target, args, kwargs):
        writer, result = self._writer, self._writer.at.meta.get("val")
        name = str(target)
        if isinstance(result, torch.SymInt | torch.SymFloat | int | float | bool):
            return result  # what takes it asks what it is
        if isinstance(result, torch.SymBool):
            return None  # of a check
        if _CHECKS.search(name):
            return None
        if target is operator.getitem:
            return args[0][args[1]]
        if target is PYTHON_CALL:
            name, call = self._python_calls[args[0]]
            return writer.call_python(name, call, args[1], result)
        if target is CHECKED:
            looked_at = writer.at.args[1][0]
            (name, call), seen = self._python_calls[args[0]], [looked_at.meta["val"]]
            (self.env[looked_at],) = writer.call_python(name, call, args[1], seen)
            return None
        if not isinstance(target, _OPERATOR):
            if hasattr(target, "name"):  # takes a graph
                return self._inside(target, args)
            raise TraceError(f"{writer.place()}: torch.export recorded a call of {name}")
        if name in _OF_NEW_CONSTANTS:
            return args[0]
        if target is _FILL and not isinstance(args[1], Value):
            target = torch.ops.aten.fill_.Scalar
        dtype = writer.autocast.dtype(target, result)
        if dtype is None:
            writer.autocast.refuse_within(target, writer.at, result, writer.place())
        else:
            args, kwargs = writer.cast(dtype, args, kwargs)
        return writer.call(target, args, kwargs, result)

    def _inside(self, target, args):
        """What runs in another grad mode, or under another autocast."""
        writer, name = self._writer, target.name()
        if name == "wrap_with_set_grad_enabled":
            enabled, module, *operands = args
            before, writer.grad_enabled = writer.grad_enabled, enabled
            try:
                return Walk(module, writer, self._python_calls).run(*operands)
            finally:
                writer.grad_enabled = before
        if name == "wrap_with_autocast":
            device, _, enabled, _, module, *operands = args
            with writer.autocast.region(device, enabled):
                return Walk(module, writer, self._python_calls).run(*operands)
        raise TraceError(
            f"{writer.place()}: torch.export recorded '{name}', which a graph cannot hold"
        )


def read(written: dict):
    """``_C.ir.Graph`` of what a Writer has finished."""
    return _C.ir.Graph.from_json(json.dumps(written))


def made(written: dict):
    """``_C.ir.Graph`` of what a Writer has finished, without what nothing depends on."""
    graph = _C.ir.infer_rows(_C.ir.drop_dead_nodes(read(written)))
    _C.ir.verify(graph)
    return graph


def _values(given) -> list:
    flat = [each for item in given for each in (item if isinstance(item, list | tuple) else [item])]
    return [each for each in flat if isinstance(each, Value)]


def _flat(result) -> list:
    if isinstance(result, list | tuple):
        return [each for item in result for each in _flat(item)]
    return [result]


def _like(result, found):
    """``found`` in the places of what ``result`` holds."""
    if isinstance(result, list | tuple):
        return [_like(each, found) for each in result]
    return next(found)


def _storage(tensor):
    return tensor.untyped_storage()._cdata
