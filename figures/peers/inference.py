"""Inference servers that batch, each with one bundle, and the requests that they take."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from ..live.lab import cpu_of
from ..report import ROOT, Failure, Skip, output_of
from .environment import PEERS

# Of the servers, and of `fenxi-lab bench latency --goal-ms`.
BATCH, WAIT_MS = 256, 1
START_S = 60  # that a server may take to start


class Bundle:
    """A bundle's golden rows, each a series and its context, and the answers to them."""

    def __init__(self, name):
        self.name, self.folder = name, ROOT / "models" / name
        self.inputs, self.outputs = self.golden("inputs"), self.golden("outputs")
        self.width = len(self.inputs[0])
        # Twice and more, so that `rows` takes one slice.
        repeated = self.inputs * (1 + -(-BATCH // len(self.inputs)))
        numbers = [number for row in repeated for number in row]
        self.packed = struct.pack(f"<{len(numbers)}f", *numbers)

    def golden(self, which):
        lines = (self.folder / "golden" / f"{which}.csv").read_text().splitlines()
        return [[float(number) for number in line.split(",")] for line in lines]

    def rows(self, first, count):
        """`count` of the rows in rotation, as little-endian floats."""
        begin = first % len(self.inputs) * 4 * self.width
        return self.packed[begin : begin + count * 4 * self.width]

    def check(self, sender):
        """Sends all golden rows, one by one: the server runs the model that it should."""
        for i, expected in enumerate(self.outputs):
            head, body = sender.ask(i)
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise Failure(f"golden series {i} of {self.name} was refused: {body[:200]}")
            answer = struct.unpack(f"<{len(expected)}f", body[-4 * len(expected) :])
            if max(abs(a - b) for a, b in zip(answer, expected)) > 1e-3:
                raise Failure(f"golden series {i} of {self.name} has another answer")


class Server:
    """The processes of a server, until it is closed."""

    def __init__(self, command, port, folder, **environment):
        self.port = port
        log = folder / "log"
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **environment}
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self.wait_ready(log)
        except BaseException:
            self.close()
            raise

    def wait_ready(self, log):
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        last = (log.read_text().strip() or "no message").splitlines()[-1]
        raise Failure(f"{self.process.args[0]} did not start: {last}")

    def cpu(self):
        """CPU seconds of all its processes."""
        return sum(map(cpu_of, self.processes()))

    def processes(self):
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(int(entry.name)) == self.process.pid:
                    yield int(entry.name)

    def close(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def http(path, body_bytes, **fields):
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body_bytes}\r\n{fields}\r\n"
    )


class Triton(Server):
    """tritonserver of PyTriton's wheel, which has only the Python backend."""

    def __init__(self, python, folder, bundle):
        (site,) = (python.parent.parent / "lib").glob("python3*/site-packages")
        home = site / "pytriton" / "tritonserver"
        provide_stub(home)
        write_model(folder / "models" / bundle.name, bundle)
        self.bundle, self.heads = bundle, {}
        port = free_port()
        command = [
            home / "bin" / "tritonserver",
            f"--model-repository={folder / 'models'}",
            f"--backend-directory={home / 'backends'}",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            f"--http-thread-count={len(os.sched_getaffinity(0))}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ]
        path = f"{python.parent}:{os.environ['PATH']}"
        libraries = str(site / "nvidia_pytriton.libs")
        super().__init__(command, port, folder, PATH=path, LD_LIBRARY_PATH=libraries)

    def request(self, first, count):
        """HTTP with binary tensors of `count` rows."""
        if count not in self.heads:
            self.heads[count] = self.head(count)
        return self.heads[count] + self.bundle.rows(first, count)

    def head(self, count):
        size = count * 4 * self.bundle.width
        rows = {
            "name": "rows",
            "shape": [count, self.bundle.width],
            "datatype": "FP32",
            "parameters": {"binary_data_size": size},
        }
        answers = {"name": "probabilities", "parameters": {"binary_data": True}}
        told = json.dumps({"inputs": [rows], "outputs": [answers]})
        path = f"/v2/models/{self.bundle.name}/infer"
        lengths = {"Inference_Header_Content_Length": len(told)}
        return (http(path, len(told) + size, **lengths) + told).encode()


def provide_stub(home):
    """The program that runs Python models goes beside the backend, as PyTriton puts it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = "triton_python_backend_stub"
    stub = home / "python_backend_stubs" / version / name
    if not stub.exists():
        raise Skip(f"the wheel of PyTriton has nothing for Python {version}")
    if any(
        "libpython" in line and "not found" in line for line in output_of("ldd", stub).splitlines()
    ):
        raise Skip(f"no libpython{version}.so (Debian: libpython{version})")
    shutil.copy(stub, home / "backends" / "python" / name)


def write_model(folder, bundle):
    """One model of Triton's repository."""
    (folder / "1").mkdir(parents=True)
    shutil.copy(PEERS / "triton_model.py", folder / "1" / "model.py")
    shutil.copy(PEERS / "onnx_rows.py", folder / "1")
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: {} }}'.format
    onnx = bundle.folder / "model.onnx"
    lines = [
        'backend: "python"',
        f"max_batch_size: {BATCH}",
        f"input {tensor('rows', bundle.width)}",
        f"output {tensor('probabilities', len(bundle.outputs[0]))}",
        f"dynamic_batching {{ max_queue_delay_microseconds: {1000 * WAIT_MS} }}",
        "instance_group { kind: KIND_CPU count: 1 }",
        f'parameters {{ key: "onnx" value {{ string_value: "{onnx}" }} }}',
    ]
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")


class Mosec(Server):
    def __init__(self, python, folder, bundle):
        self.bundle, port = bundle, free_port()
        command = [python, PEERS / "mosec_model.py", "--address=127.0.0.1", f"--port={port}"]
        super().__init__(
            command,
            port,
            folder,
            ONNX=str(bundle.folder / "model.onnx"),
            BATCH=str(BATCH),
            WAIT_MS=str(WAIT_MS),
        )

    def request(self, first, count):
        """HTTP with `count` rows."""
        head = http("/inference", count * 4 * self.bundle.width)
        return head.encode() + self.bundle.rows(first, count)
