"""What each rank tells the others of a call, beside the number of its rows, and how they differ."""

import dataclasses
import json

from pyrannc.errors import RaNNCError
from pyrannc.job.by_rank import by_rank
from pyrannc.ranks import gathered
from pyrannc.running.alike.loss_scales import fingerprint, first_difference
from pyrannc.running.alike.whole_arguments import refuse_different

#: Where ranks call the same otherwise.
PAD_HINT = (
    " Where sequences differ in length, RaNNCModule(..., pad={'name of the argument': 0}) pads "
    "them to the longest of all ranks; outputs have that length, too, and pyrannc.padded(targets) "
    "gives it to targets of the loop."
)


@dataclasses.dataclass(frozen=True)
class Told:
    """Of one rank, in types of JSON.

    Attributes:
        model: Number of the RaNNCModule, in the order of their first calls.
        turn: What it is about to do: kind, passes that are kept, number of the call, and of the
            capture.
        steps: That its optimizers have taken.
        settings: Of them, as texts.
        scales: Of losses since the last call; see ``loss_scales``.
        whole: Of arguments without rows; see ``whole_arguments``.
        sizes: Of arguments that are padded; ranks may differ in them.
        peers: The ranks that share a parameter with this one; only where something differs.
        text: What it is about to do, in words; likewise.
    """

    model: int
    turn: list
    steps: int
    settings: list
    scales: dict
    whole: dict
    sizes: object = None
    peers: list = ()
    text: str = ""
    is_between: bool = False  # two things that ranks do together; of one rank a step may be there

    def fingerprint(self) -> int:
        kind = self.turn[-1]
        if self.whole or self.sizes is not None:
            kind = [kind, self.whole, self.sizes]
        return fingerprint(kind, self.steps, self.settings, self.scales)

    def of_all(self, world, peers, text) -> list["Told"]:
        """What every rank tells, where their fingerprints differ. Collective.

        Raises:
            RaNNCError: They differ in more than the last bits of scales, or in scales that are of
                no matter, or in sizes.
        """
        mine = dataclasses.asdict(dataclasses.replace(self, peers=peers, text=text))
        everyone = [Told(**each) for each in gathered(world, mine)]
        if any(each.is_between for each in everyone):
            _refuse_other_steps(everyone)
        _refuse_other_turns(everyone)
        refuse_different([each.whole for each in everyone])
        _refuse_other_steps(everyone)
        _refuse_other_scales(everyone)
        return everyone


def _refuse_other_turns(everyone):
    texts, turns = [each.text for each in everyone], [each.turn for each in everyone]
    models = {each.model for each in everyone}
    if len(models) > 1:
        texts = [
            f"RaNNCModule {each.model}, in the order of their first calls: {each.text}"
            for each in everyone
        ]
    if len(models) > 1 or any(turn != turns[0] for turn in turns):
        raise RaNNCError(
            f"the ranks do not do the same:{by_rank(texts)}\n"
            "  Every rank calls the model, and backward, in the same order, with the same "
            "modes, shapes and constants; only the number of rows may differ."
            f"{PAD_HINT if len({json.dumps(turn[:-1]) for turn in turns}) == 1 else ''}"
        )


def _refuse_other_steps(everyone):
    steps, settings = [each.steps for each in everyone], [each.settings for each in everyone]
    if len(set(steps)) > 1:
        raise RaNNCError(
            "the ranks have not stepped the optimizer equally often since the first call:"
            f"{by_rank([f'{count} steps of optimizers' for count in steps])}\n"
            "  Every rank calls optimizer.step(), also one without gradients. The parameters "
            "of the ranks are no longer of one model: load a checkpoint."
        )
    if any(texts != settings[0] for texts in settings):
        raise RaNNCError(
            "the ranks have stepped the optimizer with different settings:"
            f"{by_rank(_differing(settings))}\n"
            "  A learning rate that follows a loss follows that of all ranks, not this rank's: "
            "ReduceLROnPlateau and the like need one number that all ranks have computed or "
            "exchanged. The step is taken: load a checkpoint."
        )


def _differing(settings) -> list[str]:
    """The first optimizer whose settings differ, for each rank. ``settings``: [rank][optimizer]."""
    counts = {len(texts) for texts in settings}
    if len(counts) > 1:
        return [f"{len(texts)} optimizers" for texts in settings]
    return next([*texts] for texts in zip(*settings, strict=True) if len(set(texts)) > 1)


def _refuse_other_scales(everyone):
    scales, peers = [each.scales for each in everyone], [each.peers for each in everyone]
    if name := first_difference(scales, peers):
        found = [", ".join(mine.get(name, ["none"])) for mine in scales]
        raise RaNNCError(
            f"the ranks scale {name} differently; the gradients that its backward got are"
            f"{by_rank(found)}\n"
            "  It is one number of the whole batch, so what is computed from it has to be the "
            "same on every rank, and every rank calls backward. What differs by rank belongs "
            "into the model, as weights of rows. Gradients of this pass are wrong; if the "
            "optimizer has used them, load a checkpoint."
        )
