"""The page of a measurement: shares, survivors by room, what a person found about each of them, and every mutant's row."""

from __future__ import annotations

from collections import Counter


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{escaped(text)}{ticks}"


def room_of(row: dict) -> str:
    parts = row["file"].split("/")
    return parts[1] if len(parts) > 2 else "engine"


def slip_of(row: dict) -> str:
    return f"{code(row['before'])} -> {code(row['after']) if row['after'] != '(deleted)' else '(deleted)'}"


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def place_of(row: dict) -> str:
    return f"{row['file'].removeprefix('engine/')}:{row['line']} {row['function']}"


def killed_by(row: dict) -> str:
    if row["killed_by"] is None:
        return "**survived**"
    how = "" if row["how"] == "failed" else f", {row['how']}"
    return row["killed_by"] + how


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *[f"| {' | '.join(one)} |" for one in rows], ""]


def summary(rows: list[dict], examined: dict) -> list[str]:
    equal = [one for one in rows if "equivalent" in examined.get(one["site"], {})]
    false = [one for one in equal if one["killed_by"] is not None]
    if false:
        raise SystemExit(
            f"source_mutants: {false[0]['site']} is called equivalent, and {killed_by(false[0])} saw it. Mend examined.json."
        )
    counted = [one for one in rows if one not in equal]
    judges = list(dict.fromkeys(name for one in rows for name in one["judged"]))
    lines = []
    seen = 0
    for name in judges:
        here = sum(one["killed_by"] == name for one in counted)
        seen += here
        lines.append([name, str(here), share(seen, len(counted))])
    hows = Counter(one["how"] for one in counted if one["killed_by"] is not None)
    ways = ", ".join(f"{count} {how}" for how, count in hows.most_common())
    head = f"{len(rows)} mutants, {len(equal)} of them equivalent (below, with reasons); of the other {len(counted)}, "
    return [
        f"{head}**{share(seen, len(counted))} are seen**: {ways}.",
        "",
        *table(["judge", "seen first by it", "so far"], lines),
    ]


def by_room(rows: list[dict], examined: dict) -> list[str]:
    lines = []
    for room in sorted({room_of(one) for one in rows}):
        here = [one for one in rows if room_of(one) == room]
        equal = sum("equivalent" in examined.get(one["site"], {}) for one in here)
        killed = sum(one["killed_by"] is not None for one in here)
        left = len(here) - equal - killed
        lines.append([room, str(len(here)), str(killed), str(equal), str(left) if left else ""])
    return table(["room", "mutants", "seen", "equivalent", "survive"], lines)


def reached(row: dict) -> str:
    held = [name for name, one in row["judged"].items() if one["outcome"] == "held"]
    return ", ".join(held) if held else "no judge comes there"


def survivors(rows: list[dict], examined: dict) -> list[str]:
    left = [one for one in rows if one["killed_by"] is None and "equivalent" not in examined.get(one["site"], {})]
    lines = []
    for one in sorted(left, key=lambda row: (examined.get(row["site"], {}).get("blind", "~"), row["file"], row["line"])):
        found = examined.get(one["site"], {})
        lines.append(
            [found.get("blind", "not examined"), place_of(one), slip_of(one), reached(one), escaped(found.get("why", ""))]
        )
    equal = [one for one in rows if "equivalent" in examined.get(one["site"], {})]
    reasons = [[place_of(one), slip_of(one), escaped(examined[one["site"]]["equivalent"]), one["site"]] for one in equal]
    return [
        "## Survivors",
        "",
        *table(["class", "where", "slip", "held under", "why nothing saw it"], lines),
        "## Equivalent",
        "",
        *table(["where", "slip", "why no bit and no behaviour changes", "site"], reasons),
    ]


def write(rows: list[dict], examined: dict, about: dict) -> str:
    rows = sorted(rows, key=lambda one: (one["file"], one["line"], one["mutant"]))
    left_out = about["do not compile behind a switch"]
    every = [[place_of(one), slip_of(one), killed_by(one), f"{one['seconds']:.1f}", one["site"]] for one in rows]
    head = [
        f"Commit {about['commit']}, seed {about['seed']}: {about['lines drawn']} lines drawn of {about['lines']} that have a site",
        f"({about['sites']} sites); {len(left_out)} slips on them did not compile behind a switch and gave way to the next of their line.",
    ]
    lines = [
        "# Mutants from source",
        "",
        "Written by `conformance/faults/source_mutants report`; its README says how the sample is drawn and judged.",
        "",
        *head,
        "",
        *summary(rows, examined),
        *by_room(rows, examined),
        *survivors(rows, examined),
        "## Every mutant",
        "",
        *table(["where", "slip", "seen by", "s", "site"], every),
    ]
    return "\n".join(lines).rstrip() + "\n"
