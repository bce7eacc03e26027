"""Items of models that have some, as nn.Sequential, nn.ModuleDict and classes made of them do."""

from pyrannc.capture import torch_private


class Items:
    """A wrapper of such a model. Python looks for these methods at the class alone, and a class
    that has them says of each of its objects that it can be gone through."""

    def __getitem__(self, key):
        return self.module[key]

    def __setitem__(self, key, value):
        self.module[key] = value

    def __delitem__(self, key):
        del self.module[key]

    def __len__(self):
        return len(self.module)

    def __iter__(self):
        return iter(self.module)

    def __contains__(self, key):
        return key in self.module

    def __bool__(self):
        return bool(self.module)

    def _get_name(self):
        return "RaNNCModule"


def are_in(model) -> bool:
    return hasattr(type(torch_private.not_compiled(model)), "__getitem__")
