"""Servers that work on each request, and those who ask them.

usage: traffic.py serve ADDRESS NAME
       traffic.py ask ADDRESS PATIENCE_S

`serve` runs the loop that a request asks for (`/?n=ROUNDS`), one request after the other, and
answers with its name. `ask` reads lines of seconds and rounds, and asks at these times whether
earlier requests were answered or not, until PATIENCE_S after the last. For each answer it prints a
line: server, seconds since the request was due, and rounds.
"""

import asyncio
import re
import socket
import sys
import time

PORT, BACKLOG = 80, 4096
ASKED = re.compile(rb"GET /\S*\?n=(\d+) ")
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
                    stream.sendall(HEAD + name.encode())
                except OSError:
                    pass  # the client has gone


async def answer(address, rounds):
    """The name of the server that answered."""
    reader, writer = await asyncio.open_connection(address, PORT)
    try:
        writer.write(f"GET /?n={rounds} HTTP/1.0\r\n\r\n".encode())
        return (await reader.read()).removeprefix(HEAD).decode()
    finally:
        writer.close()


async def ask(address, patience_s):
    start = time.monotonic() + LEAD_S

    async def one(due, rounds):
        await asyncio.sleep(start + due - time.monotonic())
        try:
            name = await answer(address, rounds)
        except OSError:
            return  # without a line it counts as unanswered
        if name:
            print(name, time.monotonic() - start - due, rounds, flush=True)

    plan = [line.split() for line in sys.stdin]
    tasks = [asyncio.create_task(one(float(due), int(rounds))) for due, rounds in plan]
    await asyncio.wait(tasks, timeout=float(plan[-1][0]) + LEAD_S + patience_s)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "serve":
        serve(*arguments)
    else:
        asyncio.run(ask(arguments[0], float(arguments[1])))
