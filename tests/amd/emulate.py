#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the portable kernels on AMD instruction sets without AMD hardware.

    emulate.py TINYGRAD CODE_OBJECT... [--build FOLDER] [--backward | --serving]
                [--line "k=v ..."] [--only N]

TINYGRAD is a checkout of tinygrad's repository, whose emulator (test/mockgpu/amd/emu.py) executes
the instructions one by one (a9069c177a works). A code object is backends/hip/kernels/portable.hip
compiled for one architecture as backends/hip/CMakeLists.txt does it (RDNA with -mcumode, CDNA
without), but without stores across words, which the hardware has and the emulator lacks:

    clang-19 -x hip --offload-arch=gfx1100 -mcumode --cuda-device-only --no-gpu-bundle-output \\
        -nogpulib -nogpuinc -O3 -mcode-object-version=5 \\
        -Xclang -target-feature -Xclang -unaligned-access-mode \\
        -I include -I backends/common -I backends/common/kernels \\
        backends/hip/kernels/portable.hip -o gfx1100.co

gfx90a also has v_mad_f32, which the emulator lacks, and additions of half words, whose carries it
gets wrong: -Xclang -target-feature -Xclang -mad-mac-f32-insts -mllvm -amdgpu-sdwa-peephole=0
does without both.

The problems run in tests/conformance/conformance of the build FOLDER, and what serves a cache in
the programs of tests/serving, on the device of tests/amd/device.c: plan, tables, NaN poison,
guards, reference and tolerances are those of every other backend. The build needs no device code,
and these targets are enough:

    cmake --preset release -DTESSERA_CUDA_ARCHS= -DTESSERA_HIP_ARCHS=
    cmake --build build/release --target tessera_emulated_device conformance copy_pages \\
        merge_parts batches append quantised key_parts

