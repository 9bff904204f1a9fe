"""What trained members make of their context, as tables: what the loss hides, what they write, how far they read."""

from collections.abc import Callable

import numpy as np

from attnlab.measurements.context import PositionShare, Reach, Samples, TruncatedContext
from attnlab.report.markup import Markup, element, join, table
from attnlab.report.source import Facts

SHOWN = 300  # characters of a sampled text


def future(facts: Facts) -> Markup:
    """Loss beside what it is without the future and beside the quality of samples; then a text of each arm."""
    return _or_why_not(_future, facts)


def reach(facts: Facts) -> Markup:
    """How many of the last tokens hold half and nine tenths of all influence, and how many have any."""
    return _or_why_not(_reach, facts)


def position_share(facts: Facts) -> Markup:
    """How much of the attention weights position alone explains; a description, which no verdict rests on."""
    return _or_why_not(_position_share, facts)


def _or_why_not(build: Callable[[Facts], Markup], facts: Facts) -> Markup:
    """A table, or the reason why there is none: a damaged file costs its table, not the page."""
    try:
        return build(facts)
    except ValueError as error:
        return element("p", f"Not shown: {error}", class_="muted")


def _reach(facts: Facts) -> Markup:
    rows = []
    for arm in facts.results.arms:
        found = list(facts.results.measured(Reach.read, arm).values())
        if found:
            held = (_mean([float(x.tokens_holding(s)) for x in found], 1) for s in (0.5, 0.9))
            rows.append((arm, *held, _mean([float(x.farthest) for x in found], 1)))
    if not rows:
        return Markup("")
    return table(
        ("arm", "hold 50 %", "hold 90 %", "have any"),
        rows,
        caption="How many of the last tokens hold the influence on the last prediction, means over seeds.",
    )


def _position_share(facts: Facts) -> Markup:
    rows = []
    for arm in facts.results.arms:
        found = list(facts.results.measured(PositionShare.read, arm).values())
        if found:
            shares_SLN = np.stack([x.share for x in found if x.share.shape == found[0].share.shape])
            means_LN = shares_SLN.mean(axis=0)
            heads = "; ".join(" ".join(f"{x:.2f}" for x in row_N) for row_N in means_LN)
            rows.append(
                (arm, f"{np.nanmean(means_LN):.2f}" if np.isfinite(means_LN).any() else "", heads)
            )
    if not rows:
        return Markup("")
    return table(
        ("arm", "mean", "heads of layer 0; 1; ..."),
        rows,
        caption=(
            "Share of the variance of the attention weights that query and key positions explain, means over seeds: 1 is "
            "a head that weighs by position alone, as a uniform average does; what is missing to 1 the text decides."
        ),
        words=("heads of layer 0; 1; ...",),
    )


def _future(facts: Facts) -> Markup:
    results = facts.results
    rows, written = [], []
    for row in facts.arms:
        cut = list(results.measured(TruncatedContext.read, row.arm).values())
        texts = list(results.measured(Samples.read, row.arm).values())
        if not cut and not texts:
            continue
        rows.append(
            (
                row.arm,
                _mean(list(row.values.values())),
                _mean([float(np.mean(x.truncated)) for x in cut]),
                *(
                    _mean([getattr(x, name) for x in texts])
                    for name in ("score", "filling", "full", "real")
                ),
            )
        )
        if texts:
            written.append((row.arm, repr(texts[0].text[:SHOWN])[1:-1]))
    if not rows:
        return Markup("")
    parts: list[object] = [
        table(
            (
                "arm", facts.metric, "future cut off", "5-grams on its texts",
                "while the window fills", "once it is full", "5-grams on real text",
            ),
            rows,
            caption=(
                "Nats per token, means over seeds. A loss that rises when the future is cut off was made by reading it. "
                "5-grams of the training text judge what the model writes: text far above real text is none."
            ),
        )
    ]  # fmt: skip
    if written:
        listed = table(
            ("arm", "one sampled text"), written, caption="At temperature 1.", words=("one sampled text",)
        )  # fmt: skip
        parts.append(element("details", element("summary", "What the arms write"), listed))
    return join(parts)


def _mean(values: list[float], digits: int = 3) -> str:
    return f"{sum(values) / len(values):.{digits}f}" if values else ""
