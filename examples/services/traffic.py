"""Servers that work on each request, and those who ask them.

usage: traffic.py serve ADDRESS NAME
       traffic.py ask PATIENCE_S
       traffic.py flood ADDRESS PER_S SECONDS

`serve` runs the loop that a request asks for (`/?n=ROUNDS&size=BYTES`), one request after the
other, and answers with its name and as many bytes. `ask` reads lines of seconds, address, rounds
and bytes, and asks at these times whether earlier requests were answered or not, until PATIENCE_S
after the last. For each answer it prints a line: server, seconds at which the request was due,
seconds that it took, and rounds. `flood` sends SYNs from addresses that do not exist.
"""

import asyncio
import random
import re
import socket
import struct
import sys
import time

PORT, BACKLOG = 80, 4096
ASKED = re.compile(rb"GET /\S*\?n=(\d+)&size=(\d+) ")
HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"
LEAD_S = 0.5  # until the first request


def serve(address, name):
    with socket.create_server((address, PORT), backlog=BACKLOG) as listener:
        while True:
            stream, _ = listener.accept()
            with stream:
                try:
                    stream.settimeout(5)
                    asked = ASKED.match(stream.recv(4096))
                    for _ in range(int(asked[1]) if asked else 0):
                        pass
                    body = b" " * int(asked[2]) if asked else b""
                    stream.sendall(HEAD + name.encode() + body)
                except OSError:
                    pass  # the client has gone


async def answer(address, rounds, size):
    """The name of the server that answered."""
    reader, writer = await asyncio.open_connection(address, PORT)
    try:
        writer.write(f"GET /?n={rounds}&size={size} HTTP/1.0\r\n\r\n".encode())
        return (await reader.read()).removeprefix(HEAD).decode().strip()
    finally:
        writer.close()


async def ask(patience_s):
    start = time.monotonic() + LEAD_S

    async def one(due, address, rounds, size):
        await asyncio.sleep(start + due - time.monotonic())
        try:
            name = await answer(address, rounds, size)
        except OSError:
            return  # without a line it counts as unanswered
        if name:
            print(name, due, time.monotonic() - start - due, rounds, flush=True)

    plan = [line.split() for line in sys.stdin]
    tasks = [asyncio.create_task(one(float(due), *rest)) for due, *rest in plan]
    await asyncio.wait(tasks, timeout=float(plan[-1][0]) + LEAD_S + patience_s)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(to):
    source = socket.inet_aton(f"198.18.{random.randrange(256)}.{random.randrange(1, 255)}")
    ports = random.randrange(1024, 65536), PORT
    sequence = random.randrange(1 << 32)
    pseudo = source + to + struct.pack("!HH", socket.IPPROTO_TCP, 20)
    fields = [*ports, sequence, 0, 5 << 4, 2, 64240, 0, 0]
    fields[7] = checksum(pseudo + struct.pack("!HHIIBBHHH", *fields))
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0) + source + to
    return packet + struct.pack("!HHIIBBHHH", *fields)


def flood(address, per_s, seconds):
    to, begun, sent = socket.inet_aton(address), time.monotonic(), 0
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        while (passed := time.monotonic() - begun) < seconds:
            while sent < passed * per_s:
                raw.sendto(syn(to), (address, 0))
                sent += 1
            time.sleep(0.002)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "serve":
        serve(*arguments)
    elif what == "ask":
        asyncio.run(ask(float(arguments[0])))
    else:
        flood(arguments[0], float(arguments[1]), float(arguments[2]))