Prints a line for each problem; the exit status is 1 if one failed. Needs numpy, and for tinygrad
Python 3.11 and a compiler that is called clang. A code object takes some ten minutes.
"""
import argparse
import ctypes
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

PROBLEMS = [
    # f32: odd sizes, every bucket of head_dim, all patterns, grouped heads, split keys, packed
    # batches
    "pattern=dense heads=1 head_dim=64 q_len=37",
    "pattern=dense causal=0 heads=2 kv_heads=1 head_dim=24 q_len=5 kv_len=131",
    "pattern=dense heads=4 kv_heads=2 head_dim=80 q_len=3 kv_len=67 batch=2",
    "pattern=dense heads=2 kv_heads=1 head_dim=256 q_len=9 kv_len=70",
    "pattern=dense heads=1 head_dim=40 q_len=1 kv_len=300 kv_split=3",
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=32 q_len=50 kv_len=211",
    "pattern=s2 causal=0 block=16 local=1 stride=3 heads=3 head_dim=72 q_len=33",
    "pattern=s2 block=17 local=2 stride=4 offset=1 dense_heads=1 heads=4 head_dim=128 q_len=19 "
    "kv_len=150",
    "pattern=window left=20 right=0 sinks=3 heads=2 kv_heads=1 head_dim=64 q_len=70 kv_len=90",
    "pattern=dense heads=2 head_dim=64 q_lens=1,0,13,2 kv_lens=40,5,13,0",
    # 16-bit types
    "pattern=dense heads=2 kv_heads=1 head_dim=64 q_len=41 dtype=f16",
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=128 q_len=21 kv_len=133 "
    "dtype=f16",
    "pattern=window causal=0 left=9 right=5 heads=2 head_dim=8 q_len=33 dtype=f16",
    "pattern=dense heads=1 head_dim=160 q_len=2 kv_len=150 kv_split=2 dtype=f16",
    "pattern=dense heads=3 head_dim=72 q_len=29 kv_len=31 dtype=bf16",
    "pattern=s2 block=32 local=1 stride=2 heads=2 head_dim=64 q_len=40 kv_len=105 dtype=bf16",
    "pattern=dense heads=4 kv_heads=1 head_dim=96 q_len=1 kv_len=129 dtype=bf16 batch=2",
    "pattern=dense heads=2 head_dim=24 q_len=5 kv_len=4 dtype=bf16",
    # codes of 8 bits
    "pattern=dense heads=4 kv_heads=2 head_dim=24 q_len=5 kv_len=40 kv_dtype=e4m3",
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=128 q_len=3 kv_len=133 "
    "dtype=f16 kv_dtype=i8",
]

# Writing a cache, steps, copies of pages and merges of parts: a program and one of its tests.
SERVING = [
    ("serving/copy_pages",),
    ("serving/merge_parts", "given parts"),
    ("serving/batches", "repeats of a step"),
    ("serving/append", "attention"),
    ("serving/append", "forks"),
    ("serving/append", "recycled pages"),
    ("serving/append", "nothing"),
    ("serving/quantised", "attention over pages and steps"),
    ("serving/key_parts", "keys in parts"),
    ("serving/key_parts", "hostile positions"),
]

# Gradients of all types: both passes, every bucket of head_dim, all patterns, grouped heads.
GRADIENTS = [
    "pattern=dense heads=2 kv_heads=1 head_dim=24 q_len=37",
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=80 q_len=40 kv_len=90",
    "pattern=window left=20 right=3 causal=0 sinks=3 heads=2 head_dim=64 q_len=33 kv_len=70",
    "pattern=dense heads=1 head_dim=160 q_lens=5,0,9 kv_lens=20,3,7",
    "pattern=s2 causal=0 block=16 local=1 stride=3 heads=3 head_dim=32 q_len=70 dtype=f16",
    "pattern=dense heads=2 kv_heads=1 head_dim=128 q_len=9 kv_len=35 dtype=bf16",
]

# The low byte of an AMD code object's ELF flags names the machine.
SETS = {0x3F: "cdna", 0x40: "cdna", 0x4C: "cdna", 0x4F: "cdna",
        0x41: "rdna3", 0x46: "rdna3", 0x47: "rdna3", 0x44: "rdna3", 0x43: "rdna3", 0x4A: "rdna3",
        0x48: "rdna4", 0x4E: "rdna4"}

ARGS_BYTES = 336             # of tess_args
BUFFERS = 10                 # of a portable kernel
MESSAGE = "<48s6I%dQ%ds" % (BUFFERS, ARGS_BYTES)  # of device.c
MEMORY_BYTES = 1 << 29


class Memory:
    """Pages that this process and the tested program share, or only room in the address space."""

    def __init__(self, size, file=-1):
        no_reserve = 0x4000  # MAP_NORESERVE
        reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        flags = mmap.MAP_SHARED if file >= 0 else reserved
        self.pages = mmap.mmap(file, size, flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))


class CodeObject:
    """The loaded segments of an ELF file and its dynamic symbols. It needs no relocation."""

    def __init__(self, path):
        data = open(path, "rb").read()
        if data[:5] != b"\x7fELF\x02":
            raise SystemExit("%s: not a 64-bit ELF file (clang needs --no-gpu-bundle-output)" %
                             path)
        program, section = struct.unpack_from("<2Q", data, 32)
        # Only from version 5 on (3 in the header) does a driver pass the number of workgroups, as
        # launch() does whatever the version.
        if data[8] < 3:
            raise SystemExit("%s: a code object older than version 5 (-mcode-object-version=5)" %
                             path)
        machine = struct.unpack_from("<I", data, 48)[0] & 0xFF
        programs, = struct.unpack_from("<H", data, 56)
        sections, = struct.unpack_from("<H", data, 60)
        if machine not in SETS:
            raise SystemExit("%s: no instruction set of the emulator for machine 0x%x" %
                             (path, machine))
        self.set = SETS[machine]
        loads = []
        for n in range(programs):
            header = struct.unpack_from("<2I5Q", data, program + 56 * n)
            kind, _, offset, address, _, stored, size = header
            if kind == 1:  # PT_LOAD
                loads.append((offset, address, stored, size))
        end = max(address + size for _, address, _, size in loads)
        self.memory = Memory((end + 8191) // 4096 * 4096)
        for offset, address, stored, _ in loads:
            self.memory.pages[address:address + stored] = data[offset:offset + stored]
        self.symbols = {}
        headers = [struct.unpack_from("<2I4Q2I2Q", data, section + 64 * n) for n in range(sections)]
        for header in headers:
            if header[1] != 11:  # SHT_DYNSYM
                continue
            names = headers[header[6]][4]
            for at in range(header[4], header[4] + header[5], 24):
                name, _, _, _, value, size = struct.unpack_from("<I2BH2Q", data, at)
                end = data.index(b"\0", names + name)
                self.symbols[data[names + name:end].decode()] = (value, size)


class Emulator:
    """Launches kernels of a code object."""

    changed = {}  # of the emulator's module, which all objects share: the functions as they were

    def __init__(self, tinygrad, code):
        sys.path.insert(0, tinygrad)
        from test.mockgpu.amd import emu
        self.emu, self.code, self.group_words = emu, code, 0
        self.group_memory = Memory(1 << 33)
        original = Emulator.changed or {name: getattr(emu, name)
                                        for name in ("Buffer", "_load_vsrc0")}
        Emulator.changed = original

        # The emulator reads workgroup memory for inactive lanes too, wherever their registers
        # point: leave room for every 32-bit address.
        def buffer(device, size, dtype, *rest, **options):
            if size == self.group_words and not rest and not options:
                options = {"options": emu.BufferSpec(external_ptr=self.group_memory.address)}
            return original["Buffer"](device, size, dtype, *rest, **options)

        # The emulator takes registers from 128 on for upper halves in operations on 16 bits. That
        # is so on RDNA, but CDNA names halves in other ways.
        def load_whole(context, instruction, lane, bits, literal, is_f64, is_float, other):
            if hasattr(type(instruction), "dpp"):
                return original["_load_vsrc0"](context, instruction, lane, bits, literal, is_f64,
                                               is_float, other)
            register = context.inst_field(type(instruction).src0)
            return context.rsrc_dyn(register, lane, bits["s0"], literal, is_f64), register
        emu.Buffer = buffer
        emu._load_vsrc0 = load_whole if code.set == "cdna" else original["_load_vsrc0"]

    def launch(self, name, grid, threads, shared, arguments):
        code = self.code
        descriptor = code.symbols[name + ".kd"][0]
        group, scratch, argument_bytes = struct.unpack_from("<3I", code.memory.pages, descriptor)
        if group > shared:
            raise ValueError("%s has %d bytes of workgroup memory, and backends/common says %d" %
                             (name, group, shared))
        entry, = struct.unpack_from("<q", code.memory.pages, descriptor + 16)
        resources, properties = struct.unpack_from("<IH", code.memory.pages, descriptor + 52)
        # Numbers of workgroups and their sizes follow the kernel's own arguments.
        hidden = struct.pack("<3I3H", *grid, threads, 1, 1)
        block = ctypes.create_string_buffer(arguments + hidden,
                                            max(argument_bytes, len(arguments) + len(hidden)) + 256)
        at = ctypes.addressof(block)
        # Scalars that the hardware sets up: one is the address of the arguments, nobody reads the
        # others.
        registers = []
        for bit, count in enumerate((4, 2, 2, 2, 2, 2, 1)):
            if properties >> bit & 1:
                registers += [at & 0xFFFFFFFF, at >> 32] if bit == 3 else [0] * count
        units = -(-group // 512)
        self.group_words = units * 128
        resources = resources & ~(0x1FF << 15) | units << 15
        base = code.memory.address
        self.emu.run_asm(base + descriptor + entry, code.symbols[name][1], *grid, threads, 1, 1, at,
                         resources, scratch, code.set, registers)


def serve(emulator, memory, channel, failures):
    """Answers launches until the other side is gone."""
    while True:
        data = channel.recv(struct.calcsize(MESSAGE), socket.MSG_WAITALL)
        if len(data) < struct.calcsize(MESSAGE):
            return
        fields = struct.unpack(MESSAGE, data)
        name, workgroups, threads, shared, plain, buffers, size = fields[:7]
        name = name.partition(b"\0")[0].decode()
        pointers = [memory.address + at for at in fields[7:7 + buffers]]
        args = fields[-1][:size]
        # Two dimensions, and with an odd number a workgroup too many, as large launches have them.
        grid = (workgroups, 1, 1) if plain or workgroups == 1 else ((workgroups + 1) // 2, 2, 1)
        try:
            emulator.launch(name, grid, threads, shared,
                            struct.pack("<%dQ" % buffers, *pointers) + args)
            channel.sendall(struct.pack("<i", 0))
        except Exception:
            failures.append(traceback.format_exc())
            channel.sendall(struct.pack("<i", 1))


def run_program(emulator, options, arch, words):
    """The exit status and output of a program of tests/ with its arguments."""
    file = os.memfd_create("tessera")
    os.ftruncate(file, MEMORY_BYTES)
    memory = Memory(MEMORY_BYTES, file)
    ours, theirs = socket.socketpair()
    backend = os.path.join(options.build, "tests/amd/tessera_emulated_device.so")
    environment = dict(os.environ, TESSERA_BACKEND_PATH=backend, TESSERA_REQUIRE="emulated",
                       TESSERA_EMULATED_SOCKET=str(theirs.fileno()),
                       TESSERA_EMULATED_MEMORY=str(file), TESSERA_EMULATED_ARCH=arch)
    program = subprocess.Popen([os.path.join(options.build, "tests", words[0]), *words[1:]],
                               env=environment, pass_fds=(theirs.fileno(), file),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    theirs.close()
    output = []
    reader = threading.Thread(target=lambda: output.append(program.stdout.read()))
    reader.start()
    failures = []
    serve(emulator, memory, ours, failures)
    reader.join()
    program.wait()
    ours.close()
    os.close(file)
    return program.returncode, output[0] + "".join(failures)


def conformance(line, backward=False):
    words = ["conformance/conformance", "--device", "emulated", "--line", line]
    return words + ["--backward"] * backward


def choose(options):
    """What to run: the words of each program, and what to print of them."""
    if options.line:
        return [(conformance(options.line, options.backward), options.line)]
    gradients = [(conformance(line, True), "op=bwd " + line) for line in GRADIENTS]
    serving = [((words[0], "emulated", *words[1:]), ": ".join(words)) for words in SERVING]
    forward = [(conformance(line), line) for line in PROBLEMS]
    chosen = (gradients if options.backward else
              serving if options.serving else forward + gradients + serving)
    return chosen if options.only is None else [chosen[options.only]]


def main():
    parser = argparse.ArgumentParser(
        description="the portable kernels on emulated AMD instruction sets")
    parser.add_argument("tinygrad")
    parser.add_argument("objects", nargs="+", metavar="code_object")
    parser.add_argument("--build", default="build/release",
                        help="folder of the build that has the test programs")
    parser.add_argument("--line", help="only this problem")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--backward", action="store_true", help="gradients alone")
    kinds.add_argument("--serving", action="store_true", help="what serves a cache alone")
    parser.add_argument("--only", type=int, help="only problem number N, from 0")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    problems = choose(options)
    failed = 0
    for path in options.objects:
        arch = os.path.splitext(os.path.basename(path))[0]
        emulator = Emulator(os.path.abspath(options.tinygrad), CodeObject(path))
        for words, title in problems:
            start = time.time()
            status, output = run_program(emulator, options, arch, words)
            print("%s %s: %s (%.1f s)" % ("pass" if status == 0 else "FAIL", arch, title,
                                          time.time() - start), flush=True)
            if status != 0:
                failed += 1
                print(output, flush=True)
    print("%d of %d problems failed" % (failed, len(problems) * len(options.objects)))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
