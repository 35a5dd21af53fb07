"""Print the page about the papers' claims: `python -m multicard.papers.page`."""

import textwrap

from multicard.core.units import percent
from multicard.papers.claims import ABOUT, SHIPPED, Claim, read_claims
from multicard.papers.tests import AnyTest, Range

WIDTH = 120
HEAD = """\
# The papers' claims, and what would refute them

What papers A (arXiv 2503.15252) and B (arXiv 2505.22905) claim, in our words, and by which tests your runs judge it.
The rules that all tests share are in [How numbers are measured](measuring.md#claims). This page is generated from
`resources/claims.yaml`.

The verdicts on your runs, with the numbers and whether they can be judged at all, are in `results/report.html` and
`results/claims.csv`, and `multicard report results --claims` prints them. **This project had no GPU: no claim about
GPUs is judged by runs of its own.**
"""


def page(claims: list[Claim]) -> str:
    """The page: a section per claim."""
    return "\n".join([HEAD, *map(_section, claims)])


def _section(claim: Claim) -> str:
    sizes = [
        f"{workload} with `{name}` {' or '.join(map(_value, allowed if isinstance(allowed, list) else [allowed]))}"
        for workload, limits in claim.size.items()
        for name, allowed in limits.items()
    ]
    paragraphs = [
        f"**{claim.claim}** Paper {claim.paper}; {claim.source}.",
        f"*Refuted if:* {claim.refuted_if}",
        f"*Judged by:* runs on {ABOUT[claim.hardware]}{''.join(f'; {size}' for size in sizes)}.",
        *([f"*Our choice:* {claim.our_choice}"] if claim.our_choice else []),
    ]
    filled = [textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False) for text in paragraphs]
    rows = ["| test | refuted if | runs that are not judged |", "|---|---|---|", *map(_row, claim.tests)]
    return "\n\n".join([f"## `{claim.id}`", *filled, "\n".join(rows)]) + "\n"


def _row(test: AnyTest) -> str:
    doubts = [] if test.max_data_share is None else [f"data share above {percent(test.max_data_share)}"]
    doubts += ["disturbed", "not stationary"] if test.timed else []
    return f"| {test.statement} | {test.refuted_if()} | {', '.join(doubts)} |"


def _value(value: object) -> str:
    if isinstance(value, Range):
        ends = (("at least", value.at_least), ("at most", value.at_most))
        return " and ".join(f"{word} {limit:,.10g}" for word, limit in ends if limit is not None)
    return str(value)


if __name__ == "__main__":
    print(page(read_claims(SHIPPED)), end="")
