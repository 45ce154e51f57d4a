"""Figures of FENXI (Gallo, Finamore, Simon, Rossi, 2021)."""

import json
import tempfile
from datetime import datetime
from pathlib import Path

from ..report import ROOT, Skip, output_of
from .run import Figure, Outcome, values

LINK_BYTES_PER_S = 100e9 / 8
K, LONG_LIVED = 10, 35  # packets
NEEDED_PER_S = 50e3  # series, for a link of 100 Gb/s
NEAR = 0.5
MODEL = "app-id-k10"


def table1(run):
    summary = run.replay()
    series = summary["series"]["emitted"] + summary["series"]["withheld"]
    scale = LINK_BYTES_PER_S / summary["bytes"]
    counts = [summary["packets"], summary["flows"]["begun"], series]
    packets, flows, of_series = (count * scale for count in counts)
    columns = ["traffic", "Mpps", "thousand flows/s", "thousand series/s"]
    rows = [
        ["captures", packets / 1e6, flows / 1e3, of_series / 1e3],
        ["paper, average", 13.4, 56.6, 37.3],
    ]
    share = series / counts[1]
    why = (
        f"{of_series / 1e3:.0f} thousand series/s and {packets / 1e6:.1f} Mpps: a frame has "
        f"{summary['bytes'] / counts[0]:.0f} bytes, a flow {counts[0] / counts[1]:.0f} packets, "
        f"and {share:.0%} of the flows reach {K} packets (paper: 932, 251, 67 %). Test captures "
        "are mostly short flows, so that they ask more of a link than real traffic does."
    )
    bars = {name: thousands for name, _, _, thousands in rows}
    holds = of_series <= NEEDED_PER_S and packets <= 15e6
    return Outcome(columns, rows, holds, why, bars=bars, y="thousand series/s")


def engine(run):
    """Rows/s by device, by batch: ONNX Runtime, and the engine with the best instructions here."""
    results = run.lab("engine", 20)
    of = f"{MODEL}, "
    devices = [line.removeprefix(of) for line in results if line.startswith(of)]
    best = next(it for it in devices if "onnxruntime" not in it and "times faster" not in it)
    names = {f"{of}onnxruntime": "ONNX Runtime", f"{of}{best}": f"engine, {best}"}
    names[f"{of}{best}, floats"] = f"engine, {best}, floats"
    rates = {name: values(results, line) for line, name in names.items()}
    return {name: [(x, 1e9 / ns) for x, ns in points] for name, points in rates.items()}


def card(run):
    """Rows/s of a graphics card with --library, by batch, under the card's name; else nothing."""
    if not run.args.library:
        return {}
    name = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").strip()
    options = ["--json", "--device", "cuda", "--sizes", "1,8,32,256,1024,4096"]
    # cuDNN plans convolutions again whenever a session's batch size changes.
    options += ["--set", "accel.fixed_sizes=true", "--set"]
    model = ["--model", ROOT / "models" / MODEL]
    shown = f"fenxi profile --model models/{MODEL} {' '.join(options)} accel.library=LIBRARY"
    library = f"accel.library={run.args.library.resolve()}"
    text = run.output("fenxi", "profile", *model, *options, library, shown=shown)
    points = json.loads(text)["points"]
    return {name: [(it["rows"], it["rows"] / it["median_us"] * 1e6) for it in points]}


def ahead(card, engine):
    """From which batch on a card is ahead of a core whose largest batch gives its best rate."""
    best = engine[-1][1]
    sizes = [x for x, rate in card if rate > best]
    if not sizes:
        return "is behind the engine on one core at every batch"
    return f"is ahead of the engine on one core at batches of {min(sizes)}"


def fig1a(run):
    rates = engine(run)
    own = next(points for line, points in rates.items() if line.startswith("engine"))
    of_card = card(run)
    rates.update(of_card)
    rows = [[line, x, rate / 1e3] for line, points in rates.items() for x, rate in points]
    growth = {line: points[-1][1] / points[0][1] for line, points in rates.items()}
    told = ", ".join(f"{line} {times:.1f}" for line, times in growth.items())
    why = f"The largest batch against one series at once, times as fast: {told}."
    why += "".join(f" The {line} {ahead(points, own)}." for line, points in of_card.items())
    thousands = {line: [(x, rate / 1e3) for x, rate in it] for line, it in rates.items()}
    return Outcome(
        ["device", "batch", "thousand series/s"],
        rows,
        all(times > 1 for times in growth.values()),
        why,
        thousands,
        "series in a batch",
        "thousand series/s, one core",
    )


