"""Hooks on what autograd saves, as ``torch.utils.checkpoint`` and ``save_on_cpu`` set them around a
call of a wrapped model."""

import functools

from pyrannc.capture import torch_private


def without_hooks(method):
    """Hides them: a call is one node of autograd, which saves nothing by them, and the plan says
    what is computed again. What is measured and checked in the first call is not to be either."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        hidden = []
        while hooks := torch_private.top_hooks_on_saved(False):
            hidden.append(hooks)
            torch_private.pop_hooks_on_saved()
        try:
            return method(self, *args, **kwargs)
        finally:
            for hooks in reversed(hidden):
                torch_private.push_hooks_on_saved(*hooks)

    return call
