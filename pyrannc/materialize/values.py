"""Where the values of a model come from that was built without them, and the rank's own part."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from pyrannc import log, progress
from pyrannc.errors import ConfigError, RaNNCError, TraceError
from pyrannc.materialize.initialised import Initialisers
from pyrannc.ranks import gathered, of_rank, on_all
from pyrannc.state import checkpoint, moving, named_tensors
from pyrannc.stored import differences, folder, hugging_face, inside


class Weights:
    """What ``RaNNCModule(weights=...)`` reads, said in full.

    Args:
        path: A file of safetensors, a folder in Hugging Face's layout, or one of
            :func:`pyrannc.save`; of the model, or of the one that it has inside.
        strict: With False, tensors of the model that are not there are made as the modules
            initialise them, and what the model does not have is left alone; both are said.
    """

    def __init__(self, path, strict=True):
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"weights={path!r} is no path.\n  Give that of a file of safetensors, of a folder "
                "in Hugging Face's layout, or of one of pyrannc.save(); or pyrannc.Weights(path)."
            )
        self.path, self.strict = Path(path), strict


@dataclasses.dataclass
class Wanted:
    """What the first call of a wrapper gives its model.

    Attributes:
        weights: :class:`Weights`, or None; a path will do.
        then: What is called once each rank holds its part, or None.
        loaded: Names of tensors that were loaded since these were given: they stay as they are.
    """

    weights: object = None
    then: object = None
    loaded: set = dataclasses.field(default_factory=set)

    def __post_init__(self):
        if self.weights is not None and not isinstance(self.weights, Weights):
            self.weights = Weights(self.weights)


def without_values(model: nn.Module) -> list[str]:
    """The names of the tensors that are on the meta device."""
    return [name for name, tensor in named_tensors.tensors(model).items() if tensor.is_meta]


def refuse_constants(model, objects) -> None:
    """Raises TraceError where one of ``objects``, the constants of a graph, has no values."""
    lacking = {id(each) for each in objects if isinstance(each, torch.Tensor) and each.is_meta}
    if not lacking:
        return
    names = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if id(value) in lacking
    ]
    raise TraceError(
        "forward() uses a tensor without values that is neither a parameter nor a buffer: "
        f"{names[0] if names else 'it is made on the meta device'}.\n  Register it as a buffer, "
        "which a reset_parameters() of its module computes, or build the model outside of "
        "torch.device('meta')."
    )


def refuse_loading(model: nn.Module, given: dict, assign: bool) -> None:
    """Raises RaNNCError where torch's load_state_dict() would change nothing, and say it in a
    warning alone: without values there, or in what is ``given``."""
    if not isinstance(given, Mapping):  # torch says what it has to be
        return
    names = without_values(model)
    lost = [name for name, value in given.items() if torch.is_tensor(value) and value.is_meta]
    if not given or not (lost or (names and not assign)):
        return
    where = f"'{lost[0]}' of the state_dict" if lost else f"'{names[0]}' of the model"
    raise RaNNCError(
        f"load_state_dict(): {where} is on the meta device, without values, and nothing can be "
        "loaded.\n  Use RaNNCModule(weights=...), or pyrannc.load(), which each read a rank's part "
        "in the first call; or load after that call."
    )


def of(model, wanted, world, seed=None):
    """:class:`Values` of a model some of whose tensors have none, or for which there are weights;
    None for others. Collective.

    Args:
        wanted: :class:`Wanted`.
        seed: From which values are initialised; by default rank 0's of torch.

    Raises:
        ConfigError: The ranks have other tensors without values, or other weights.
        RaNNCError: Something sets no value, or the weights are not those of the model; on every
            rank.
    """
    weights = wanted.weights
    names = without_values(model)
    loaded = sorted(wanted.loaded) if weights is not None else []
    said = [names, None if weights is None else [str(weights.path), weights.strict], loaded]
    mine = f"{hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()} {len(names)}"
    ranks = gathered(world, mine)
    if len(set(ranks)) > 1:
        raise ConfigError(
            "the ranks have built different models, or read or loaded different weights: "
            + "; ".join(
                f"on rank {rank} {text.split()[1]} tensors have no values"
                for rank, text in enumerate(ranks)
            )
            + ".\n  Build the model in the same way, and give the same weights, on every rank."
        )
    if not names and weights is None:
        return None
    if seed is None:
        seed = of_rank(0, world, torch.initial_seed())
    made = []
    on_all(world, lambda: made.append(Values(model, weights, seed, wanted.then, loaded)))
    if world.rank == 0:
        made[0].tell()
    return made[0]


def of_copy(model, wanted, leaders, world):
    """The same for the model of a copy that follows another wrapper; ``leaders``: of that one. What
    the copy was given itself, or has loaded, comes first. Collective."""
    weights, seed = wanted.weights, None
    if leaders is not None:
        seed = leaders.seed
        if weights is None and without_values(model):
            weights = leaders.weights
    return of(model, dataclasses.replace(wanted, weights=weights), world, seed)


class Values:
    """Of each tensor of ``model`` that has none, or for which there are weights, how it gets some.

    Attributes:
        bytes_read: Of the weights, on this rank.
        then: What is to be called once each rank holds its part, or None.

    Args:
        loaded: Names of tensors that keep their values, whatever the weights have.
    """

    def __init__(self, model, weights, seed, then=None, loaded=()):
        self._model, self.weights, self.seed, self.then = model, weights, seed, then
        self._held = named_tensors.tensors(model)
        self.missing = without_values(model)
        self._refuse_views()
        self._stored = None if weights is None else folder.opened(weights.path)
        self._source_of = {}  # by name of a tensor
        self._left_out, self._initialised, self._adapters = [], [], frozenset()
        if weights is not None:
            self._find_sources(loaded)
        self._initialisers = None
        self._find_initialisers()

    @property
    def bytes_read(self) -> int:
        return self._stored.bytes_read if self._stored else 0

    def tell(self) -> None:
        """What is not in the weights, in one line."""
        if self.weights is None or self.weights.strict:
            return
        for names, what in (
            (self._initialised, "are initialised, as they are not in it"),
            (self._left_out, "of it are not in the model"),
        ):
            if names:
                said = f"{len(names)} tensors {what}: {differences.listed(names)}"
                log.warn("deploy", f"{self.weights.path}: {said}")

    @torch.no_grad()
    def give(self, names, given=lambda tensor: None) -> None:
        """Gives the tensors ``names`` of the model, which this rank holds, their values; calls
        ``given(tensor)`` for each before the next one comes."""
        with progress.part("giving tensors their values"):
            self._give(names, given)

    def _give(self, names, given):
        done = set()
        wanted = set(names)
        sources = {id(each): each for each in self._source_of.values()}
        for count, source in enumerate(sources.values()):
            progress.advance(count, len(sources))
            mine = [name for name in source.names if name in wanted and name in self._source_of]
            if not mine:
                continue
            if source.convert is None:
                made = {source.names[0]: self._stored.tensor(source.keys[0])}
            else:
                made = source.convert(self._stored.tensor)
            for name in mine:
                if id(self._held[name]) not in done:  # of tied names one counts
                    done.add(id(self._held[name]))
                    self._put(name, made[name])
                    given(self._held[name])
        if self._initialisers is None:
            return
        with self._initialisers.at_work() as make:
            for name in self._initialised:
                tensor = self._held[name]
                if name in wanted and id(tensor) not in done:
                    done.add(id(tensor))
                    _take(tensor, make(name, tensor, self.seed))
                    given(tensor)

    def _put(self, name, value):
        tensor = self._held[name]
        if list(value.shape) != list(tensor.shape):
            raise RaNNCError(self._misshapen(name, list(value.shape)))
        if tensor.is_meta:
            _take(tensor, torch.empty_like(tensor, device="cpu", requires_grad=False))
        named_tensors.write(tensor.detach(), value)

    def _refuse_views(self):
        first = {}
        for name in self.missing:
            tensor = self._held[name]
            other = first.setdefault(tensor.untyped_storage()._cdata, name)
            if self._held[other] is not tensor:
                raise RaNNCError(
                    f"'{other}' and '{name}' are two tensors without values that share memory.\n  "
                    "Tie parameters by making them one: b.weight = a.weight."
                )

    def _find_sources(self, loaded):
        """By which keys of the files each persistent tensor comes."""
        strict, keys = self.weights.strict, list(self._stored.shapes)
        persistent = checkpoint.persistent(self._model)
        found = inside.find(self._model, persistent, keys)
        self._adapters = found.adapters
        names_of = {}
        for name, tensor in self._held.items():
            names_of.setdefault(id(tensor), []).append(name)
        for source in found.sources(keys):
            known = [name for name in source.names if name in self._held]
            if not known:
                self._left_out += source.names
            for name in known:
                tensor = self._held[name]
                if source.convert is None:
                    self._check(name, tensor, source.keys[0])
                for each in names_of[id(tensor)]:
                    self._source_of.setdefault(each, source)
                self._source_of[name] = source
        lost = [
            name
            for name in persistent
            if name not in self._source_of and name not in self._adapters
        ]
        extra = [n for n in self._left_out if not hugging_face.may_be_left_out(found.module, n)]
        self._left_out = extra
        lines = differences.lines(lost, len(persistent), extra, len(self._stored.shapes))
        nothing = bool(lost) and len(lost) == len(persistent)
        if nothing or (strict and lines):
            advice = (
                "  Build the model that was saved, tie what is tied (model.tie_weights()), or give "
                "pyrannc.Weights(path, strict=False), which initialises what is missing."
            )
            lines = [f"{self.weights.path} has not the weights of this model:", *lines]
            raise RaNNCError("\n".join([*lines, differences.OTHER_NAMES if nothing else advice]))
        # Of tied names that one counts which the files have.
        stay = {id(self._held[name]) for name in loaded if name in self._held}
        self._source_of = {
            name: source
            for name, source in self._source_of.items()
            if name in source.names and id(self._held[name]) not in stay
        }

    def _check(self, name, tensor, key):
        if list(tensor.shape) != self._stored.shapes[key]:
            raise RaNNCError(self._misshapen(name, self._stored.shapes[key]))
        if tensor.is_floating_point() != self._stored.is_floating[key]:
            kinds = ["whole", "floating"]
            raise RaNNCError(
                f"'{name}' has {kinds[tensor.is_floating_point()]} numbers in the model and "
                f"{kinds[self._stored.is_floating[key]]} ones in {self.weights.path}.\n  "
                "Quantised weights cannot be trained: load those that they were made of."
            )

    def _misshapen(self, name, shape):
        return (
            f"'{name}' is {list(self._held[name].shape)} in the model and {shape} in "
            f"{self.weights.path}.\n  Build the model with the sizes that it was saved with."
        )

    def _find_initialisers(self):
        given = {id(self._held[name]) for name in self._source_of}
        left = [name for name in self.missing if id(self._held[name]) not in given]
        if not left:
            return
        self._initialisers = Initialisers(self._model)
        self._initialised = [name for name in left if self._initialisers.can_make(name)]
        made = {id(self._held[name]) for name in self._initialised}
        for name in left:
            if id(self._held[name]) not in made:
                is_adapters = name in self._adapters
                raise RaNNCError(_nothing_sets(name, self._held[name], self.weights, is_adapters))


def _take(tensor, value):
    hooks, later = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    moving.take_memory(tensor, value)
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks, later


def _nothing_sets(name, tensor, weights, is_adapters):
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
    where = f", and {weights.path} has none of this name" if weights else ""
    if is_adapters:
        where = ""
        advice = (
            "It belongs to an adapter, which PEFT makes from the values of the layer that it is "
            "in, or in a way that is not known here: build the model with values, or take LoRA "
            "without use_dora, or IA3"
        )
    elif kind == "buffer":
        advice = (
            "Let the module that holds it compute it in a reset_parameters(), or build the model "
            "in pyrannc.DistributeModelParams() or accelerate's init_empty_weights(), where "
            "buffers have values"
        )
    else:
        advice = (
            "Give RaNNCModule(weights=...) a folder or file that has it, or the module that holds "
            "it a reset_parameters() that sets it"
        )
    return (
        f"nothing gives the {kind} '{name}' {list(tensor.shape)} a value: the model was built on "
        f"the meta device, and neither reset_parameters() of its modules nor an _init_weights() of "
        f"the model sets it{where}.\n  {advice}."
    )