def fig2a(run):
    delays = {
        line: [(x, x / rate * 1e3) for x, rate in points] for line, points in engine(run).items()
    }
    complete = [(x, x / NEEDED_PER_S * 1e3) for x, _ in next(iter(delays.values()))]
    ratios = {
        line: min(filled / took for (_, filled), (_, took) in zip(complete, points))
        for line, points in delays.items()
    }
    lines = {**delays, "batch complete at 50 thousand series/s": complete}
    rows = [[line, x, ms] for line, points in lines.items() for x, ms in points]
    told = ", ".join(f"{line} {ratio:.1f}" for line, ratio in ratios.items())
    why = f"Time until a batch is complete against its processing, least of all batches: {told}."
    holds = all(ratio > 1 for ratio in ratios.values())
    axes = ("series in a batch", "ms")
    return Outcome(["device", "batch", "ms"], rows, holds, why, lines, *axes)


def records(run, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flows.jsonl"
        summary = run.replay(*options, flows=path)
        return summary, [json.loads(line) for line in path.read_text().splitlines()]


def fig2b(run):
    _, told = records(run)
    labels = {it["flow_id"]: at(it["time"]) for it in told if it["type"] == "label"}
    lives = [
        max(0.0, (at(it["last"]) - labels[it["flow_id"]]).total_seconds())
        for it in told
        if it["type"] == "flow"
        and it["final"]
        and it["flow_id"] in labels
        and it["packets_fwd"] + it["packets_rev"] < LONG_LIVED
    ]
    if not lives:
        raise Skip("the captures have no flow with at least 10 packets and fewer than 35")
    delays_ms = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000]
    dead = [(ms, sum(life * 1e3 <= ms for life in lives) / len(lives)) for ms in delays_ms]
    (_, soon), (_, late) = dead[2], dead[-1]
    why = (
        f"Of {len(lives)} short-lived flows {soon:.0%} end within 10 ms of their {K}th packet, "
        f"and {1 - late:.0%} live on for more than a minute."
    )
    lines = {f"flows of {K} to {LONG_LIVED - 1} packets": dead}
    axes = ("ms from the 10th packet to the label", "share of flows that have ended")
    columns = ["delay_ms", "share_ended"]
    return Outcome(columns, list(map(list, dead)), soon > 0 and late < 1, why, lines, *axes)


def at(text):
    return datetime.fromisoformat(text)


def fig2c(run):
    delays_ms = [1, 10, 100, 1_000, 10_000]
    labelled = run.replay()["verdicts"]["labelled"]
    missed = []
    for ms in delays_ms:
        late = run.replay("--label-delay-ms", str(ms))["verdicts"]["labelled"]
        missed.append((ms, 1 - late / labelled))
    shares = [share for _, share in missed]
    why = (
        f"A label {delays_ms[1]} ms late misses {shares[1]:.0%} of the packets from the {K}th on, "
        f"one {delays_ms[-1] // 1000} s late {shares[-1]:.0%}; of all flows, not only long ones."
    )
    lines = {"all flows": missed}
    axes = ("ms from the 10th packet to the label", "share of packets that miss it")
    holds = shares == sorted(shares) and shares[-1] > shares[0]
    return Outcome(["delay_ms", "share_missed"], list(map(list, missed)), holds, why, lines, *axes)


def fig6(run):
    results = run.lab("table", 20)
    lines = {line: values(results, line) for line in results}
    rates = {line: dict(points) for line, points in lines.items()}
    least, most = min(rates["load 0"]), max(rates["load 0"])
    growth = min(of[most] / of[least] for line, of in rates.items() if line != "no-op")
    fall = rates["load 0.75"][most] / rates["load 0.25"][most]
    to_no_op = rates["load 0"][most] / rates["no-op"][most]
    near = to_no_op >= NEAR
    why = (
        f"Bursts of {most:g} against {least:g}: at least {growth:.1f} times as fast; load 0.75 "
        f"against 0.25: {fall:.2f}; load 0 against no operation: {to_no_op:.2f}."
    )
    if not near:
        why += " From memory, forwarding alone takes next to no time; the paper's took a card's."
    rows = [[line, x, rate] for line, points in lines.items() for x, rate in points]
    axes = ("packets in a burst", "Mpps, one core")
    holds = growth > 1 and fall < 1 and near
    return Outcome(["load", "burst", "Mpps"], rows, holds, why, lines, *axes)


def fig7(run):
    results = run.lab("scale", 20)
    lines = {line: values(results, line) for line in results}
    one, *_, more = lines.values()
    growth = min(fast[1] / slow[1] for fast, slow in zip(more, one))
    fall = one[-1][1] / one[0][1]
    why = (
        f"{list(lines)[-1]} against one: at least {growth:.2f} times as fast; {one[-1][0]:,.0f} "
        f"flows against {one[0][0]:,.0f}, one worker: {fall:.2f}."
    )
    rows = [[line, x, rate] for line, points in lines.items() for x, rate in points]
    holds = len(lines) > 1 and growth > 1 and fall < 1
    return Outcome(["workers", "flows", "Mpps"], rows, holds, why, lines, "flows", "Mpps, summed")


