"""transformers' schedule for Adafactor reads off each group's first parameter how far it went."""


def rates(theirs, schedule):
    """``get_lr()``, also where a rank holds no parameter of a group: its rate stays what it was."""
    optimizer, groups = schedule.optimizer, schedule.optimizer.param_groups
    held = [group for group in groups if group["params"]]
    if len(held) == len(groups):
        return theirs(schedule)
    optimizer.param_groups = held
    try:
        found = theirs(schedule)
    finally:
        optimizer.param_groups = groups
    if len(found) != len(held):  # before the first step: the rates to begin with, of all groups
        return found
    rates = iter(found)
    return [next(rates) if group["params"] else group["lr"] for group in groups]
