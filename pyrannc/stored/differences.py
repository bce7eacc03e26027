"""Tensors that a model or its files lack, in words."""

_SHOWN_NAMES = 3  # in an error or a line of the log
#: What an error advises where names have nothing in common.
OTHER_NAMES = (
    "  Build the model that was saved; one around it, or a part of it, has other names for its "
    "tensors."
)


def listed(names) -> str:
    """The first of ``names``, and how many more there are."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES]) + more


def lines(missing, of_model: int, extra, of_files: int) -> list[str]:
    """What an error says of names that the files lack, of ``of_model`` tensors of the model, and of
    those that the model lacks, of ``of_files`` tensors of the files."""
    found = []
    if missing:
        found.append(
            f"  {len(missing)} of the model's {of_model} tensors are not in it: {listed(missing)}"
        )
    if extra:
        found.append(
            f"  {len(extra)} of its {of_files} tensors are not in the model: {listed(extra)}"
        )
    return found
