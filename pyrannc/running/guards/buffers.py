"""Guard of buffers that forward() reads as numbers of Python: ``int(self.queue_ptr)``."""

from pyrannc.ranks import gathered
from pyrannc.running.guards.guard import Guard
from pyrannc.state import named_tensors
from pyrannc.state.released import is_released


class Buffers(Guard):
    """What they hold, as lists, by name. Ranks that hold a buffer tell the others in each call."""

    name = "buffers"

    def __init__(self, deployment):
        self._deployment = deployment
        self._names = []  # of all captures

    def now(self, call):
        """Collective where there are such buffers, which are the same on all ranks."""
        if not self._names:
            return {}
        world, tensors = self._deployment.world, named_tensors.tensors(self._deployment.model)
        mine = {n: tensors[n].tolist() for n in self._names if not is_released(tensors[n])}
        found = {}
        for each in reversed(gathered(world, mine)):
            found |= each
        for name in self._names:
            if is_released(tensors[name]):
                tensors[name].place_elsewhere.known_numbers = found[name]
        return found

    def captured(self, capture, now):
        self._names = sorted({*self._names, *capture.buffers_read})
        return capture.buffers_read

    @staticmethod
    def same(then, now):
        return all(now.get(name) == value for name, value in then.items())

    def difference(self, then, now):
        changed = [name for name in now if then.get(name, now[name]) != now[name]]
        return f"with {now[changed[0]]} in '{changed[0]}'" if changed else ""
