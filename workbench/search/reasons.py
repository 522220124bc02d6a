"""Why a candidate lost against the best, in one line."""

from collections.abc import Sequence

from workbench.search.evaluate import OK, Candidate

LEAST_PART = 0.02
SAME = 1e-9
UNITS = {
    "tokens_per_s_per_gpu": "tokens a second of a GPU", "tokens_per_s_per_user": "tokens a second of a user",
    "tokens_per_s": "tokens a second", "tokens_per_usd": "tokens a dollar",
}  # fmt: skip


def why_lost(candidate: Candidate, best: Candidate | None, *, maximise: str, front: Sequence[Candidate] = ()) -> str:
    """What rules it out, or how far it is behind and where its time goes; and whether the bands tell the two apart."""
    if candidate.status != OK or best is None or candidate.figures is None:
        return candidate.reason
    if candidate is best:
        return ""
    less = 1 - candidate.value / best.value
    if abs(less) < SAME:
        return "as good as the best"
    said = f"{100 * less:.1f}% fewer {UNITS[maximise]}"
    parts = _longer_parts(candidate, best)
    if parts:
        said += f": {parts}"
    if any(candidate is one for one in front):
        said += "; on the front"
    return said + ("; within the band of the best" if _within(candidate, best) else "")


def _within(candidate: Candidate, best: Candidate) -> bool:
    """Bands that overlap. Candidates with the same kernels share most of their error, so this is the cautious word."""
    known = all(one.figures is not None and one.figures.band != (1.0, 1.0) for one in (candidate, best))
    return known and candidate.range[1] > best.range[0]


def _longer_parts(candidate: Candidate, best: Candidate) -> str:
    """The two parts that grew most, in microseconds of a GPU for each token."""
    assert candidate.figures is not None
    assert best.figures is not None
    mine, theirs = candidate.figures.gpu_us_per_token, best.figures.gpu_us_per_token
    grown = {name: mine.get(name, 0.0) - theirs.get(name, 0.0) for name in {*mine, *theirs}}
    least = LEAST_PART * 1e6 / best.figures.tokens_per_s_per_gpu
    longest = sorted((name for name in grown if grown[name] > least), key=lambda name: -grown[name])[:2]
    return ", ".join(f"{_named(name)} +{grown[name]:.3g} GPU-us a token" for name in longest)


def _named(part: str) -> str:
    return "less hidden by overlap" if part == "hidden" else part
