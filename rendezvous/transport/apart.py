"""Words for what ranks do differently, with the ranks named on either side."""

from collections.abc import Mapping


def told_apart(said: Mapping[int, str]) -> str:
    """Which ranks say what, most of them first; "" if all say the same."""
    ranks_by_words: dict[str, list[int]] = {}
    for rank, words in sorted(said.items()):
        ranks_by_words.setdefault(words, []).append(rank)
    if len(ranks_by_words) < 2:
        return ""
    found = sorted(ranks_by_words.items(), key=lambda item: (-len(item[1]), item[1]))
    return "; ".join(f"{named(ranks)}: {words}" for words, ranks in found)


def named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def unequal(step: int, taken: Mapping[int, int]) -> str:
    """One sentence on ranks that have `taken` unequally many microbatches to a transaction."""
    said = {rank: f"{many} microbatch{'es' * (many != 1)}" for rank, many in taken.items()}
    return (
        f"the script's ranks take unequally many microbatches to transaction {step}, so what a "
        f"lost one would have put in cannot be told: {told_apart(said)}"
    )


def missed(step: int, waiting: list[int], ended: Mapping[int, int]) -> str:
    """One sentence on ranks that wait in a transaction which scripts that have `ended`, each
    after so many transactions, never come to.
    """
    over = "; ".join(
        f"the script of rank {rank} has ended after {many}" for rank, many in sorted(ended.items())
    )
    verb = "wait" if len(waiting) > 1 else "waits"
    return (
        f"{named(waiting)} {verb} for gradients in transaction {step} (the first is 0), but {over}"
    )
