"""Sends series to an inference server on loopback and times the answers.

The series come as a Poisson process, whether or not earlier ones have been answered. Requests are
HTTP/1.1, one under way on each of many connections.
"""

import gc
import random
import re
import select
import socket
import time

from ..report import Failure, Skip

SEED = 1
CONNECTIONS = 256
# Goals that a series waits for a connection until the rate counts as too high for the server.
GOALS_MOST = 10
# Without an answer for so long, the server hangs.
PATIENCE_S = 10
HEAD_END = b"\r\n\r\n"
# How often the interval between a rate that keeps the goal and its double is halved: to 4 %.
HALVINGS = 4
RATE_MIN = 100


class Connection:
    """A connection with at most one request under way: `count` series from `first` on."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.first = self.count = 0
        self.received = b""

    def send(self, request, first, count):
        self.first, self.count, self.received = first, count, b""
        self.socket.sendall(request)

    def is_answered(self):
        """Reads what is there; whether that completes the answer."""
        more = self.socket.recv(1 << 18)
        if not more:
            raise Failure("the inference server closed a connection")
        self.received += more
        head_end = self.received.find(HEAD_END)
        if head_end < 0:
            return False
        length = re.search(rb"content-length: *(\d+)", self.received[:head_end], re.IGNORECASE)
        return len(self.received) >= head_end + len(HEAD_END) + int(length.group(1))


class Sender:
    """Series in rotation; `request(i, count)` is the one that carries `count` of them from i on.

    Each pause of the sender's loop gathers what is due; a request takes up to `most` of it.
    """

    def __init__(self, port, request, most, pause_s):
        self.request, self.most, self.pause_s = request, most, pause_s
        self.free = [Connection(port) for _ in range(CONNECTIONS)]
        self.poll = select.epoll()
        self.connections = {it.socket.fileno(): it for it in self.free}
        for number in self.connections:
            self.poll.register(number, select.EPOLLIN)

    def close(self):
        self.poll.close()
        for connection in self.connections.values():
            connection.socket.close()

    def ask(self, i):
        """The answer to series i alone: HTTP head and body."""
        connection = self.free[0]
        connection.send(self.request(i, 1), i, 1)
        while not connection.is_answered():
            pass
        return connection.received.split(HEAD_END, 1)

    def run(self, rate, seconds, goal_s):
        """Series, how many of them were not answered within the goal, and the sender's CPU time."""
        gc.collect()
        gc.disable()
        try:
            return self.run_without_pauses(rate, seconds, goal_s)
        finally:
            gc.enable()

    def run_without_pauses(self, rate, seconds, goal_s):
        due, taken = arrivals(rate, seconds), []
        sent = late = 0
        cpu, began = time.process_time(), time.perf_counter()
        heard = 0.0
        while sent < len(due) or len(self.free) < CONNECTIONS:
            now = time.perf_counter() - began
            while len(taken) < len(due) and due[len(taken)] <= now:
                taken.append(now)
            while self.free and sent < len(taken):
                count = min(self.most, len(taken) - sent)
                self.free.pop().send(self.request(sent, count), sent, count)
                sent += count
            for number, _ in self.poll.poll(0):
                connection = self.connections[number]
                if connection.is_answered():
                    heard = time.perf_counter() - began
                    of_it = taken[connection.first : connection.first + connection.count]
                    late += sum(heard - then > goal_s for then in of_it)
                    self.free.append(connection)
            if sent < len(taken) and now - taken[sent] > GOALS_MOST * goal_s:
                late += len(due) - sent
                sent = len(due)
            if now - max(heard, seconds) > PATIENCE_S:
                raise Failure(f"no answer from the inference server for {PATIENCE_S} s")
            time.sleep(self.pause_s)
        return len(due), late, time.process_time() - cpu


def arrivals(rate, seconds):
    """When the series of a Poisson process come, s."""
    drawn, times, now = random.Random(SEED), [], 0.0
    while (now := now + drawn.expovariate(rate)) < seconds:
        times.append(now)
    return times


def most(start, keeps):
    """The highest rate that keeps the goal: doubled or halved from `start` on, then searched for in
    between, as `fenxi-lab bench latency --goal-ms` does.
    """
    low = start
    while not keeps(low):
        low /= 2
        if low < RATE_MIN:
            raise Skip("an inference server keeps the goal at no rate; is the machine busy?")
    high = 2 * low
    while low >= start and keeps(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
