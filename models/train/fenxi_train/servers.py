"""The memory of servers that fenxi keeps, step by step, in float64: what flows to a server weighed.

fenxi computes the same in its flow workers; this is the reference for its tests and for studies of
captures.  Every operation is a sum, product or quotient of IEEE 754 in the order written here, so
both give the same bits.

A flow is counted at its end in four cells, which hold all flows, the flows of its protocol and server
port, the flows among these to the server's network (/24 or /48), and to its address.  A cell fades: it holds
means over its last flows, the older the less.  What is known of a server is the mean of its
address's cell, drawn towards its network's, and so on, the more the fewer flows the cell has seen.
"""

import dataclasses
import ipaddress
import math

FLOWS_MAX = 32.0  # a cell's weight: later flows push out older ones
PRIOR_FLOWS = 2.0  # weight of the wider cell's means
NOTHING = (5000.0, 12.0, 16.0)  # the means before the first flow
LONGEST_GAP_US = 3_600_000_000  # longer gaps saturate, and a first flow has this one
FEATURES = ("server_volume", "server_log_volume", "server_duration", "server_flows", "server_gap")


def log2(x):
    """log2(x + 1), with straight lines between powers of two so that all machines agree; x is a
    whole number below 2^52."""
    x = int(x) + 1
    whole = x.bit_length() - 1
    return whole + (x - (1 << whole)) / (1 << whole)


@dataclasses.dataclass
class Cell:
    """Means over the last flows: bytes, log2 of the bytes, log2 of the duration in us."""

    flows: float = 0.0
    means: tuple = (0.0, 0.0, 0.0)

    def add(self, numbers):
        self.flows = min(self.flows + 1.0, FLOWS_MAX)
        self.means = tuple(m + (x - m) / self.flows for m, x in zip(self.means, numbers))


def network(address):
    """The /24 or /48 of an address."""
    address = ipaddress.ip_address(address)
    return ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False)


class Memory:
    """What is known of servers: `begin` when a flow begins, `end` when it ends."""

    def __init__(self):
        self.cells, self.begun = {}, {}

    def begin(self, protocol, address, port, now_us):
        """The features of a flow to this server that begins now; notes that it has begun."""
        keys, means = cells_of(protocol, address, port), NOTHING
        for key in keys:
            cell = self.cells.get(key, Cell())
            total = cell.flows + PRIOR_FLOWS
            means = tuple((cell.flows * m + PRIOR_FLOWS * wider) / total
                          for m, wider in zip(cell.means, means))
        flows = self.cells.get(keys[-1], Cell()).flows
        gap = now_us - self.begun.get(keys[-1], now_us - LONGEST_GAP_US)
        self.begun[keys[-1]] = now_us
        volume, log_volume, duration = means
        gap = min(max(gap, 0), LONGEST_GAP_US)
        return log2(math.floor(volume)), log_volume, duration, flows, log2(gap)

    def end(self, protocol, address, port, volume, duration_us):
        """Counts a flow that has ended: bytes of both directions, first to last packet."""
        numbers = float(volume), log2(volume), log2(duration_us)
        for key in cells_of(protocol, address, port):
            self.cells.setdefault(key, Cell()).add(numbers)


def cells_of(protocol, address, port):
    """The keys of a server's cells, the widest first."""
    return (), (protocol, port), (protocol, port, network(address)), (protocol, port, address)
