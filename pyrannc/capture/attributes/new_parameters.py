"""Parameters that forward() makes: among the states of a graph none is new."""

from pyrannc.errors import TraceError


def held(model) -> list:
    """What ``model`` has before a call; for :func:`refuse`."""
    return [*model.named_parameters()]


def refuse(model, before) -> None:
    """Raises TraceError where a call has left a parameter that ``model`` did not have: the graph
    would go on with the one of before."""
    known, paths = {id(each) for _, each in before}, {path for path, _ in before}
    for path, each in model.named_parameters():
        if id(each) in known:
            continue
        if path in paths:
            raise TraceError(
                f"forward() replaces the parameter '{path}' by another one, which a captured model "
                "does not do, and which no optimizer that was made before would step.\n"
                f"  Write into it under torch.no_grad(), as in `self.{path}.copy_(...)`. What "
                "forward() alone changes, such as an average, is better a buffer."
            )
        raise TraceError(
            f"forward() makes the parameter '{path}', which the model did not have before: no "
            "optimizer that was made before would step it.\n  Make it in __init__(); where it is "
            "made in the first call only, call the model once before the optimizer is made."
        )