def fig9(run):
    """Each series against those before it, as if their answers were already in the cache."""
    _, told = records(run, "--series")
    ended = {it["flow_id"]: it for it in told if it["type"] == "flow" and it["final"]}
    labels = [it for it in told if it["type"] == "label"]
    rows = []
    for prefix in (2, 3, 4, 5, 6, 8, K):
        cache, found, wrong = {}, 0, 0
        for label in labels:
            key = tuple(ended[label["flow_id"]]["series"][:prefix])
            found += key in cache
            wrong += cache.setdefault(key, label["label"]) != label["label"]
        options = ["--set", f"cache.prefix={prefix}", "--set", "analytics.batch_sizes=[8]"]
        own = run.replay(*options)["cache"]
        shares = (found / len(labels), wrong / len(labels), own["hits"] / own["lookups"])
        rows.append([prefix, *shares])
    hits = {prefix: hit for prefix, hit, *_ in rows}
    errors = {prefix: error for prefix, _, error, _ in rows}
    gain = hits[4] / hits[K]
    parts = [gain >= 3, hits[6] >= 0.3 and errors[6] < 0.01]
    missed = [part for part, holds in zip(("three times", "30 % and 1 %"), parts) if not holds]
    why = (
        f"Of {len(labels)} series, a prefix of 4 finds {hits[4]:.1%}, {gain:.1f} times as many as "
        f"the whole series ({hits[K]:.1%}), and gives {errors[4]:.2%} another label; a prefix of 6 "
        f"finds {hits[6]:.1%} and gives {errors[6]:.2%} another one. These captures repeat whole "
        "series more often than the paper's traffic did. The figures follow from the series and "
        "labels of a replay without a cache. The daemon's own cache finds less in a replay at full "
        "speed, where seconds of traffic take a millisecond and the answers to many earlier series "
        "are still to come; how much less differs by run."
    )
    lines = {
        "found": [(prefix, hit) for prefix, hit, *_ in rows],
        "found, with another label": [(prefix, error) for prefix, _, error, _ in rows],
        "found by the daemon at full speed": [(prefix, own) for prefix, *_, own in rows],
    }
    why += f" Missed: {', '.join(missed)}." if missed else ""
    columns = ["prefix", "found", "found_with_another_label", "found_at_full_speed_(by_run)"]
    axes = ("packets of the prefix", "share of series")
    return Outcome(columns, rows, all(parts), why, lines, *axes, is_log=False)


FIGURES = [
    Figure(
        "fenxi-table1",
        "FENXI, Table 1: traffic of a link of 100 Gb/s",
        "Traffic scaled to a full link of 100 Gb/s has at most 15 million packets and 50 thousand "
        "series per second.",
        "counts",
        table1,
    ),
    Figure(
        "fenxi-fig1a",
        "FENXI, Fig. 1a: series per second by batch",
        "Larger batches are classified faster, on every device.",
        "real time",
        fig1a,
    ),
    Figure(
        "fenxi-fig2a",
        "FENXI, Fig. 2a: delay by batch",
        "At 50 thousand series per second, a batch takes longer to become complete than to be "
        "processed.",
        "real time",
        fig2a,
    ),
    Figure(
        "fenxi-fig2b",
        "FENXI, Fig. 2b: short-lived flows that end before their label",
        "After their tenth packet, short-lived flows live on for milliseconds to minutes, so that "
        "a late label finds some of them ended.",
        "counts",
        fig2b,
    ),
    Figure(
        "fenxi-fig2c",
        "FENXI, Fig. 2c: packets that come before the label",
        "The later the label, the more packets pass without it.",
        "counts",
        fig2c,
    ),
    Figure(
        "fenxi-fig6",
        "FENXI, Fig. 6: flow manager by burst and load of its table",
        "Larger bursts are processed faster, and a fuller table more slowly; at a low load, "
        "packets pass nearly as fast as where they are only forwarded.",
        "real time",
        fig6,
    ),
    Figure(
        "fenxi-fig7",
        "FENXI, Fig. 7: flow manager by workers and flows",
        "More workers process more packets; more flows slow them at the same load.",
        "real time",
        fig7,
    ),
    Figure(
        "fenxi-fig9",
        "FENXI, Fig. 9: prefix cache",
        "A cache by the first 4 packets finds three times as many series as one by all 10, but "
        "errs more; by the first 6 it saves about 30 % of the work with less than 1 % of errors.",
        "counts",
        fig9,
    ),
]
