"""What a rank tells the others of its capture, so that they recognise it in theirs."""

import dataclasses
import hashlib
import json
import re

import torch

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.torch_patches import PythonCall

#: A constant of so many numbers is described by them, a larger one by their hash.
#: tuned by: what fits a line of an error.
#: without it: errors about other constants would show hashes where a reader needs the numbers.
_MOST_NUMBERS = 8
# "# model.py:12:3" behind a line of TorchScript, which is another one where torch is elsewhere.
_PLACE = re.compile(r" # \S+:\d+:\d+$", re.MULTILINE)
# In what Python shows of an object that says nothing else of itself.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Reference:
    """A captured graph, and what it refers to by number, in words that mean the same on every rank.

    Attributes:
        graph: The whole ``_C.ir.Graph``.
        inputs: Where each of its inputs stands in a call.
        outputs: Where each of its outputs stands in what the model returns.
        objects: What each of the capture's objects is.
        made_dense: Operator, module and source line of nodes of which the model asks for a sparse
            gradient.
    """

    graph: object
    inputs: list[str]
    outputs: list[str]
    objects: list[str]
    made_dense: list[list[str]]

    def fingerprint(self) -> str:
        """Equal where graphs are, node by node and name by name, and refer to the same."""
        words = [self.graph.fingerprint(), self.inputs, self.outputs, self.objects]
        return _hash(json.dumps(words).encode())

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self) | {"graph": self.graph.to_json()}).encode()

    @classmethod
    def from_bytes(cls, content) -> "Reference":
        members = json.loads(content)
        return cls(**members | {"graph": _C.ir.Graph.from_json(members["graph"])})

    def match(self, own: "Reference", keyed_draws: bool):
        """How another rank's capture (``own``) appears in this one: ``_C.ir.Match``.

        Args:
            keyed_draws: Random numbers do not depend on the order in which they are drawn.
        """
        return _C.ir.match(self._named(), own._named(), keyed_draws)

    def _named(self):
        return _C.ir.NamedGraph(self.graph, self.inputs, self.outputs, self.objects)


def describe(item) -> str:
    """What an object of a capture is, in words: equal on all ranks for the same object.

    Tensors are told by dtype, shape and content, scripted functions by name and code, calls of
    autograd functions by the class and what it is given, as Python shows it but for addresses.
    """
    if isinstance(item, torch.Tensor):
        return _describe_tensor(item)
    if isinstance(item, PythonCall):
        return f"{_describe(item.function)} of {_describe(item.arguments)}"
    code = _PLACE.sub("", item.inlined_graph.str(False))
    return f"scripted {item.name} {_hash(code.encode())}{_script_constants(item)}"


def _describe_tensor(tensor) -> str:
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    with torch.no_grad():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel() <= _MOST_NUMBERS:
        return f"{kind} of {plain.tolist()}"
    return f"{kind} with hash {_hash(plain.reshape(-1).view(torch.uint8).numpy())}"


def _script_constants(function) -> str:
    """Tensors that a traced function holds, of which its code shows a few digits or nothing."""
    graph = function.inlined_graph  # keeps its nodes alive
    tensors = [
        node.t("value")
        for node in graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    ]
    return "".join(f", {_describe_tensor(tensor)}" for tensor in tensors)


def _describe(value) -> str:
    if isinstance(value, pytree.Tensor):
        return f"tensor {value.index}"
    if isinstance(value, pytree.Constant):
        return _describe(value.value)
    if isinstance(value, pytree.Container):
        children = zip(map(_describe, value.keys), map(_describe, value.children), strict=True)
        return f"{_describe(value.type)}({', '.join(f'{key}: {text}' for key, text in children)})"
    if isinstance(value, (set, frozenset)):  # in an order of each process
        return f"{type(value).__name__}({', '.join(sorted(map(_describe, value)))})"
    return _ADDRESS.sub("0x", repr(value))


def _hash(content) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
