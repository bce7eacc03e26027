"""Texts of all ranks as one message."""


def by_rank(texts) -> str:
    """A line for each text, with the ranks that have it."""
    ranks = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return "".join(f"\n  {_names(ranks)}: {text}" for text, ranks in ranks.items())


def _names(ranks) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
