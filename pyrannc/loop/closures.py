"""Closures that a loop hands to steps of its optimizer."""


def between(args: tuple, kwargs: dict, before, after):
    """What a hook before a step returns so that the step's closure, which is the user's, runs
    after ``before()`` and before ``after()``; None where there is none.

    Args:
        args, kwargs: Of the step, the optimizer first, as torch gives them to such a hook.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None

    def call(*given, **named):
        before()
        try:
            return closure(*given, **named)
        finally:
            after()

    if len(args) > 1:
        return (args[0], call, *args[2:]), kwargs
    return args, {**kwargs, "closure": call}
