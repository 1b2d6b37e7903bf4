# SPDX-License-Identifier: Apache-2.0
"""Where peers_decode.py runs: on a GPU, or dry on a CPU, to see that every part of it works."""

import ctypes
import time
import types

import torch

from peers_torch import captured, timed


class Gpu:
    torch_name, tessera_name, dry = "cuda", "cuda:0", False

    def __init__(self):
        self.stream = torch.cuda.Stream()  # the default one cannot be captured
        torch.cuda.set_stream(self.stream)
        self.handle = self.stream.cuda_stream
        self.captured, self.timed = captured, timed
        self.synchronize, self.release = torch.cuda.synchronize, torch.cuda.empty_cache
        self.driver = ctypes.CDLL("libcuda.so.1")

    def __str__(self):
        return f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}"

    def size(self, batch, tokens):
        return batch, tokens

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: error {code}")

    def nodes(self, function):
        """How many nodes a graph of a function has that PyTorch has no part in."""
        return len(self.kinds(function))

    def kinds(self, function):
        """The kinds of these nodes, as CUgraphNodeType numbers them."""
        graph, count, kind = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int()
        stream = ctypes.c_void_p(self.handle)
        torch.cuda.synchronize()
        self.call("cuStreamBeginCapture_v2", stream, 0)
        try:
            function()
        finally:
            self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.call("cuGraphGetNodes", graph, None, ctypes.byref(count))
        all_nodes, kinds = (ctypes.c_void_p * max(1, count.value))(), []
        self.call("cuGraphGetNodes", graph, all_nodes, ctypes.byref(count))
        for n in range(count.value):
            self.call("cuGraphNodeGetType", ctypes.c_void_p(all_nodes[n]), ctypes.byref(kind))
            kinds.append(kind.value)
        self.call("cuGraphDestroy", graph)
        return kinds


class Dry:
    """The same work in small on the CPU backend. Its times mean nothing."""

    torch_name, tessera_name, dry = "cpu", "cpu:0", True

    def __init__(self):
        self.handle = 0

    def __str__(self):
        return "a dry run on the CPU, whose figures mean nothing"

    def size(self, batch, tokens):
        return min(batch, 4), tokens // 64

    def captured(self, function, calls):
        return types.SimpleNamespace(replay=function)

    def timed(self, function, milliseconds, calls=1):
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) / calls

    def synchronize(self):
        pass

    release = synchronize

    def nodes(self, function):
        """Counts nothing, but calls the function."""
        return len(self.kinds(function))

    def kinds(self, function):
        function()
        return []
