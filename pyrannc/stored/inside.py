"""In which part of a model the tensors of files belong, and what they are called there.

Files of a pretrained model know nothing of what was built around it since: adapters in it, or a
module of which it is a part.
"""

import collections
import dataclasses

from torch import nn

from pyrannc.stored import adapters, hugging_face
from pyrannc.stored.hugging_face import Source


@dataclasses.dataclass
class Inside:
    """
    Attributes:
        module: The model that the files are of.
        names: Of its tensors, as it would call them: those of the model that has it inside. A copy
            that an adapter trains is another name of the same.
        held: Those tensors, by the names that it would call them.
        adapters: Names of what PEFT has put there, which the files of a model do not have.
    """

    module: nn.Module
    names: dict[str, list[str]]
    held: dict
    adapters: frozenset = frozenset()

    def sources(self, keys) -> list[Source]:
        """As :func:`pyrannc.stored.hugging_face.sources`, of names of the whole model."""
        found = []
        for source in hugging_face.sources(self.module, self.held, keys):
            found += self._renamed(source)
        return found

    def _renamed(self, source):
        places = {name: self.names.get(name, [name]) for name in source.names}
        for number in range(max(map(len, places.values()))):
            names = {name: each[min(number, len(each) - 1)] for name, each in places.items()}
            yield dataclasses.replace(
                source, names=tuple(names.values()), convert=_renaming(source.convert, names)
            )


def _renaming(convert, names):
    if convert is None:
        return None
    return lambda read: {names[name]: value for name, value in convert(read).items()}


def find(model: nn.Module, held, keys) -> Inside:
    """The part of ``model`` that files with ``keys`` are of: where they have names of its tensors,
    and of its adapters, it is the model; else the one pretrained model in it, or the part in which
    most of the keys are, if there is one such part.

    Args:
        held: The tensors of ``model`` by name.
    """
    without = adapters.names_without(model, held)
    own = frozenset(name for name, bare in without.items() if bare is None)
    if any(key in held for key in keys) and (not own or not own.isdisjoint(keys)):
        return Inside(model, {name: [name] for name in held}, dict(held))
    bare = {name: each for name, each in without.items() if each is not None}
    path = _path_inside(model, bare.values(), keys)
    begin = f"{path}." if path else ""
    names = collections.defaultdict(list)
    for name, each in bare.items():
        if each.startswith(begin):
            names[each.removeprefix(begin)].append(name)
    tensors = {each: held[first] for each, (first, *_) in names.items()}
    return Inside(model.get_submodule(path), dict(names), tensors, own)


def _path_inside(model, names, keys):
    pretrained = _outermost(model, hugging_face.is_pretrained)
    if len(pretrained) == 1:
        return pretrained[0]
    wanted, counts = set(keys), collections.Counter()
    for name in names:
        at = name.find(".")
        while at >= 0:
            if name[at + 1 :] in wanted:
                counts[name[:at]] += 1
            at = name.find(".", at + 1)
    (path, most), *others = [*counts.most_common(2), ("", 0)]
    return "" if others and others[0][1] == most else path


def _outermost(model, is_wanted):
    """Paths of the modules of which that is true, and none of which is in another one."""
    if is_wanted(model):
        return [""]
    return [
        f"{name}.{path}" if path else name
        for name, child in model.named_children()
        for path in _outermost(child, is_wanted)
    ]
