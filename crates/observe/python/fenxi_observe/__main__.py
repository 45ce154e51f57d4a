"""Prints all that a service's file says, or times snapshots.

usage: python -m fenxi_observe print|time FILE
"""

import sys
import time

import numpy as np

from . import COUNTER, GAUGE, HISTOGRAM, Changed, Error, Service


def show(service):
    snapshot = service.snapshot()
    print("frame", snapshot.generation, snapshot.time_ns, int(service.ended))
    for row, egress in enumerate(snapshot.egresses()):
        print("egress", egress.slot, egress.incarnation, egress.kind, egress.port, egress.packed.hex())
        try:
            histograms = service.histograms(egress)
        except Changed:
            histograms = {}
        for field in service.fields:
            values = []
            if field.kind in (COUNTER, GAUGE):
                values = [snapshot[field.name][row]]
            elif field.kind == HISTOGRAM and histograms:
                total, buckets = histograms[field.name]
                values = [total, *buckets]
            elif field.kind != HISTOGRAM:
                samples = service.samples(egress, field.name)
                values = [":".join(map(str, sample)) for sample in samples]
            print(field.name, field.unit, field.kind, *values)


def measure(service, rounds=20_000):
    copied, used = np.empty(rounds), np.empty(rounds)
    for number in range(rounds):
        begun = time.perf_counter_ns()
        snapshot = service.snapshot()
        copied[number] = time.perf_counter_ns() - begun
        snapshot.values.sum(axis=0)
        used[number] = time.perf_counter_ns() - begun
        time.sleep(50e-6)  # so that the writer publishes between two
    for what, took in [("copied", copied), ("and summed up", used)]:
        half, most = np.percentile(took, [50, 99]) / 1e3
        print(f"Python: {len(snapshot)} slots {what}, p50 {half:.2f} us, p99 {most:.2f} us")


def main():
    commands = {"print": show, "time": measure}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    try:
        commands[sys.argv[1]](Service(sys.argv[2]))
    except Error as error:
        print("error", type(error).__name__)
        sys.exit(1)


if __name__ == "__main__":
    main()
