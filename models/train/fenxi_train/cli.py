"""The command line of fenxi-train."""

import argparse
import dataclasses
import pathlib
import shlex
import sys

from . import cluster, inputs
from .errors import USAGE, Parser, Refusal, positive

SPLITS = ("capture", "host", "day", "label-day", "source", "flow")


def listed(text):
    return tuple(v.strip() for v in text.split(",") if v.strip())


def whole_numbers(text):
    try:
        return tuple(int(v) for v in listed(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers such as 3,5,10") from None


def shares(text):
    try:
        found = tuple(float(v) for v in listed(text))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= v <= 1 for v in found):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers from 0 to 1")
    return found


def share(text):
    found = shares(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not one number from 0 to 1")
    return found[0]


def table_options(parser, required=True):
    parser.add_argument("--join", action="append", default=[], metavar="TABLE", help="further columns for rows with the same capture and flow")
    parser.add_argument("--label-column", default="label", help="column that holds the classes (label); protocol: its first part")
    parser.add_argument("--split-by", choices=SPLITS, default="capture", help="what is held out as a whole (capture)")


def parser():
    made = Parser(prog="fenxi-train", description="Train models for fenxi: from captures and labels to a bundle.")
    commands = made.add_subparsers(dest="command", required=True, parser_class=Parser)

    p = commands.add_parser("series", help="captures or records to a table of flows")
    p.add_argument("inputs", nargs="+", metavar="CAPTURE|RECORDS.jsonl")
    p.add_argument("--out", required=True, metavar="TABLE.csv.gz")
    p.add_argument("--fenxi", default=None, metavar="PROGRAM", help="the program (target/release/fenxi, or the installed one)")
    p.add_argument("--unit", choices=inputs.UNITS, default="data", help="unit of the series in records that do not say it (data); captures give both")
    p.add_argument("--config", default=None, metavar="FILE", help="configuration for the replay")
    cluster.options(p)

    p = commands.add_parser("label", help="give the flows of a table their labels")
    p.add_argument("table", metavar="TABLE")
    p.add_argument("--out", required=True, metavar="TABLE.csv.gz")
    how = p.add_mutually_exclusive_group(required=True)
    how.add_argument("--by-file", metavar="FILE", help="CSV: community_id,label or proto,src,sport,dst,dport,label")
    how.add_argument("--by-hosts", metavar="FILE", help="CSV: address,label")
    how.add_argument("--by-ndpi", metavar="FILE", help="what ndpiReader -C wrote")
    how.add_argument("--by-server-name", nargs="+", metavar="CAPTURE", help="captures to read server names from, by tshark")
    p.add_argument("--suffixes", metavar="FILE", help="CSV: suffix,label; with --by-server-name")
    p.add_argument("--tshark", default="tshark", metavar="PROGRAM")
    p.add_argument("--keep-unlabelled", action="store_true", help="keep flows without a label")
    p.add_argument("--truth", metavar="FILE.jsonl", help="also write the labels for `fenxi ctl model truth`")

    p = commands.add_parser("fit", help="train a model and write its bundle to a new folder")
    p.add_argument("tables", nargs="+", metavar="TABLE")
    p.add_argument("--out", required=True, metavar="DIR", help="folder to create; an existing one is refused")
    p.add_argument("--name", help="the model's name (the folder's)")
    p.add_argument("--model-version", default="1.0.0")
    table_options(p)
    p.add_argument("--unit", choices=inputs.UNITS, default="data")
    p.add_argument("--depths", type=whole_numbers, default=None, help="numbers of elements to answer at, rising (3,5,10)")
    p.add_argument("--k", type=positive, default=None, help="one depth only")
    p.add_argument("--features", type=listed, default=("signed_length",), help=", ".join(inputs.FEATURES))
    p.add_argument("--context", type=listed, default=(), help=", ".join(inputs.CONTEXT))
    p.add_argument("--classes", type=listed, default=None, help="labels to tell apart; others are the outlier class")
    p.add_argument("--min-flows", type=positive, default=20, help="flows that make a label a class (20)")
    p.add_argument("--min-sources", type=positive, default=1, help="sources (tables, or column source) that must have it (1)")
    p.add_argument("--outlier", choices=("unknown", "none"), default="unknown", help="class of all other labels (unknown)")
    p.add_argument("--model", choices=("net", "forest", "extra-trees"), default="net",
                   help="a network, a random forest or extremely randomised trees (net)")
    p.add_argument("--trees", type=positive, default=20, help="trees of a forest (20)")
    p.add_argument("--leaf", type=positive, default=2, help="training rows that a leaf of a tree needs (2)")
    p.add_argument("--foreign", action="append", default=[], metavar="TABLE", help="flows of other networks, of the outlier class; for training only")
    p.add_argument("--network", choices=("dense", "cnn"), default="dense")
    p.add_argument("--hidden", type=whole_numbers, default=None, metavar="N,N", help="units of the dense layers")
    p.add_argument("--nets", type=positive, default=3, help="networks that the final one learns from (3); 1: it learns from the flows alone")
    p.add_argument("--teacher", type=whole_numbers, default=None, metavar="N,N",
                   help="dense layers of larger networks that the final one learns from")
    p.add_argument("--own-lengths", type=positive, default=None, metavar="N",
                   help="commonest lengths to tell apart from their neighbours (all)")
    p.add_argument("--steps", type=positive, default=1500)
    p.add_argument("--port-exchange", type=share, default=0.05, help="share of training flows that get no port or a random one (0.05)")
    p.add_argument("--odd-ports", action="append", default=[], metavar="TABLE", help="labelled flows whose ports say nothing; for training only")
    p.add_argument("--ports-first", action="store_true", help="name a flow by its port at once, and let the model contradict")
    p.add_argument("--jitter", type=share, default=1.0, help="share of training flows whose lengths and times are changed (1)")
    p.add_argument("--vector", type=positive, default=8, help="numbers learned for each length (8)")
    p.add_argument("--min-groups", type=positive, default=2, help="groups in which a length must occur to count by itself (2)")
    p.add_argument("--unfamiliar", type=share, default=0.2, help="share of made-up flows of the outlier class (0.2)")
    p.add_argument("--sureness", type=share, default=0.7, help="probability of that class for them (0.7)")
    p.add_argument("--unfamiliar-ports", choices=("random", "kept"), default="random", help="ports of those flows (random)")
    p.add_argument("--near-misses", type=share, default=0.0, help="share of those flows whose lengths are a few bytes off (0)")
    p.add_argument("--hosts", action="store_true", help="name hosts by their first flows: measure it, and write the table [hosts]")
    p.add_argument("--leave-labels-out", action="store_true", help="measure what flows of labels never seen are called")
    p.add_argument("--platform", type=listed, action="append", default=[], metavar="LABEL,LABEL",
                   help="labels that --leave-labels-out also leaves out together")
    p.add_argument("--precision", type=share, default=0.98, help="share right that sure answers must reach (0.98)")
    p.add_argument("--confidence", type=shares, default=None, help="confidences by depth, instead of measured ones")
    p.add_argument("--min-confidence", type=share, default=0.7, help="top probability that an answer which never became sure needs (0.7)")
    p.add_argument("--port-precision", type=share, default=0.9, help="precision that a port must reach (0.9)")
    p.add_argument("--no-ports", action="store_true", help="no table of ports in the bundle")
    p.add_argument("--folds", type=positive, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ablate", action="store_true", help="measure the model without its context as well")
    p.add_argument("--held-out", default=None, metavar="FILE.npz", help="file to create: the predictions for held-out flows, for cascade")
    p.add_argument("--int8", default=None, metavar="DIR", help="folder to create for the same network in 8 bits")
    p.add_argument("--score-as", type=listed, default=(), metavar="LABEL,...", help="score with all labels but these taken as one, too")
    p.add_argument("--also-split-by", choices=SPLITS, default=None, help="score by a second split, too")
    p.add_argument("--limits", default="", metavar="TEXT", help="last words of the card, or @FILE")
    p.add_argument("--about", default="", metavar="TEXT", help="first paragraph of the card, or @FILE")
    cluster.options(p)

    p = commands.add_parser("card", help="print the card of a bundle, and check its model")
    p.add_argument("bundle", metavar="DIR")
    p.add_argument("--time", action="store_true", help="time a row, too")
    p.add_argument("--beside", default=None, metavar="DIR", help="time a row beside one of another bundle, in turn, in batches of 256")

    p = commands.add_parser("compare", help="score bundles on labelled flows, beside the baselines")
    p.add_argument("bundles", nargs="+", metavar="DIR")
    p.add_argument("--labels", required=True, action="append", metavar="TABLE")
    table_options(p)
    p.add_argument("--coverage", action="store_true", help="share of all flows, packets and bytes that get a name, too")
    p.add_argument("--coverage-by", default=None, metavar="COLUMN", help="part the flows of --coverage by a column")
    p.add_argument("--all-ports", action="store_true", help="score flows that begin mid-stream too, with their port")
    p.add_argument("--hosts", action="store_true", help="score hosts by the sum of their first flows, too")

    p = commands.add_parser("ranges", help="write the ranges that the engine's integers of a bundle fill")
    p.add_argument("bundle", metavar="DIR")
    p.add_argument("tables", nargs="+", metavar="TABLE",
                   help="flows like those it was trained on, labelled or not")
    p.add_argument("--join", action="append", default=[], metavar="TABLE",
                   help="further columns for rows with the same capture and flow")

    p = commands.add_parser("volume", help="train a model of what flows will weigh, from samples with their truth")
    p.add_argument("samples", nargs="*", metavar="SAMPLES.jsonl")
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", help="folder to create; an existing one is refused")
    what.add_argument("--evaluate", action="store_true", help="score models in order of time instead")
    p.add_argument("--name", help="the model's name (the folder's)")
    p.add_argument("--model-version", default="1.0.0")
    p.add_argument("--depths", type=whole_numbers, default=(3, 5, 10), help="depths to learn, rising (3,5,10)")
    p.add_argument("--edges", type=shares, default=None,
                   help="three shares of the flows at which bands begin (0.75,0.95,0.99)")
    p.add_argument("--blank", type=whole_numbers, default=None, metavar="BYTES,BYTES,BYTES",
                   help="the table of servers as a model, with bands that begin at these bytes to come, "
                        "for fenxi-tune to start from; no samples")
    p.add_argument("--newest", type=positive, default=None, metavar="N",
                   help="learn from the newest samples only")
    p.add_argument("--no-servers", action="store_true",
                   help="leave out the memory of servers; the model then serves other networks, too")
    p.add_argument("--no-times", action="store_true",
                   help="leave out the times between packets, which differ between networks")
    p.add_argument("--trees", type=positive, default=20, help="trees of the forest (20)")
    p.add_argument("--leaf", type=positive, default=6, help="samples that a leaf of a tree needs (6)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--marked", type=shares, default=(0.01, 0.02, 0.05),
                   help="with --evaluate: shares of the flows that are marked (0.01,0.02,0.05)")
    p.add_argument("--first", type=positive, default=54, metavar="N",
                   help="with --evaluate: captures before the first score (54)")
    p.add_argument("--every", type=positive, default=10, metavar="N",
                   help="with --evaluate: captures between two models (10)")
    p.add_argument("--window", type=positive, default=200, metavar="N",
                   help="with --evaluate: captures that a model learns from (200)")

    p = commands.add_parser("cascade", help="score a cascade of a cheap and a large bundle against the large one alone")
    p.add_argument("first", metavar="FIRST")
    p.add_argument("second", metavar="SECOND")
    answers = p.add_mutually_exclusive_group(required=True)
    answers.add_argument("--labels", action="append", metavar="TABLE", help="labelled flows that none has seen")
    answers.add_argument("--held-out", nargs="+", metavar="FILE.npz", help="what fit --held-out wrote for the first, the second, and the models of --beside")
    p.add_argument("--beside", nargs="+", default=[], metavar="DIR", help="bundles to compare alone, too, at the depth of the second")
    table_options(p)
    p.add_argument("--first-depth", type=positive, default=None, metavar="N", help="elements that the first sees (its greatest depth)")
    p.add_argument("--second-depth", type=positive, default=None, metavar="N", help="elements that the second sees (its greatest depth)")
    p.add_argument("--confidence", type=shares, default=None, help="confidences below which the second runs, instead of the usual ones")
    p.add_argument("--batch", type=positive, default=256, help="rows in a batch when device time is measured (256)")
    p.add_argument("--out", default=None, metavar="PLOT.svg", help="plot to create: accuracy over device time")
    p.add_argument("--json", default=None, metavar="FILE.json", help="file to create: the same figures for programs")
    return made


def text_of(argument):
    """A text, or the content of @FILE."""
    if not argument.startswith("@"):
        return argument
    from .table import open_text

    with open_text(argument[1:]) as file:
        return file.read()


def shape_of(args):
    """The network that the options describe."""
    from .network import Shape

    convolutions = (32, 64) if args.network == "cnn" else ()
    hidden = args.hidden or ((144,) if args.network == "cnn" else (96, 64))
    return Shape(convolutions=convolutions, hidden=hidden, steps=args.steps, port_exchange=args.port_exchange,
                 jitter=args.jitter, vector=args.vector, length_dropout=0.15, dropout=0.5)


def options_of(args):
    """How to train and score."""
    from . import bundle, fit, forest, heldout

    if args.ports_first and (args.no_ports or args.hosts):
        raise Refusal(f"--ports-first: leave out {'--no-ports' if args.no_ports else '--hosts'}", USAGE)
    for option in ("odd_ports", "teacher", "own_lengths"):
        if getattr(args, option) and args.model != "net":
            name = option.replace("_", "-")
            raise Refusal(f"--{name}: only a network learns so; give --model net", USAGE)
    if args.int8 and args.model != "net":
        raise Refusal("--int8: a forest has no 8-bit form; give --model net", USAGE)
    if args.int8 and pathlib.Path(args.int8).absolute() == pathlib.Path(args.out).absolute():
        raise Refusal("--int8: give another folder than --out", USAGE)
    shape = shape_of(args)
    teacher = args.teacher and dataclasses.replace(shape, hidden=args.teacher)
    size = forest.Size(trees=args.trees, leaf=args.leaf, random_cuts=args.model == "extra-trees")
    return fit.Options(
        model="net" if args.model == "net" else "forest", size=size, shape=shape, nets=args.nets,
        teacher=teacher, own_lengths=args.own_lengths,
        min_groups=args.min_groups, unfamiliar=args.unfamiliar, sureness=args.sureness,
        unfamiliar_ports=args.unfamiliar_ports == "random", near_misses=args.near_misses,
        leave_labels_out=args.leave_labels_out, platforms=tuple(args.platform), hosts=args.hosts,
        ports_first=args.ports_first, precision=args.precision, min_confidence=args.min_confidence, confidence=args.confidence,
        port_precision=2.0 if args.no_ports else args.port_precision, folds=args.folds, seed=args.seed, ablate=args.ablate,
        int8=args.int8 and bundle.new_folder(args.int8), score_as=args.score_as, second_split=args.also_split_by,
        classes_given=args.classes is not None, limits=text_of(args.limits), held_out=heldout.new_file(args.held_out, "--held-out"),
    )


def flows_and_options(args):
    """What `fit` learns from, and how."""
    from . import data, oddports, table

    if args.k and args.depths:
        raise Refusal("give --k or --depths, not both", USAGE)
    depths = args.depths or ((args.k,) if args.k else (3, 5, 10))
    local = [name for name in args.context if name in inputs.LOCAL]
    if local:
        which = ",".join(local)
        raise Refusal(f"--context {which}: tables have none; volume learns from it", USAGE)
    input = inputs.Input(args.unit, depths, args.features, args.context)
    if args.confidence and len(args.confidence) != len(depths):
        raise Refusal(f"--confidence: {len(args.confidence)} numbers for {len(depths)} depths", USAGE)
    if args.folds < 2:
        raise Refusal("--folds: give 2 or more", USAGE)
    options, outlier = options_of(args), None if args.outlier == "none" else args.outlier
    flows = data.load(args.tables, input, args.label_column, args.join, args.split_by, args.classes and list(args.classes),
                      args.min_flows, args.min_sources, outlier, args.also_split_by, table.note)
    if args.foreign:
        if flows.outlier is None:
            raise Refusal("--foreign: there is no outlier class for these flows; give --outlier unknown", USAGE)
        options = dataclasses.replace(options, foreign=data.foreign(args.foreign, flows, args.join))
    if args.odd_ports:
        odd = oddports.load(args.odd_ports, flows, args.label_column)
        options = dataclasses.replace(options, foreign=options.foreign.beside(odd) if options.foreign else odd)
    for option, labels in (("--platform", [n for p in args.platform for n in p]), ("--score-as", args.score_as)):
        strange = [n for n in labels if n not in flows.names]
        if strange:
            raise Refusal(f"{option} {','.join(strange)}: no such label; known are {', '.join(flows.names)}", USAGE)
    return flows, options


def fit(args):
    from . import bundle, fit

    out, about = bundle.new_folder(args.out), text_of(args.about)
    flows, options = flows_and_options(args)
    with cluster.workers(args):
        fit.run(flows, options, args.split_by, out, args.name or out.name, args.model_version,
                args.shown, about)
    for folder in filter(None, (out, options.int8)):
        print(f"{folder}: written; fenxi model check {folder}")


def show_card(args):
    from . import bundle, check

    made = bundle.read(args.bundle)
    card = made.folder / "CARD.md"
    if card.is_file():
        print(card.read_text())
    found = check.problems(made)
    for line in found:
        print(f"fenxi-train: {args.bundle}: {line}", file=sys.stderr)
    if not found:
        print("Batches agree to the bit; golden outputs match.")
    if args.time:
        for size in check.TIMED_BATCHES:
            print(f"batch {size}: {check.time_per_row_us(made, size):.2f} us per row")
    if args.beside:
        ratio, own, other = check.cost_ratio(made, bundle.read(args.beside))
        print(f"a row costs {ratio:.2f} times one of {args.beside} ({own:.2f} and {other:.2f} us)")
    return 65 if found else 0


def show_comparison(args):
    from . import bundle, calibrate, compare, data

    for folder in args.bundles:
        text, _ = compare.report(folder, args.labels, args.label_column, args.join, args.split_by, args.all_ports)
        print(text)
        if args.coverage or args.coverage_by:
            print(compare.coverage(folder, args.labels, args.label_column, args.join, args.coverage_by))
        if args.hosts:
            made = bundle.read(folder)
            flows = data.of_bundle(made, args.labels, args.label_column, args.join, args.split_by)
            found = compare.scored(made, flows, flows.seen_context())
            for first in calibrate.FIRST_FLOWS:
                right, count = calibrate.hosts(flows, found, made.input.depths, first)
                print(f"Hosts by their first {first} flows: {right:.3f} of {count} right")
            print()


def write_ranges(args):
    from . import bundle, ranges

    made = bundle.read(args.bundle)
    rows = ranges.rows_of_tables(made, args.tables, args.join)
    found = ranges.write(made, *rows)
    print(f"{made.folder / bundle.RANGES}: written; {len(found)} layers, from {len(rows[0])} rows")


def train_volume(args):
    from . import bundle, forest, volume, walkforward

    shares_below = args.edges or volume.EDGES
    if len(shares_below) != len(volume.EDGES) or list(shares_below) != sorted(set(shares_below)):
        raise Refusal(f"--edges: give {len(volume.EDGES)} rising shares such as 0.75,0.95,0.99", USAGE)
    if bool(args.samples) == bool(args.blank):
        raise Refusal("give samples, or --blank and none", USAGE)
    if args.blank and (args.evaluate or len(args.blank) != len(volume.EDGES)
                       or list(args.blank) != sorted({0, *args.blank} - {0})):
        raise Refusal(f"--blank: give {len(volume.EDGES)} rising numbers of bytes, and --out", USAGE)
    out = args.out and bundle.new_folder(args.out)
    input = volume.input_of(args.depths, not args.no_servers, not args.no_times)
    samples = volume.blank(input, args.blank) if args.blank else volume.read(args.samples, input, args.newest)
    # Trees of a blank model are short, and fenxi refuses one that costs over twice as much.
    trees = 2 * args.trees if args.blank else args.trees
    size = forest.Size(trees=trees, leaf=args.leaf, features=0.4)
    if args.evaluate:
        for line in walkforward.report(samples, size, shares_below, args):
            print(line, flush=True)
        return
    made = volume.fit(samples, size, shares_below, args.blank, args.seed)
    volume.write(out, args.name or out.name, args.model_version, samples, made)
    of = "knows no flow yet" if args.blank else f"from {len(samples.counts):,} samples"
    print(f"{out}: written, {of}; {made.forest.description}")


def show_cascade(args):
    from . import cascade

    cascade.run(args)


def shown(argument):
    """An argument as the card shows it: files by their name, because folders differ between machines."""
    at = "@" if argument.startswith("@") else ""
    return at + pathlib.PurePath(argument).name if "/" in argument and " " not in argument else argument


def main(arguments):
    args = parser().parse_args(arguments)
    args.shown = shlex.join(["fenxi-train", *map(shown, arguments)])
    try:
        if args.command == "series":
            from . import series

            with cluster.workers(args):
                return series.run(args) or 0
        if args.command == "label":
            from . import label

            return label.run(args) or 0
        return {"fit": fit, "card": show_card, "compare": show_comparison,
                "ranges": write_ranges, "volume": train_volume, "cascade": show_cascade}[args.command](args) or 0
    except Refusal as refusal:
        print(f"fenxi-train: {refusal}", file=sys.stderr)
        return refusal.code
    except KeyboardInterrupt:
        return 130
