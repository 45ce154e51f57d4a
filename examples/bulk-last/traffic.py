"""Pages, downloads and calls between a client and its servers; the same for the same seed.

usage: traffic.py serve
       traffic.py browse|call START_NS HOURS HOUR_S

`serve` is all servers of 198.18.0.0/15, each of which is asked once, and the far end of the calls.
`browse` prints what its downloads took, `call` what the packets of its calls took to come down the
link. START_NS is the time of the first hour, in ns since the epoch.

A flow of TCP is a request, an answer's head in a packet of its own, and its body. In the *old*
place the longest requests ask for downloads. In the *new* place the shortest do, some requests for
pages are as long as those for downloads were, and pages weigh more.
"""

import asyncio
import json
import random
import selectors
import socket
import struct
import sys
import threading
import time

SEED = 1
PORT = 443
HOURS_IN_OLD = 2
PAGES_PER_S, DOWNLOADS_PER_S, CALLS = 110, 1.5, 3  # three quarters of the link
PATIENCE_S = 20  # for downloads that the last hour began
ASKED = struct.Struct("!III")  # bytes of request, head and body

CALL_ADDRESS, CALL_PORT = "203.0.113.2", 3478
CALL_EVERY_S, SOUND = 0.02, 172  # as G.711 over RTP
STAMP = struct.Struct("!qi")  # ns since the epoch, hour
SO_TIMESTAMPNS = 35  # Python has no name for it
LOST_MS = 1000.0

# Bytes, from and to.
HEAD, LIGHT, HEAVY, DOWNLOAD = (250, 400), (500, 2_500), (3_000, 8_000), (500_000, 1_200_000)
# Bytes of requests for pages and for downloads, and the share of pages that are light.
PLACES = {"old": ((300, 700), (800, 1000), 0.6), "new": ((300, 850), (150, 250), 0.3)}


def place_of(hour):
    return "old" if hour < HOURS_IN_OLD else "new"


def flow_of(chance, place, is_download):
    """Bytes of request, head and body."""
    of_pages, of_downloads, light = PLACES[place]
    body = DOWNLOAD if is_download else LIGHT if chance.random() < light else HEAVY
    request = of_downloads if is_download else of_pages
    return chance.randint(*request), chance.randint(*HEAD), chance.randint(*body)


def plan(hours, hour_s):
    """(time, whether it is a download, server, (request, head, body)), in order of time."""
    chance, found = random.Random(SEED), []
    for per_s, is_download in ((PAGES_PER_S, False), (DOWNLOADS_PER_S, True)):
        for number in range(round(hours * hour_s * per_s)):
            at = (number + chance.random()) / per_s
            flow = flow_of(chance, place_of(int(at / hour_s)), is_download)
            found.append((at, is_download, flow))
    servers = chance.sample(range(1, 1 << 17), len(found))
    base = int.from_bytes(socket.inet_aton("198.18.0.0"), "big")
    names = [socket.inet_ntoa((base + server).to_bytes(4, "big")) for server in servers]
    return sorted((*flow[:2], name, flow[2]) for flow, name in zip(found, names))


def samples(count):
    """Flows of the old place as `fenxi-train volume` reads them."""
    chance = random.Random(SEED)
    share = DOWNLOADS_PER_S / (PAGES_PER_S + DOWNLOADS_PER_S)
    for number in range(count):
        is_download = int((number + 1) * share) > int(number * share)
        request, head, body = flow_of(chance, "old", is_download)
        first = min(body, 1448)
        gaps = [int(10 ** chance.uniform(2, 4.7)) for _ in range(2)]
        elements = [[request + 52, 0], [-head - 52, gaps[0]], [-first - 52, sum(gaps)]]
        rest = body - first
        to_come = rest + 52 * (rest // 1448 + 1) + 52 * (rest // 2896 + 3)
        yield {"proto": 6, "server_port": PORT, "began_us": number * 11_000, "elements": elements,
               "truth": {"bytes_to_come": to_come}, "capture": str(number * 10 // count)}


async def serve_one(reader, writer):
    try:
        asked = await reader.readexactly(ASKED.size)
        request, head, body = ASKED.unpack(asked)
        await reader.readexactly(request - ASKED.size)
        writer.write(bytes(head))
        await asyncio.sleep(0.003)
        writer.write(bytes(body))
        await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def serve():
    listening = socket.create_server(("", PORT), backlog=1024)
    # What most servers run; the buffer of the link fills as it does elsewhere.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    threading.Thread(target=answer_calls, daemon=True).start()
    async with await asyncio.start_server(serve_one, sock=listening) as server:
        await server.serve_forever()


def answer_calls():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((CALL_ADDRESS, CALL_PORT))
    while True:
        message, peer = sock.recvfrom(2048)
        _, hour = STAMP.unpack_from(message)
        sock.sendto(STAMP.pack(time.time_ns(), hour).ljust(SOUND, b"\0"), peer)


async def fetch(server, flow, taken):
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(server, PORT)
    writer.write(ASKED.pack(*flow).ljust(flow[0], b"\0"))
    while await reader.read(1 << 16):
        pass
    writer.close()
    taken.append(time.monotonic() - began)


async def browse(start_ns, hours, hour_s):
    taken = {kind: [[] for _ in range(hours)] for kind in ("pages", "downloads")}
    begun, running = {"pages": 0, "downloads": 0}, set()
    for at, is_download, server, flow in plan(hours, hour_s):
        await asyncio.sleep(start_ns / 1e9 + at - time.time())
        kind = "downloads" if is_download else "pages"
        begun[kind] += 1
        task = asyncio.create_task(fetch(server, flow, taken[kind][int(at / hour_s)]))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running, timeout=PATIENCE_S)
    done = {kind: sum(map(len, taken[kind])) for kind in taken}
    print(json.dumps({**taken, "missing": {kind: begun[kind] - done[kind] for kind in begun}}))


def call(start_ns, hours, hour_s):
    """New calls each hour."""
    delays = [[] for _ in range(hours)]
    chooser, sent = selectors.DefaultSelector(), [0] * hours
    for hour in range(hours):
        lines = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(CALLS)]
        for line in lines:
            line.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            line.setblocking(False)
            chooser.register(line, selectors.EVENT_READ)
        begins = start_ns / 1e9 + hour * hour_s
        for number in range(int(hour_s / CALL_EVERY_S)):
            listen(chooser, begins + number * CALL_EVERY_S, delays)
            for line in lines:
                line.sendto(STAMP.pack(0, hour).ljust(SOUND, b"\0"), (CALL_ADDRESS, CALL_PORT))
                sent[hour] += 1
    listen(chooser, time.time() + 1, delays)
    for of_hour, count in zip(delays, sent):
        of_hour += [LOST_MS] * (count - len(of_hour))
    print(json.dumps({"delays": delays}))


def listen(chooser, until, delays):
    while (left := until - time.time()) > 0:
        for key, _ in chooser.select(left):
            message, [(_, _, came)], _, _ = key.fileobj.recvmsg(2048, 64)
            sent, hour = STAMP.unpack_from(message)
            seconds, ns = struct.unpack("qq", came)
            delays[hour].append((seconds * 10**9 + ns - sent) / 1e6)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["browse", start_ns, hours, hour_s]:
            asyncio.run(browse(int(start_ns), int(hours), float(hour_s)))
        case ["call", start_ns, hours, hour_s]:
            call(int(start_ns), int(hours), float(hour_s))
        case _:
            sys.exit(__doc__)
