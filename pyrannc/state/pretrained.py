"""Methods of the model that write it as a whole: save_pretrained() of Hugging Face, and PEFT's."""

import functools

from pyrannc.state import summon

#: Methods that need the whole model, and are called by every rank through the wrapper.
_WRITERS = ("save_pretrained", "push_to_hub")


def for_all_ranks(module, name: str, found):
    """What ``module.name`` is, of a RaNNCModule, where its model has ``found``.

    A method that writes the model runs on rank 0, with the whole model there. Every rank calls it,
    and it returns on the others when rank 0 is done; arguments of the others do not count.
    """
    if name not in _WRITERS or module._deployment is None or not callable(found):
        return found

    @functools.wraps(found)
    def write(*args, **kwargs):
        return summon.on_rank_0(module, f"{name}()", lambda: found(*args, **kwargs))

    return write
