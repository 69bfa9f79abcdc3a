"""The largest number of records whose prompt stays within a number of tokens, for few tokenizations.

A long prompt takes a second to tokenize, so it is not built up record by record: two short prompts tell what
a record costs, the number that should fit is tried, and then the one above it. With a tokenizer that gives
every record the same number of tokens this takes two long tokenizations.
"""

from collections.abc import Callable

_SAMPLE = 33


def most_records(tokens: Callable[[int], int], limit: int) -> int:
    """Return the largest n with `tokens(n) <= limit < tokens(n + 1)`; 0 when not even one record fits.

    Args:
        tokens: how many tokens a prompt of n records has, for n from 1; must not fall with n.
        limit: the most tokens that the prompt may have.
    """
    least = tokens(1)
    if least > limit:
        return 0
    cost = max((tokens(_SAMPLE) - least) / (_SAMPLE - 1), 1.0)
    fits, too_many = 1, None
    guess = 1 + int((limit - least) / cost)
    while too_many is None or too_many - fits > 1:
        guess = max(guess, fits + 1)
        if too_many is not None:
            guess = min(guess, too_many - 1)
        used = tokens(guess)
        if used <= limit:
            fits = guess
        else:
            too_many = guess
        # Past the limit the step is rounded away from zero, so that the next guess is one that should fit.
        guess += int((limit - used) // cost)
    return fits
