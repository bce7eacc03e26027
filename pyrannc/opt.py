"""The module of this name of RaNNC 0.7, whose functions say what takes their place."""

from pyrannc.original import names


def __getattr__(name):
    if name in names.OPT:
        return names.answer(names.OPT, name, "pyrannc.opt.")
    raise AttributeError(f"module 'pyrannc.opt' has no attribute '{name}'")


def __dir__():
    return sorted(names.OPT)
