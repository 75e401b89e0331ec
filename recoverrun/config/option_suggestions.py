"""Suggestions for a mistyped option."""

from collections.abc import Sequence


def meant(name: str, options: Sequence[str], others: Sequence[str]) -> str:
    """The known name that `name` is nearest to, "" if there is none.

    `options` may be shortened by whoever types them, `others` may not.
    """
    # One letter too many at the end of what would have been enough, then what looks like it.
    longer = [known for known in options if known.startswith(name[:-1])]
    if len(longer) == 1:
        return longer[0]
    from difflib import get_close_matches  # Not at the top: a launcher has no use for it.

    return next(iter(get_close_matches(name, [*options, *others], 1)), "")
