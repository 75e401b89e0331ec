"""Words for what ranks do differently, with the ranks named on either side."""

from collections.abc import Collection, Mapping


def by_answer(said: Mapping[int, str]) -> str:
    """The ranks by what they say, most of them first; "" if all say the same."""
    ranks_by_words: dict[str, list[int]] = {}
    for rank, words in sorted(said.items()):
        ranks_by_words.setdefault(words, []).append(rank)
    if len(ranks_by_words) < 2:
        return ""
    found = sorted(ranks_by_words.items(), key=lambda item: (-len(item[1]), item[1]))
    return "; ".join(f"{named(ranks)}: {words}" for words, ranks in found)


def named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def diverged(said: Mapping[int, object], since: Mapping[int, int]) -> list[int]:
    """Ranks that came back and say otherwise than those that have been there longest, which agree;
    [] if these do not, or nobody says otherwise.

    `since` has the generation by which a rank came back; one that was never lost need not be in it.
    Who came back was given its state by those that were there: what is missing of it may show late.
    """
    first_in = min((since.get(rank, 0) for rank in said), default=0)
    first = {words for rank, words in said.items() if since.get(rank, 0) == first_in}
    if len(first) != 1:
        return []
    return sorted(rank for rank, words in said.items() if words not in first)


def uneven_newcomers(step: int, taken: Mapping[int, int], odd: Collection[int]) -> str:
    """One sentence on ranks that came back and take another number of microbatches."""
    return (
        f"{named(sorted(odd))} came back and {'take' if len(odd) > 1 else 'takes'} another number "
        f"of microbatches to step {step} than the others: {by_answer(_counts(taken))}"
    )


def unequal(step: int, taken: Mapping[int, int]) -> str:
    """One sentence on ranks that have `taken` unequally many microbatches to a transaction."""
    return (
        f"the script's ranks take unequally many microbatches to step {step}, so what a "
        f"lost one would have put in is unknown: {by_answer(_counts(taken))}"
    )


def _counts(taken: Mapping[int, int]) -> dict[int, str]:
    return {rank: f"{many} microbatch{'es' * (many != 1)}" for rank, many in taken.items()}


def missed(step: int, waiting: list[int], ended: Mapping[int, int]) -> str:
    """One sentence on ranks that wait in a transaction which scripts that have `ended`, each
    after so many transactions, never come to.
    """
    over = "; ".join(
        f"the script of rank {rank} has ended after {many} step{'s' * (many != 1)}"
        for rank, many in sorted(ended.items())
    )
    verb = "wait" if len(waiting) > 1 else "waits"
    return f"{named(waiting)} {verb} for gradients in step {step} (the first is 0), but {over}"
