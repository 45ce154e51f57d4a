"""What fenxi's shared memory says about each server since the last look."""

import numpy as np
from fenxi_observe import COUNTER, GAUGE, RESERVOIR, Changed, Service

OTHERS = 4  # kind of the egress for all servers that have no slot


class Reader:
    """Looks at a service's file."""

    def __init__(self, file):
        self.service = Service(file)
        of = self.service.fields
        self.counters = [it.name for it in of if it.kind == COUNTER]
        self.gauges = [it.name for it in of if it.kind == GAUGE]
        self.sampled = [it.name for it in of if it.kind == RESERVOIR]
        self.before = {}
        self.look()

    def look(self):
        """`{address: {name: value}}`: by how much counters grew, gauges as they are, and an array
        of samples, (time in ns, value) each; `time_ns` and `passed_s` are when and since when."""
        snapshot = self.service.snapshot()
        since_ns = getattr(self, "time_ns", snapshot.time_ns)
        self.time_ns = snapshot.time_ns
        self.passed_s = max(snapshot.time_ns - since_ns, 1) / 1e9
        found = {}
        for row, egress in enumerate(snapshot.egresses()):
            if egress.kind == OTHERS:
                continue
            now = {name: int(snapshot[name][row]) for name in self.counters}
            before = self.before.get(egress, {})
            self.before[egress] = now
            own = {name: value - before.get(name, 0) for name, value in now.items()}
            own |= {name: int(snapshot[name][row]) for name in self.gauges}
            for name in self.sampled:
                try:
                    samples = self.service.samples(egress, name, since_ns)[:, 1:]
                except Changed:  # another server has the slot by now
                    samples = np.empty((0, 2), dtype=np.uint64)
                own[name] = samples[samples[:, 0] < snapshot.time_ns]
            found[str(egress.address)] = own
        return found
