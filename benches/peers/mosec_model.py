"""A mosec server for one bundle's ONNX file; run by figures/peers, which names the file in ONNX.

A request is rows of floats. mosec hands over the requests that it has batched.

usage: mosec_model.py [OPTIONS of mosec]
"""

import os

import numpy as np
from mosec import Server, Worker
from onnx_rows import Model


class Inference(Worker):
    def __init__(self):
        super().__init__()
        self.model = Model(os.environ["ONNX"])

    def deserialize(self, data):
        return np.frombuffer(data, np.float32).reshape(-1, self.model.width)

    def forward(self, data):
        return self.model.answers(data)

    def serialize(self, data):
        return data.tobytes()


if __name__ == "__main__":  # its workers are processes that import this file
    batch, wait_ms = int(os.environ["BATCH"]), int(os.environ["WAIT_MS"])
    server = Server()
    server.append_worker(Inference, max_batch_size=batch, max_wait_time=wait_ms)
    server.run()
