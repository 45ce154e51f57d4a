"""Finds a SYN flood among services, as a cluster of its own; see README.md."""

import contextlib
import csv
import random
import sys
import time

import lab
import numpy as np
from features import Reader
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

SERVERS, QUOTA_US = 2, 6_000  # of each service
FLOODED = "wiki-b"


def wiki(chance):
    return chance.expovariate(1 / 40_000), chance.expovariate(1 / 20_000)


# Requests per second, and rounds and bytes of a request: work only, files only, some of both.
SERVICES = {
    "loop": (20, lambda chance: (chance.expovariate(1 / 100_000), 200)),
    "files": (8, lambda chance: (100, chance.choice((100, 200, 500, 1000)) * 1000)),
    "wiki-a": (20, wiki),
    "wiki-b": (20, wiki),
}
RATIOS = (("flows_ended", "flows_begun"), ("packets_in", "packets_out"),
          ("bytes_out", "packets_out"), ("packets_in", "flows_begun"))
WINDOWS_BEFORE, WINDOWS_MIN = 30, 5  # from before; of a cluster
DIMENSIONS = 5
COMPONENTS = range(2, 9)
COLUMNS = ("run", "flood", "dbscan", "dbscan_others", "gmm", "gmm_others")


def addresses_of(service):
    first = 16 * (list(SERVICES).index(service) + 1)
    return [f"192.168.2.{first + number + 1}" for number in range(SERVERS)]


def network_of(service):
    return f"192.168.2.{16 * (list(SERVICES).index(service) + 1)}/28"


def plan(seconds, chance):
    """Lines of requests to all services, in order of time."""
    found = []
    for service, (per_s, request) in SERVICES.items():
        now = chance.expovariate(per_s)
        while now < seconds:
            rounds, size = request(chance)
            found.append((now, chance.choice(addresses_of(service)), int(rounds), int(size)))
            now += chance.expovariate(per_s)
    return [lab.line_of(*it) for it in sorted(found)]


def row_of(reader):
    """Features of a service over a window: logarithms of rates and times, and ratios."""
    seen = reader.look().values()
    total = {name: sum(own[name] for own in seen) for name in reader.counters + reader.gauges}
    row = [np.log1p(total[name] / reader.passed_s) for name in reader.counters]
    row += [np.log1p(total[name]) for name in reader.gauges]
    row += [total[part] / max(total[whole], 1) for part, whole in RATIOS]
    for name in reader.sampled:
        values = [own[name][:, 1] for own in seen if len(own[name])]
        values = np.concatenate(values) if values else np.zeros(1)
        row += np.log1p(np.quantile(values / 1e6, (0.1, 0.5, 0.9))).tolist()
    return row


def watch(own, args, windows, is_flooded, chance):
    """(service, features) of each window, while services are used."""
    found, seconds = [], windows * args.window_s
    with contextlib.ExitStack() as stack:
        stack.enter_context(own.servers())
        networks = {service: network_of(service) for service in SERVICES}
        files = stack.enter_context(own.fenxi(args.fenxi, networks, args.into))
        lines = plan(seconds + 2, chance)
        asked = own.ask(lines, 0)
        time.sleep(1.5)
        if is_flooded:
            to = addresses_of(FLOODED)[0]
            stack.enter_context(own.traffic("c", "flood", to, args.syns_per_s, seconds + 0.5))
            time.sleep(0.5)
        readers = {service: Reader(file) for service, file in files.items()}
        due = time.monotonic()
        for _ in range(windows):
            due += args.window_s
            time.sleep(max(due - time.monotonic(), 0))
            found += [(service, row_of(reader)) for service, reader in readers.items()]
        asked.result()
    return found


