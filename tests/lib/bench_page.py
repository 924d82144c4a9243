"""Result files of rows, and the part of docs/performance.md that is made of all of them: bounds with spread and verdict, then every figure."""

import dataclasses
import datetime
import json
import re

import bench_rows
import proc
import proof

FOLDER = proc.ROOT / "docs" / "bench"
PAGE = proc.ROOT / "docs" / "performance.md"
SHOWN = proc.ROOT / "docs" / "shown.json"
REACHED, SHORT, FEW, MISSING = "reached", "**falls short**", "too few pairs", "not measured"
SYSTEM = ("records/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "records per CPU s", "MiB resident", "device bytes ÷ produced")


@dataclasses.dataclass(frozen=True)
class Verdict:
    bound: bench_rows.Bound
    figure: dict | None
    word: str

    @property
    def name(self):
        return self.bound.figure + (f" beside {beside(self.bound.against)}" if self.bound.against else "")

    def detail(self):
        if not self.figure:
            return self.word
        return f"{self.word.strip('*')}: {self.figure['low']} to {self.figure['high']}"


def beside(against):
    return bench_rows.NAMES.get(against, against)


def stamp(found, size):
    """When and of what it was measured."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found | {"commit": proof.commit(), "date": now, "size": "full" if size.whole() else "reduced"}


def keep(row, layout, found, folder=None):
    """Writes one layout of a row; the other stays."""
    folder = folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    parts = load(row, folder) | {layout: found}
    (folder / f"{row.name}.json").write_text(text({"row": row.name, "asked": row.asked, "parts": parts}))


def text(value):
    """JSON, with the pairs of a figure on one line."""
    out = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s*([-\d.e,\s]*?)\s*\]", lambda found: f"[{' '.join(found[1].split())}]", out) + "\n"


def load(row, folder=None):
    """{layout: what was found}"""
    path = (folder or FOLDER) / f"{row.name}.json"
    return json.loads(path.read_text())["parts"] if path.exists() else {}


def verdicts(row, part):
    """[Verdict] of each bound."""
    found = []
    for bound in row.bounds:
        figure = part and find(part, bound.figure, bound.against)
        if not figure:
            word = MISSING
        elif part["size"] != "full" or part["pairs"] < bench_rows.PAIRS:
            word = FEW
        elif part["problem"]:
            word = SHORT
        else:
            word = REACHED if bound.holds(figure) else SHORT
        found.append(Verdict(bound, figure or None, word))
    return found


def find(part, name, against):
    return next((f for f in part["figures"] if f["figure"] == name and f["against"] == against), None)


def number(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def page(folder=None):
    """The whole part."""
    parts = {row.name: load(row, folder) for row in bench_rows.ROWS}
    measured = [part for of in parts.values() for part in of.values()]
    lines = ["## What the instrument asks for", "",
             "Tailrace, every acknowledgement synced, beside Kafka 4.4 with a sync on every append and as it ships, one node, by "
             "`tailrace bench versus` ([bench.md](bench.md)): brokers in turns, each run on fresh data, one client's settings. Latency counts from the moment "
             "at which a record was due. Ratios are made pair by pair; **what is claimed is the end of the spread that is worse for Tailrace**: the lowest of how "
             "many times better it is, the highest of what it costs. Where Kafka couldn't keep up its latencies are lower bounds. *Split*: the broker on CPU 0, with "
             f"one shard, the load on CPU 1, Kafka on the same CPU. Tailrace has `--memory {bench_rows.MEMORY}`, as much as Kafka's heap.", ""]
    if machines := {json.dumps(part["machine"], sort_keys=True) for part in measured if part["machine"]}:
        lines += [*(machine(json.loads(one)) for one in sorted(machines)), ""]
    lines += ["| asked | figure, beside | Tailrace | the other | lowest | median | highest | to reach | |", "|---|---|---|---|---|---|---|---|---|"]
    for row in bench_rows.ROWS:
        lines += bounds(row, parts[row.name].get("split"))
    lines += [""]
    if shared := [row for row in bench_rows.ROWS if "shared" in parts[row.name]]:
        lines += ["### Neither pinned", "", "Both may use both CPUs, Tailrace with `--overprovisioned`. The bounds above aren't of this layout.", "",
                  "| asked | figure, beside | Tailrace | the other | lowest | median | highest |", "|---|---|---|---|---|---|---|"]
        for row in shared:
            for verdict in verdicts(row, parts[row.name]["shared"]):
                lines.append(f"| {row.name} | {verdict.name} | {spread(verdict.figure)} |")
        lines += [""]
    if (FOLDER / "report.html").exists():
        lines += ["![Latency by percentile](bench/curves.svg)", "", "Every run of the main comparison, with its curves and its course: [bench/report.html](bench/report.html).", ""]
    lines += every_figure(parts)
    lines += notes(parts)
    lines += ["Again, one row of it, or one layout of that: `tests/show/bench/2 --row latency-12-5k --layout split`; `--list` names them. The figures themselves: "
              "[docs/bench/](bench/)."]
    return "\n".join(lines)


def machine(m):
    return f"{m['cpus']} CPUs ({m['cpu']}), {m['memory_gib']} GiB, Linux {m['kernel']}."


def spread(figure):
    if not figure:
        return " | | | | "
    return " | ".join((number(figure["ours"]), number(figure["theirs"]), *(number(figure[end]) for end in ("low", "median", "high"))))


def bounds(row, part):
    if row.how == "elsewhere":
        return [f"| {row.asked} | | | | | | | | {elsewhere(row)} |"]
    lines = []
    for verdict in verdicts(row, part):
        lines.append(f"| {row.asked if not lines else ''} | {verdict.name} | {spread(verdict.figure)} | {verdict.bound.asks()} | "
                     f"{verdict.word} |")
    return lines


def elsewhere(row):
    """A row that another proof shows."""
    item = row.why.removeprefix("tests/show/")
    for line in json.loads(SHOWN.read_text()) if SHOWN.exists() else []:
        if line["item"] == item:
            return f"{REACHED if line['pass'] else SHORT} by `{row.why}` at {line['commit']}"
    return f"`{row.why}` shows it"


def every_figure(parts):
    """Medians of each system, and what else was found."""
    lines = ["### Every figure", "", "Medians of the runs.", "",
             "| row | layout | system | " + " | ".join(SYSTEM) + " |", "|---" * (3 + len(SYSTEM)) + "|"]
    more = []
    for row in bench_rows.ROWS:
        for layout, part in parts[row.name].items():
            if row.how == "versus":
                for label, values in systems(part).items():
                    late = part["overloaded"].get(label)
                    name = label + (f" (couldn't keep up in {late} of {part['pairs']})" if late else "")
                    lines.append(f"| {row.name} | {layout} | {name} | " + " | ".join(number(values.get(figure)) for figure in SYSTEM) + " |")
                continue
            for figure in part["figures"]:
                named = figure["figure"] + (f", beside: {figure['against']}" if figure["against"] else "")
                more.append(f"| {row.name} | {named} | {spread(figure)} |")
    if more:
        lines += ["", "Of Tailrace alone; where there is another figure, what is spread is the ratio to it:", "",
                  "| row | figure | Tailrace | the other | lowest | median | highest |", "|---|---|---|---|---|---|---|", *more]
    return [*lines, ""]


def systems(part):
    """{label: {figure: median}}"""
    found = {side["label"]: {} for side in part["sides"]}
    ours = part["sides"][0]["label"]
    for figure in part["figures"]:
        found[ours][figure["figure"]] = figure["ours"]
        found[figure["against"]][figure["figure"]] = figure["theirs"]
    return found


def notes(parts):
    """When, at which commit, and what must be said of it."""
    lines = ["| row | layout | pairs | seconds each | at | measured | |", "|---|---|---|---|---|---|---|"]
    for row in bench_rows.ROWS:
        for layout, part in parts[row.name].items():
            said = [part["problem"] or "", f"{len(part['repeated'])} rounds made again, the instrument was late" if part["repeated"] else "",
                    "reduced size" if part["size"] != "full" else ""]
            lines.append(f"| {row.name} | {layout} | {part['pairs']} | {part.get('length_s', '')} | {part['commit']} | {part['date']} | "
                         f"{'; '.join(filter(None, said)).replace('|', '/')} |")
    versions = {f"{side['label']} {side['version']}" for of in parts.values() for part in of.values() for side in part["sides"] if side["version"]}
    return [*lines, "", f"The others: {', '.join(sorted(versions))}.", ""] if versions else [*lines, ""]
