"""A program that owns weights: connects as a user and publishes what it reads, a line each of
seconds to be valid, weights, and marks for flows that begin. It lives as long as its input.

usage: weights.py SOCKET USER
"""

import os
import sys
import threading
import time

from fenxi_observe import Action, Actions


def beat(actions):
    while True:
        actions.beat()
        time.sleep(0.1)


os.setuid(int(sys.argv[2]))
try:
    actions = Actions.connect(sys.argv[1])
except PermissionError as error:
    sys.exit(str(error))
threading.Thread(target=beat, args=[actions], daemon=True).start()
print(*(f"{it.address}:{it.port}" for it in actions.egresses), flush=True)
for line in sys.stdin:
    valid_s, *numbers = map(float, line.split())
    weights, marks = numbers[: actions.slots], numbers[actions.slots :]
    marks = [(it, Action(mark=int(mark))) for it, mark in zip(actions.egresses, marks)]
    actions.publish(zip(actions.egresses, weights), valid_s, marks)
    print("published", flush=True)