def clusters_of(points, usual):
    """The cluster of each window, by DBSCAN (-1: none) and by a Gaussian mixture. The first `usual`
    windows are from before; DBSCAN's distance is a little more than what their neighbours need."""
    distances = np.linalg.norm(points[:usual, None] - points[None, :usual], axis=2)
    reach = 1.3 * np.quantile(np.sort(distances, axis=1)[:, WINDOWS_MIN], 0.95)
    dbscan = DBSCAN(eps=reach, min_samples=WINDOWS_MIN).fit_predict(points)
    mixtures = [GaussianMixture(count, covariance_type="diag", reg_covar=1e-2, n_init=3,
                                random_state=0).fit(points) for count in COMPONENTS]
    return dbscan, min(mixtures, key=lambda it: it.bic(points)).predict(points)


def alarms(clusters, usual):
    """Windows in clusters that have no window from before."""
    new = set(clusters[usual:]) - set(clusters[:usual]) - {-1}
    new = {it for it in new if (clusters == it).sum() >= WINDOWS_MIN}
    return [at for at in range(usual, len(clusters)) if clusters[at] in new]


def judge(before, now):
    """For DBSCAN and the mixture: windows of the flooded service and of others in new clusters;
    and all windows in two dimensions, with their clusters."""
    names = [service for service, _ in before + now]
    rows = StandardScaler().fit_transform([row for _, row in before + now])
    points = PCA(DIMENSIONS).fit_transform(rows)
    found, clusters = [], clusters_of(points, len(before))
    for own in clusters:
        raised = [names[at] for at in alarms(own, len(before))]
        flooded = raised.count(FLOODED)
        found += [flooded, len(raised) - flooded]
    return found, (names, points[:, :2], clusters)


def draw(runs, file):
    """Two runs, by services and by clusters."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(len(runs), 3, figsize=(12, 4 * len(runs)), squeeze=False)
    for row, (title, (names, points, (dbscan, mixture))) in zip(axes, runs.items()):
        services = [list(SERVICES).index(name) for name in names]
        for axis, what, colours in zip(row, ("services", "DBSCAN", "Gaussian mixture"),
                                       (services, dbscan, mixture)):
            for it in sorted(set(colours)):
                own = points[np.array(colours) == it]
                label = list(SERVICES)[it] if what == "services" else "none" if it < 0 else str(it)
                axis.scatter(*own.T, s=8, label=label)
            axis.set_title(f"{title}: {what}")
            axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file)


def main():
    parser = lab.parser_of(__doc__, 20)
    parser.add_argument("--windows", type=int, default=6, help="of a run (6)")
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--syns-per-s", type=int, default=2000)
    args = parser.parse_args()
    args.into.mkdir(exist_ok=True)
    chance, shown, found, others = random.Random(2), {}, [0, 0], [0, 0]
    with contextlib.ExitStack() as stack:
        quotas = {address: QUOTA_US for service in SERVICES for address in addresses_of(service)}
        own = lab.Lab(stack, quotas)
        own.run("r", "ip route add blackhole 198.18.0.0/15")  # where SYNs say they are from
        before = watch(own, args, WINDOWS_BEFORE, False, chance)
        out = csv.writer(stack.enter_context(open(args.into / "anomaly.csv", "w", newline="")))
        out.writerow(COLUMNS)
        for run in range(2 * args.runs):
            is_flooded = run % 2 == 0
            counts, picture = judge(before, watch(own, args, args.windows, is_flooded, chance))
            print("anomaly:", run // 2 + 1, "flood" if is_flooded else "none", *counts,
                  file=sys.stderr)
            out.writerow([run // 2 + 1, int(is_flooded), *counts])
            shown.setdefault("flood" if is_flooded else "no flood", picture)
            for method in range(2):
                flooded, other = counts[2 * method:][:2]
                if is_flooded:
                    found[method] += flooded >= 0.8 * args.windows and not other
                else:
                    others[method] += flooded + other > 0
    draw(shown, args.into / "anomaly.svg")
    for method, name in enumerate(("DBSCAN", "mixture")):
        print(f"{name}: a cluster of its own in {found[method]} of {args.runs} runs with a flood, "
              f"an alarm in {others[method]} of {args.runs} without")
    print(f"{args.into}: anomaly.csv, anomaly.svg")


if __name__ == "__main__":
    lab.run(main)
