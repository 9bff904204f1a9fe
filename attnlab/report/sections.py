"""The sections of the page, each from the facts alone; a section without data is left out."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.claims import outcomes
from attnlab.claims.judging import FAMILY_LEVEL, Judgement
from attnlab.report import background, context
from attnlab.report.figures import Drawn
from attnlab.report.markup import (
    Markup,
    badge,
    between,
    described,
    element,
    figure,
    join,
    table,
    text,
    with_unit,
)
from attnlab.report.source import Facts
from attnlab.results import FINISHED, fate

REASONS = 3  # of a verdict that are spelled out; the rest stands in the list of runs


@dataclass(frozen=True)
class Section:
    """A heading with what is under it; `id` is where links lead."""

    id: str
    title: str
    content: Markup

    def html(self) -> Markup:
        heading = element("h2", self.title)
        return element("section", heading, self.content, id=self.id, aria_label=self.title)


def header(facts: Facts) -> Markup:
    """The claim in one sentence, the verdict in colour and words, and how the sweep stands."""
    source, claim, outcome = facts.source, facts.source.claim, facts.outcome
    kicker = f"attnlab report of the sweep {source.name}"
    if claim is None:
        return join(
            [
                element("p", kicker, class_="kicker"),
                element("h1", source.name),
                element("p", "A sweep without a claim: its numbers are shown, nothing is judged."),
                _standing(facts),
            ]
        )
    parts = [element("p", kicker, class_="kicker"), element("h1", claim.statement)]
    if outcome is not None:
        rests = " and ".join(claim.headline)
        parts.append(
            element(
                "div",
                badge(outcome.verdict),
                element("span", f"The statement rests on {rests}.", class_="muted"),
                class_="answer",
            )
        )
    if facts.not_judged is not None:
        parts.append(note("Not judged", facts.not_judged))
    if facts.results.unfinished():
        parts.append(
            note(
                "Not finished",
                "Some runs have not ended. A verdict before the end would be a look until the answer pleases, so "
                "every part that needs them is INVALID for now.",
            )
        )
    parts += [element("p", "Source of the claim: ", claim.source, class_="muted"), _standing(facts)]
    return join(parts)


def note(title: str, words: object) -> Markup:
    """Something a reader must not miss."""
    return element("div", element("strong", f"{title}. "), words, class_="note", role="note")


def _standing(facts: Facts) -> Markup:
    statuses: dict[str, int] = {}
    for run in facts.source.runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    listed = ", ".join(f"{count} {status}" for status, count in statuses.items())
    sentence = f"{len(facts.source.runs)} runs in {len(facts.results.arms)} arms: {listed}."
    return element("p", sentence, class_="muted")


def sections(facts: Facts, drawn: Sequence[Drawn]) -> Iterator[Section]:
    """Every section that has data, in the order of the page."""
    built: list[tuple[str, str, Callable[[], object]]] = [
        ("verdicts", "Verdicts", lambda: _verdicts(facts)),
        ("forest", "The sub-claims at a glance", lambda: _figures(drawn, "forest")),
        ("own", "Figures of this claim", lambda: _figures(drawn, "own")),
        ("ended", "Runs that did not finish", lambda: _unfinished(facts)),
        ("loss", "Loss by tokens", lambda: _figures(drawn, "loss")),
        ("gap", "Gaps between arms", lambda: _figures(drawn, "gap")),
        ("position", "Loss by position", lambda: _figures(drawn, "position")),
        ("probe", "Position probe by layer", lambda: _figures(drawn, "probe")),
        ("shuffled", "Shuffled against intact prefix", lambda: _figures(drawn, "shuffled")),
        ("length", "Loss by context length", lambda: _figures(drawn, "length")),
        (
            "future",
            "Without the future",
            lambda: join([context.future(facts), _figures(drawn, "future")]),
        ),
        ("reach", "Reach", lambda: join([context.reach(facts), _figures(drawn, "reach")])),
        ("share", "Position in attention weights", lambda: context.position_share(facts)),
        ("entropy", "Attention entropy", lambda: _figures(drawn, "entropy")),
        ("masks", "Masks", lambda: _figures(drawn, "masks")),
        ("arms", "Arms at the end of training", lambda: background.arms(facts)),
        ("config", "What differs between arms", lambda: background.config(facts)),
        ("published", "Published numbers beside ours", lambda: background.published(facts)),
        ("null", "Each arm against itself", lambda: background.nulls(facts)),
        ("environment", "How it was made", lambda: background.environment(facts)),
    ]
    for name, title, build in built:
        content = build()
        if content:
            yield Section(name, title, text(content))


def _figures(drawn: Sequence[Drawn], section: str) -> Markup:
    shown: list[Markup] = []
    for item in drawn:
        if item.section != section:
            continue
        if item.png is None or item.svg is None:
            shown.append(note("No figure yet", f"{item.stem}: {item.failure}"))
        else:
            link = f"figures/{item.png.name}"
            shown.append(figure(item.png, item.svg, alt=item.alt, caption=item.caption, link=link))
    return join(shown)


def _verdicts(facts: Facts) -> Markup:
    outcome = facts.outcome
    if outcome is None:
        return Markup("")
    columns = ("sub-claim", "verdict", "measured", "95 % CI", "claimed", "after Holm", "seeds")
    rows = [_verdict_row(judgement) for judgement in outcome.judgements]
    caption = (
        f"The verdict follows from the interval alone. After Holm: whether the claimed region still holds when the "
        f"{len(rows)} sub-claims are tested together at {100 * FAMILY_LEVEL:g} % (one-sided, the level of a 95 % interval)."
    )
    shown = table(
        columns,
        rows,
        caption=caption,
        stacked=True,
        words=("verdict", "claimed", "after Holm", "seeds"),
    )
    details = [_explained(judgement) for judgement in outcome.judgements]
    if outcome.not_asked:
        ids = ", ".join(f"{part.id} ({part.title})" for part in outcome.not_asked)
        details.append(note("Not asked", f"This sweep has no arms for {ids}."))
    return join([shown, *details])


def _verdict_row(judgement: Judgement) -> tuple[object, ...]:
    subclaim, interval = judgement.subclaim, judgement.interval
    return (
        f"{subclaim.id}, {subclaim.title}",
        badge(judgement.verdict),
        with_unit(f"{interval.mean:.3f}", subclaim.unit) if interval else "no number",
        between(interval),
        with_unit(str(subclaim.rule), subclaim.unit),
        _holm(judgement),
        f"{interval.n}" if interval else "0",
    )


def _holm(judgement: Judgement) -> str:
    if judgement.p_holm is None:
        return "not tested"
    return f"{'holds' if judgement.survives_holm else 'does not hold'} (p {judgement.p_holm:.2g})"


def _explained(judgement: Judgement) -> Markup:
    """What a sub-claim says, why its verdict is what it is, and what its seeds could have seen."""
    subclaim, interval = judgement.subclaim, judgement.interval
    told: list[tuple[str, str | None]] = [
        ("claim", subclaim.statement),
        ("why", _reason(judgement.reason)),
        ("metric", with_unit(subclaim.metric + ("," if subclaim.unit else ""), subclaim.unit)),
    ]
    if interval is not None:
        values = ", ".join(f"seed {seed} {x:.3f}" for seed, x in judgement.values.items())
        told.append(("values", f"{values}; interval by {interval.method}"))
        if subclaim.unit == "nats":
            told.append(("effect", f"as a ratio of perplexities {math.exp(interval.mean):.2f}"))
    told.append(("power", outcomes.power_statement(judgement)))
    for control in judgement.controls:
        held = "held" if control.passed else "FAILED"
        told.append(("control", f"{control.id} {held}: {control.statement}; {control.measured}"))
    told.append(("source", subclaim.source))
    heading = element("h3", f"{subclaim.id}, {subclaim.title} ", badge(judgement.verdict))
    return join([heading, described(told)])


def _reason(reason: str) -> str:
    parts = reason.split("; ")
    if len(parts) <= REASONS:
        return reason
    return f"{'; '.join(parts[:REASONS])}; and {len(parts) - REASONS} more, listed below"


def _unfinished(facts: Facts) -> Markup:
    rows = [
        (
            arm,
            str(seed),
            run.status,
            fate(run),
            _last(run.history.get("train/loss")),
            _last(run.history.get(facts.metric)),
        )
        for arm in facts.results.arms
        for seed, run in facts.results.runs(arm).items()
        if run.status != FINISHED
    ]
    if not rows:
        return Markup("")
    columns = ("arm", "seed", "status", "what became of it", "last train/loss", facts.metric)
    return table(
        columns,
        rows,
        caption=f"None of these is part of the mean of its arm, and none is left out of the count.{_counting(facts)}",
        words=("status", "what became of it"),
    )


def _counting(facts: Facts) -> str:
    """Which sub-claims make a number of a diverged run, and which."""
    claim = facts.source.claim
    ways: dict[str, list[str]] = {}
    for part in claim.subclaims if claim else ():
        if part.diverged_as:
            ways.setdefault(part.diverged_as, []).append(part.id)
    return "".join(f" {', '.join(ids)} count a diverged run as {way}." for way, ids in ways.items())


def _last(values: Any) -> str:
    finite = [float(x) for x in (() if values is None else values) if not math.isnan(float(x))]
    return f"{finite[-1]:.4f}" if finite else "none"
