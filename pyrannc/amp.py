"""The module of this name of RaNNC 0.7, whose functions say what takes their place."""

from pyrannc.original import names


def __getattr__(name):
    if name in names.AMP:
        return names.answer(names.AMP, name, "pyrannc.amp.")
    raise AttributeError(f"module 'pyrannc.amp' has no attribute '{name}'")


def __dir__():
    return sorted(names.AMP)
