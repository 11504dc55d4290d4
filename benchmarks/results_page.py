"""The tables of docs/results.md, from what `smartree bench` wrote; the text around them is written by hand.

Run: python benchmarks/results_page.py GREEDY.json SAMPLED.json HEAD.json FLOAT32.json PEERS.json FLATNESS.json \
    STALL.json MEMORY.json

GREEDY has the policies none, eagle2, paper, smart and oracle at temperature 0; SAMPLED none and smart at
temperature 1, both with the default drafter; HEAD none and smart at 0 with the head alone; FLOAT32 is of
benchmarks/identical.py, the rest of the scripts of these names. What stands between the markers in docs/results.md is
replaced.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

Row = dict[str, Any]
Line = tuple[str, str, str, bool]
PAGE = Path(__file__).parent.parent / "docs" / "results.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def rows_of(file: str) -> list[Row]:
    """The rows of a bench."""
    rows: list[Row] = json.loads(Path(file).read_text(encoding="utf-8"))["rows"]
    return rows


def of(rows: Iterable[Row], policy: str) -> dict[tuple[str, float, int], Row]:
    """A policy's rows by suite, temperature and batch."""
    return {(row["suite"], row["temperature"], row["batch"]): row for row in rows if row["policy"] == policy}


def geometric(values: Iterable[float]) -> float:
    """Geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *body])


def aims(greedy: list[Row], sampled: list[Row], head: list[Row], exact: list[Row]) -> str:
    """The aims, what was measured, and whether they are met."""
    lines = [*speed_aims(greedy), *bound_aims(greedy, sampled)]
    errors = [row["step_error"] for row in greedy + sampled if row["step_error"] is not None]
    error = median(errors)
    spread = f"{error:.1%} (rows {min(errors):.1%} to {max(errors):.1%})"
    lines.append(("predicted against measured pass, median error", "<= 5%", spread, error <= 0.05))
    for name, rows in (("float32", exact), ("bfloat16, every policy, T=0 and 1", greedy + sampled + head)):
        same, everything = sum(row["identical_prompts"] for row in rows), sum(row["prompts"] for row in rows)
        lines.append((f"`identical_to_none` in {name}", "all", f"{same} of {everything} outputs", same == everything))
    marked = [(name, aim, value, "yes" if met else "**no**") for name, aim, value, met in lines]
    return table(("figure", "aim", "measured", "met"), marked)


def speed_aims(greedy: list[Row]) -> list[Line]:
    """What the head and `smart` should reach."""
    eagle, smart = of(greedy, "eagle2"), of(greedy, "smart")
    tau = mean(row["tau"] for row in eagle.values())
    lines = [("tau of the head, `eagle2` 60/7/10, T=0, mean of the suites", ">= 2.5", f"{tau:.2f}", tau >= 2.5)]
    for batch, wanted in ((1, 1.5), (4, 1.25), (8, 1.1), (16, 1.0)):
        value = geometric(row["speedup"] for key, row in smart.items() if key[2] == batch)
        name = f"SR of `smart` at batch {batch}, T=0, mean of the suites"
        lines.append((name, f">= {wanted}", f"{value:.3f}", value >= wanted))
    gain = geometric(smart[key]["speedup"] / eagle[key]["speedup"] for key in eagle)
    return [*lines, ("`smart` / `eagle2`, mean", ">= 1.2", f"{gain:.2f}", gain >= 1.2)]


def bound_aims(greedy: list[Row], sampled: list[Row]) -> list[Line]:
    """What `smart` should never fall below."""
    smart, oracle = of(greedy, "smart"), of(greedy, "oracle")
    against = {key: smart[key]["speedup"] / oracle[key]["speedup"] for key in oracle}
    speed = {key: row["speedup"] for key, row in (smart | of(sampled, "smart")).items()}
    names = ("`smart` / `oracle`, every batch and suite", "`smart` / `none`, every batch, suite and temperature")
    lines = []
    for name, values, bound in zip(names, (against, speed), (0.98, 0.99), strict=True):
        low = min(values, key=lambda key: values[key])
        met = sum(value >= bound for value in values.values())
        text = f"{values[low]:.3f} ({low[0]}, T={low[1]:g}, batch {low[2]}) to {max(values.values()):.3f}, "
        text += f"mean {geometric(values.values()):.3f}; {met} of {len(values)}"
        lines.append((name, f">= {bound}", text, met == len(values)))
    return lines


def engine_aims(peers: list[Row], flat: list[Row], stall: list[Row], memory: list[Row]) -> str:
    """What the engine should reach beside others, and what a pass, a prompt and a cache may cost."""
    batches = sorted({row["batch"] for row in peers})
    plain = {(row["engine"], row["batch"]): row["none_over_this"] for row in peers if row["mode"] == "plain"}
    lines: list[Line] = []
    wanted = {"vllm": (1.2,) * 3, "openvino": (0.95,) * 3, "transformers": (2.2, 2.4, 2.4)}
    names = ", ".join(str(batch) for batch in batches)
    for engine, least in wanted.items():
        found = [plain[engine, batch] for batch in batches]
        met = all(value >= one for value, one in zip(found, least, strict=True))
        aim = (
            ", ".join(str(one) for one in dict.fromkeys(least)) if len(set(least)) == 1 else ", ".join(map(str, least))
        )
        text = " / ".join(f"{value:.2f}" for value in found)
        lines.append((f"plain decoding / {engine}'s, batch {names}", f">= {aim}", text, met))
    others = [row for row in peers if row["engine"] != "smartree"]
    best = [min(row["smart_over_this"] for row in others if row["batch"] == batch) for batch in batches]
    met = all(value >= one for value, one in zip(best, (1.15, 1.2, 1.0), strict=True))
    text = " / ".join(f"{value:.2f}" for value in best)
    lines.append((f"`smart` / best mode of any of them, batch {names}", ">= 1.15, 1.2, 1.0", text, met))
    ratio = next(row["over_one_row"] for row in flat if (row["batch"], row["rows_per_request"]) == (1, 16))
    lines.append(("pass of 16 tokens / of 1 token, batch 1", "<= 1.35", f"{ratio:.2f}", ratio <= 1.35))
    for row in memory:
        name = f"peak memory over the weights / the cache's own size, batch 16, 1,024 tokens, `{row['policy']}`"
        lines.append((name, "<= 1.3", f"{row['peak_over_needed']:.2f}", row["peak_over_needed"] <= 1.3))
    for row in stall:
        gap = row["longest_gap_in_steps"]
        name = f"longest gap while a 1,024-token prompt joins 4 requests, in steps before, `{row['policy']}`"
        text = f"{gap:.1f}; a mean step takes {row['mean_step_over_without']:.2f} of one without"
        lines.append((name, "<= 3", text, gap <= 3))
    marked = [(name, aim, value, "yes" if met else "**no**") for name, aim, value, met in lines]
    return table(("figure", "aim", "measured", "met"), marked)


def beside(peers: list[Row]) -> str:
    """Tokens/s of every engine."""
    batches, labels = sorted({row["batch"] for row in peers}), dict.fromkeys(row["label"] for row in peers)
    found = {(row["label"], row["batch"]): row for row in peers}
    lines = []
    for label in labels:
        cells = [found.get((label, batch)) for batch in batches]
        lines.append((label, *("" if row is None else f"{row['tokens_per_second']:.0f}" for row in cells)))
    return table(("tokens/s", *(f"batch {batch}" for batch in batches)), lines)


def speeds(rows: list[Row], policies: Sequence[str]) -> str:
    """SR (and tau) by suite, policy and batch."""
    batches = sorted({row["batch"] for row in rows})
    lines = []
    for suite in dict.fromkeys(row["suite"] for row in rows):
        for policy in policies:
            mine = {row["batch"]: row for row in rows if (row["suite"], row["policy"]) == (suite, policy)}
            cells = (f"{mine[batch]['speedup']:.2f} ({mine[batch]['tau']:.2f})" for batch in batches)
            lines.append((suite, f"`{policy}`", *cells))
    for policy in policies:
        own = [row for row in rows if row["policy"] == policy]
        means = [geometric(row["speedup"] for row in own if row["batch"] == batch) for batch in batches]
        lines.append(("**mean**", f"`{policy}`", *(f"**{value:.2f}**" for value in means)))
    return table(("suite", "policy", *(f"batch {batch}" for batch in batches)), lines)


def chosen(rows: list[Row]) -> str:
    """The trees that the oracle chose."""
    batches, found = sorted({row["batch"] for row in rows}), of(rows, "oracle")
    suites = dict.fromkeys(row["suite"] for row in rows)
    lines = [(suite, *(str(found[suite, 0.0, batch]["chosen"]) for batch in batches)) for suite in suites]
    return table(("oracle's tree", *(f"batch {batch}" for batch in batches)), lines)


def mean_of(values: Iterable[float | None]) -> float:
    """Mean of those that are known: a cell in which every step read prompts has no clean passes."""
    return mean(value for value in values if value is not None)


def steps(rows: list[Row]) -> str:
    """What a step of `smart` consists of."""
    names = {
        "rows verified": "verified_tokens_per_step",
        "levels drafted": "draft_levels_per_step",
        "pass measured, ms": "step_ms_measured",
        "pass predicted, ms": "step_ms_predicted",
        "drafter, ms": "draft_ms_per_step",
        "policy, ms": "policy_ms_per_step",
        "bookkeeping with the policy, ms": "bookkeeping_ms_per_step",
    }
    batches, own = sorted({row["batch"] for row in rows}), [row for row in rows if row["policy"] == "smart"]
    lines = [
        (label, *(f"{mean_of(row[name] for row in own if row['batch'] == batch):.2f}" for batch in batches))
        for label, name in names.items()
    ]
    return table(("`smart`, means of the suites", *(f"batch {batch}" for batch in batches)), lines)


def main(files: Sequence[str]) -> None:
    """Writes the tables into the page."""
    greedy, sampled, head, exact, peers, flat, stall, memory = (rows_of(file) for file in files)
    parts = {
        "Beside other engines": f"{beside(peers)}\n\n![Tokens/s of every engine](figures/peers.png)",
        "Aims of the engine": engine_aims(peers, flat, stall, memory),
        "Aims of speculation": aims(greedy, sampled, head, exact),
        "Speedup over plain decoding at T=0, tau in brackets": speeds(greedy, ("smart", "oracle", "paper", "eagle2"))
        + "\n\n"
        + chosen(greedy),
        "At T=1": speeds(sampled, ("smart",)),
        "With the head alone at T=0": speeds(head, ("smart",)),
        "Where a step's time goes": steps(greedy),
    }
    text = PAGE.read_text(encoding="utf-8")
    top, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    tables = "\n\n".join(f"## {name}\n\n{part}" for name, part in parts.items())
    PAGE.write_text(f"{top}{BEGIN}\n\n{tables}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 9:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
