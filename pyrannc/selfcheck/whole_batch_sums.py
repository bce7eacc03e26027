"""What a graph has to know of the whole batch first: the sums and means that its preludes give."""

import torch

from pyrannc import _C
from pyrannc.selfcheck import row_parts


def add(capture, parts, sizes, state, device="cpu") -> None:
    """Appends to the arguments of each part of a batch the numbers of all parts together.

    Args:
        capture: Whose ``graph`` is to run on the parts.
        parts: Lists of tensors, each a call's arguments; the numbers are appended.
        sizes: Rows of each part.
        state: Buffers by name.
    """
    for prelude in capture.preludes:
        interpreter = _C.runtime.Interpreter(prelude, capture.objects, device)
        buffers = [state[name] for name in interpreter.state_names()]
        with torch.no_grad():
            found = [
                interpreter.run(list(part), buffers, size)
                for part, size in zip(parts, sizes, strict=True)
            ]
        for place, value in enumerate(prelude.outputs):
            results = [numbers[place] for numbers in found]
            whole = row_parts.join(results, sizes, prelude.values[value].rows)
            for part in parts:
                part.append(whole)
