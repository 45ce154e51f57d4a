"""fenxi-tune: learns on from what fenxi samples, and offers it better models.

Every few seconds is a round: the model that the last round made is evaluated, offered if its
stability has settled, and learns the samples that came since.  fenxi judges an offer itself; this
service may be killed, hang or lie, and fenxi goes on.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import time

from . import bundle, calibrate, drift, fleet, replay, topic, tuner, volume, wire
from .cli import share
from .errors import CANNOT_CREATE, Parser, Refusal, positive

NEW_MIN = 100  # samples of a round
KEPT = 5  # bundles
BY_CHANCE = 1.96 * math.sqrt(2)  # standard errors: 5 % of pairs of one mean lie further apart
ROUTERS_MAX, ROUTER_MAX = 10_000, 255  # in the status; letters of a name
TOLD_MAX = 100_000  # labels that fenxi is told at once
OFFERED_MAX = 200  # contents that are not offered again
UNDER_WAY = 409  # fenxi has not looked at it: another is under way, or a reload is not confirmed
ALARMS_MAX = 20  # in the status
TUNERS = {"forest": tuner.Forest, "net": replay.Network}
FOLDERS = "model-" + 8 * "[0-9]"
STATUS = "status.json"


EPILOG = """\
It needs the user of fenxi, or root. Bundles that fenxi took, the newest five and those in use, and
status.json are in the folder of --into. Labels (--labels) are lines of JSON, a flow as in records and its label;
fenxi gets them too, of the newest flows (--window), and judges by them:
  {"first": "2026-11-27T09:00:00.123456Z", "proto": 6, "src_port": 40000, "dst_port": 443, "label": "video"}"""


def parser():
    made = Parser(
        prog="fenxi-tune", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description="Learn from the flows that a running fenxi samples; offer it better models.")
    add = made.add_argument
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--learn", metavar="SOCKET", help="learn.socket of fenxi")
    source.add_argument("--kafka", metavar="BROKERS",
        help="HOST:PORT,...: learns from all routers that send samples to --topic")
    add("--topic", default="fenxi-samples", help="learn.topic of the routers (fenxi-samples)")
    add("--kafka-option", type=option, action="append", default=[], metavar="NAME=VALUE",
        help="property of librdkafka, such as security.protocol=ssl; may be given again")
    add("--control", metavar="SOCKET", help="control socket of fenxi; without it, bundles are only "
        "published in the folder of --into, for fenxi-tune pull")
    add("--sign", type=shlex.split, metavar="COMMAND",
        help="signs model.toml, whose path is added, such as 'minisign -S -s KEY -m'")
    add("--task", required=True, help="task whose model learns")
    add("--like", required=True, metavar="BUNDLE",
        help="the task's bundle: inputs, labels and target of new ones")
    add("--into", required=True, metavar="DIR", help="folder for bundles; made if missing")
    add("--labels", metavar="FILE.jsonl",
        help="labels that an operator gave, for a model whose labels are no bands")
    add("--model", choices=TUNERS, default="forest",
        help="a forest of the newest flows (the default), or a network that also rehearses older ones")
    add("--window", type=positive, default=20_000, metavar="N",
        help="flows to learn from, the newest (20000)")
    add("--every", type=positive, default=30, metavar="SECONDS",
        help="time between two rounds (30)")
    add("--rounds", type=positive, default=3, metavar="N",
        help="rounds that must agree before an offer (3)")
    add("--range", type=share, default=0.05, metavar="SHARE",
        help="how far the loss of these rounds may lie apart, as a share of it (0.05)")
    add("--false-alarm-hours", type=positive, default=168, metavar="HOURS",
        help="mean time between two false alarms of drift (168)")
    return made


def option(text):
    name, is_given, value = text.partition("=")
    if not is_given:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


class Service:
    """Rounds of one tuner; `offer` sends a bundle to fenxi, and `tell` a teacher's labels."""

    def __init__(self, args, made, teacher, offer, say, in_use=frozenset, tell=None):
        self.args, self.tuner, self.teacher = args, made, teacher
        self.offer_to, self.say, self.in_use, self.tell_to = offer, say, in_use, tell
        self.into = pathlib.Path(args.into)
        self.fresh = collections.deque(maxlen=args.window * len(made.like.input.depths))
        self.losses = collections.deque(maxlen=args.rounds)
        self.drift = drift.Drift(args.false_alarm_hours)
        self.rounds = self.strange = self.dropped = self.until_us = 0
        self.why_strange = None
        self.routers = {}  # by name, of those that share a topic
        self.new_loss = None  # of the samples of the last round, before they were learned
        before = read_status(self.into)
        self.number, self.answer = before["number"], ""
        self.offered = collections.deque(before["offered"], OFFERED_MAX)
        self.alarms = collections.deque(before["alarms"], ALARMS_MAX)

    def run(self, frames, clock=time.monotonic):
        """Works until the frames end."""
        due = clock() + self.args.every
        for frame in frames:
            self.take(frame)
            if clock() >= due:
                self.round()
                due = clock() + self.args.every

    def take(self, frame):
        """Keeps the samples of a frame for the next round, and looks for drift."""
        like, now_us = self.tuner.like, count(frame, "time_us")
        self.dropped += count(frame, "dropped")
        self.take_router(frame, now_us)
        for sample in frame["samples"]:
            try:
                self.take_sample(sample, like, now_us)
            except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
                self.strange += 1
                what = f"no {error.args[0]}" if isinstance(error, KeyError) else error
                self.why_strange = self.why_strange or f"samples are left out, such as one: {what}"

    def take_router(self, frame, now_us):
        name = frame.get("router")
        if not isinstance(name, str) or len(name) > ROUTER_MAX:
            return
        if name in self.routers or len(self.routers) < ROUTERS_MAX:
            known = self.routers.setdefault(name, {"samples": 0, "dropped": 0})
            known["samples"] += len(frame["samples"])
            known["dropped"] += count(frame, "dropped")
            known["time_us"] = now_us

    def take_sample(self, sample, like, now_us):
        if sample["task"] != self.args.task or not volume.asked_of(sample, like.input):
            return
        label, alarms = self.teacher.label(sample), []
        if len(sample["elements"]) == like.input.depths[0]:  # of each flow once
            alarms = self.drift.add(sample, like.labels, now_us)
        if label in like.labels or self.teacher.may_come_later:
            self.fresh.append(sample)
        for what, value, bound in alarms:
            self.say(None, f"drift: {what} {value:.3f}, bound {bound:.3f}")
            self.alarms.append({"time_us": now_us, "what": what, "value": value, "bound": bound})
        if alarms:
            self.write_status()

    def round(self):
        """Evaluates, offers, learns."""
        self.say("samples", self.why_strange)
        self.why_strange = None
        try:
            self.teacher.refresh()
            self.say("labels", None)
        except Refusal as refusal:
            self.say("labels", str(refusal))
        self.tell()
        batch, later = tuner.batch_of(self.fresh, self.teacher, self.tuner.like)
        if batch is None or len(batch.counts) < NEW_MIN:
            return
        self.fresh.clear()
        self.fresh.extend(later)
        self.rounds += 1
        stability, outputs = self.tuner.evaluate(batch)
        if math.isfinite(stability):
            self.losses.append(stability)
            self.new_loss = calibrate.log_loss(outputs, batch.classes, batch.weights)
        if self.spread() <= self.args.range:
            self.offer()
        self.tuner.adapt(batch)
        self.until_us = max(self.until_us, int(batch.began_us.max()))
        self.write_status()

    def tell(self):
        """Gives fenxi the labels of the newest flows: those that it holds out wait for them."""
        truths = self.teacher.truths[-min(self.args.window, TOLD_MAX):]
        if not truths or not self.tell_to:
            return
        try:
            code, answer = self.tell_to(truths)
            self.say("truth", None if code == 200 else f"labels refused: {answer}")
        except wire.Broken as error:
            self.say("truth", f"labels not taken: {error}")

    def spread(self):
        """By which share of itself the stability has moved over the last rounds, beyond what chance
        explains; infinite if they are too few."""
        found = self.losses
        if len(found) < self.args.rounds:
            return math.inf
        moved = max(found) - min(found) - BY_CHANCE * self.tuner.error
        return max(moved, 0.0) / max(abs(sum(found)) / len(found), 1e-9)

    def offer(self):
        """Writes the model and offers it, unless the same one was offered before."""
        like, number = self.tuner.like, self.number + 1
        folder = self.into / f"model-{number:08}"
        try:
            learn = {"stability": round(self.spread(), 6), "until_us": self.until_us}
            self.tuner.freeze(folder, f"{like.manifest['version']}+{number}", learn)
            digest = bundle.read(folder).manifest["sha256"]
        except (Refusal, OSError) as error:
            self.say("disk", f"no bundle: {error}; learns on")
            return
        self.say("disk", None)
        self.number = number
        if digest in self.offered:
            shutil.rmtree(folder, ignore_errors=True)
            return
        try:
            code, self.answer = self.offer_to(folder.resolve(), self.args.task)
        except wire.Unanswered as error:
            self.say("offer", f"{folder}: offered, and not answered: {error}")
            self.tidy()
            return
        except wire.Broken as error:
            self.say("offer", f"not offered: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            return
        if code != UNDER_WAY:
            self.offered.append(digest)
        self.losses.clear()
        self.say(None, f"{folder}: {'offered' if code == 200 else 'refused'}: {self.answer}")
        if code != 200:  # or it would push out those in use
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self.publish(folder)
        self.tidy()

    def publish(self, folder):
        """For routers that pull it."""
        try:
            fleet.publish(folder, self.number)
        except OSError as error:
            self.say("disk", f"not published: {wire.reason(error)}; learns on")

    def tidy(self):
        """Removes all bundles but the newest and those in use."""
        fleet.tidy(sorted(self.into.glob(FOLDERS)), self.in_use)

    def write_status(self):
        found = {
            "task": self.args.task, "rounds": self.rounds, "number": self.number,
            "losses": list(self.losses), "new_loss": self.new_loss, "dropped": self.dropped,
            "left_out": self.strange, "answer": self.answer, "routers": self.routers,
            "alarms": list(self.alarms), "offered": list(self.offered),
        }
        try:
            wire.replace(self.into / STATUS, json.dumps(found) + "\n")
            self.say("status", None)
        except OSError as error:
            self.say("status", f"{self.into / STATUS}: {wire.reason(error)}; learns on")


def read_status(into):
    """What the service before this one knew."""
    known = {"number": 0, "offered": [], "alarms": []}
    try:
        found = json.loads((into / STATUS).read_text())
        known |= {key: found[key] for key in known if type(found[key]) is type(known[key])}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    made = [int(folder.name[-8:]) for folder in into.glob(FOLDERS)]
    return known | {"number": max([known["number"], *made])}


def count(frame, key):
    found = frame.get(key)
    return found if isinstance(found, int) and 0 <= found < 2**63 else 0


def run(args):
    like = bundle.read(args.like)
    teacher = tuner.Operator(like, args.labels) if args.labels else tuner.Flow(like)
    into = pathlib.Path(args.into)
    try:
        into.mkdir(exist_ok=True)
    except OSError as error:
        raise Refusal(f"{into}: {wire.reason(error)}", CANNOT_CREATE) from None
    say = wire.speaker()

    def offer(folder, task):
        if args.sign:
            fleet.sign(args.sign, folder)
        if not args.control:
            return 200, "published"
        request = {"command": "model_offer", "dir": str(folder), "task": task}
        return wire.asked(args.control, request)

    def tell(flows):
        request = {"command": "model_truth", "flows": flows, "task": args.task}
        return wire.asked(args.control, request)

    def in_use():
        return wire.models_in_use(args.control) if args.control else frozenset()

    os.nice(19)  # what learns must not disturb what forwards
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    made = TUNERS[args.model](like, args.window)
    service = Service(args, made, teacher, offer, say, in_use, args.control and tell)
    if args.kafka:
        service.run(topic.frames(args.kafka, args.topic, dict(args.kafka_option), say))
    else:
        service.run(wire.frames(args.learn, say))


def main(arguments):
    return fleet.carry_out(run, parser().parse_args(arguments))
