"""Services that fenxi observes: counters, samples and histograms per server, and weights back.

>>> service = Service("/run/fenxi/services/web")
>>> snapshot = service.snapshot()
>>> snapshot["flows_in_flight"]
>>> for egress in snapshot.egresses():
...     service.samples(egress, "response")[:, 2] / 1e6  # ms
"""

from .actions import Action, Actions
from .reader import COUNTER, GAUGE, HISTOGRAM, RESERVOIR, WINDOW, Egress, Field, Service, Snapshot
from .shared import Busy, Changed, Error, Foreign, Malformed
