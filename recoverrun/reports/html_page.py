"""A postmortem as one HTML file: no script, no request to anywhere, all text of the run escaped."""

import time
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from recoverrun.reports.charts import lanes, quotas, step_times
from recoverrun.reports.goodput import ratios_line, rows
from recoverrun.reports.hang_stacks import HangStack
from recoverrun.reports.history import History
from recoverrun.reports.part_bars import recovery_bars, return_bars, waterfall
from recoverrun.reports.postmortem import Postmortem, company, cost, invariant_line, verdict
from recoverrun.reports.postmortem_screen import LOSS_HEADS, loss_cells, loss_details, roots, zone
from recoverrun.reports.return_table import HEADS, way_cells
from recoverrun.reports.root_cause import also, evidence
from recoverrun.reports.screen_style import time_of_day
from recoverrun.text import plural, sanitize, span

LOSSES = 200
FINDINGS = 50


def html_page(
    found: Postmortem, facts: History, stacks: Sequence[HangStack], utc_offset_s: int = 0
) -> str:
    """The whole file; times of day are shown in the zone that is given."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"clean": sanitize, "span": span, "also": also, "evidence": evidence,
                            "company": company}  # fmt: skip
    template = files("recoverrun.reports").joinpath("page.html.j2").read_text()
    goodput = found.goodput
    hangs = [death for death in facts.deaths if death.kind == "hang"]
    shown = found.losses[:LOSSES]
    return environment.from_string(template).render(
        found=found,
        verdict=verdict(found),
        invariant=invariant_line(found),
        facts=_facts(found, utc_offset_s),
        tiles=_tiles(found),
        goodput=goodput,
        rows=rows(goodput),
        ratios=ratios_line(goodput) if goodput.steps else "",
        waterfall=waterfall(goodput) if goodput.wall_us else "",
        lanes=lanes(found, hangs) if found.lanes else "",
        hangs=hangs,
        quotas=quotas(found, facts.commits),
        step_times=step_times(found, facts.commits),
        recoveries=recovery_bars(found.losses),
        returns=return_bars(found.ways),
        loss_heads=LOSS_HEADS,
        losses=[(loss_cells(loss, utc_offset_s), loss_details(loss, same=False)) for loss in shown],
        more_losses=len(found.losses) - len(shown),
        way_heads=HEADS,
        ways=[(way_cells(way, utc_offset_s, "–"), way.why) for way in found.ways[:LOSSES]],
        roots=roots(found, everything=False),
        stacks=stacks,
        findings=_findings(found, utc_offset_s),
    )


def _facts(found: Postmortem, utc_offset_s: int) -> list[str]:
    """The facts of a run, in a few words each."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.began + utc_offset_s))
    shape = plural(found.world_size, "rank")
    if found.replicas:
        shape = (
            f"{plural(len(found.replicas), 'replica')} × {plural(len(found.replicas[0]), 'rank')}"
        )
    words = [
        f"{began} {zone(utc_offset_s)}" if found.began else "",
        f"lasted {span(found.wall_s)}",
    ]
    nodes = plural(len(found.nodes) + len(found.missing_nodes), "node")
    words += [shape, nodes, found.strategy, f"recoverrun {found.version}" if found.version else ""]
    return [word for word in words if word]


def _tiles(found: Postmortem) -> list[tuple[str, str, str]]:
    """(label, number, what it says more) of the most important numbers."""
    shares = rows(found.goodput)
    kept = f"{found.survived} survived" + (f", {found.returned} back" if found.returned else "")
    return [
        ("goodput", shares[0].share if shares else "–", "useful time of all time"),
        ("steps", f"{found.steps_done:,}", _committed(found)),
        ("losses", str(len(found.losses)), kept if found.losses else "nothing was lost"),
        ("cost of losses", span(found.lost_s), f"{plural(found.redone, 'microbatch')} redone"),
        ("usual step", span(found.goodput.usual_us / 1e6), "median of all steps"),
    ]


def _committed(found: Postmortem) -> str:
    again = f", {found.steps_again:,} done again" if found.steps_again else ""
    return f"{found.proof.exact:,} of {found.proof.steps:,} committed are exact{again}"


def _findings(found: Postmortem, utc_offset_s: int) -> list[tuple[str, str]]:
    """(class of the style sheet, sentence) of what the proof and the journal have to say."""
    proof = found.proof
    said = [("bad", f"{one.invariant} violated: {one.what}") for one in proof.violations]
    said += [("warn", f"not proved: {doubt}") for doubt in proof.unproved]
    said += [("quiet", note) for note in proof.notes]
    if found.promise:
        said.append(("quiet", f"promise: {found.promise}: {found.promise_reason}"))
    if found.weakened:
        said.append(("warn", f"step {found.weakened_at}: {found.weakened}"))
    if found.steered:
        said.append(("warn", f"step {found.steered_at}: {found.steered}"))
    if found.losses:
        said.append(("quiet", f"cost: {cost(found)}"))
    said += [("quiet", f"{time_of_day(o.ts, utc_offset_s)} {o}") for o in found.steps_back]
    said += [("warn", slow.words) for slow in found.slow]
    if found.inject:
        said.append(("quiet", f"injected faults: {found.inject}"))
    if found.missing_nodes:
        said.append(("warn", f"no journal of {', '.join(found.missing_nodes)}"))
    said += [("warn", f"unreadable: {place}") for place in found.unreadable]
    return said[:FINDINGS]
