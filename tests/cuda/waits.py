#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""waits.py STEP FILE.ptx: what kernels that begin early touch before they wait.

Every path from the entry of a kernel to an access of global memory has to pass a wait for earlier
kernels. Only a plan's tables are older than these: they may be read at any time. Those of a step
(STEP is 1), which a kernel wrote, may be read past the caches of a multiprocessor. Every path of
the first thread block passes a wait as well: to wait for a kernel is to wait for all before it. An
address is in the tables if the only pointer that it comes from is the parameter at
`tess_offset_tables`, a variable of the file. Pointers that went through shared memory are not
traced, and count as other ones. No load of what a kernel may have written takes it for constant.
"""

import re
import sys

REGISTER = re.compile(r"%[a-z]+\d+")
# Without the name of a space the address is generic, and may be one of global memory.
ACCESS = re.compile(
    r"^(?:@!?%p\d+\s+)?((?:ld|st|atom|red|prefetch)\.(?!\S*(?:param|shared|local|const))\S+"
    r"|cp\.async\S*\.global\S*)"
)
LABEL = re.compile(r"^(\$\S+):")


def kernels(text):
    """(name, lines) of each kernel; a line is one instruction or a label."""
    for entry in re.split(r"\.entry ", text)[1:]:
        body = entry[entry.index("{") + 1 :]
        lines = [line.strip() for line in re.split(r"[\n;]", body)]
        yield entry[: entry.index("(")], [line for line in lines if line not in ("", "{", "}")]


def parts(line):
    """The registers that an instruction writes and those that it reads."""
    line = re.sub(r"^@!?%p\d+\s+", "", line)
    found = REGISTER.findall(line)
    if re.match(r"(st|bra|red|bar|setp|cp|prefetch)\b", line) or not found:
        return [], found
    first = line.split(None, 1)[1] if " " in line or "\t" in line else ""
    outputs = re.match(r"\{([^}]*)\}|(%[a-z]+\d+)", first)
    written = REGISTER.findall(outputs.group(0)) if outputs else []
    return written, found[len(written) :]


def parameters(name, lines):
    """Where in the parameters each register that is an address there points."""
    at = {}
    for line in lines:
        if m := re.match(rf"mov\.b64\s+(%rd\d+), {name}_param_0$", line):
            at[m.group(1)] = 0
        elif (m := re.match(r"add\.s64\s+(%rd\d+), (%rd\d+), (-?\d+)$", line)) and m.group(2) in at:
            at[m.group(1)] = at[m.group(2)] + int(m.group(3))
    return at


def pointers(name, lines):
    """The pointers among the parameters from which each register comes."""
    at, found = parameters(name, lines), {}
    for line in lines:
        place = rf"\[({name}_param_0|%rd\d+)(?:\+(-?\d+))?\]"
        m = re.match(rf"ld\.param\.[bu]64\s+(%rd\d+), {place}", line)
        if m and (m.group(2) in at or not m.group(2).startswith("%")):
            found[m.group(1)] = {at.get(m.group(2), 0) + int(m.group(3) or 0)}
    moves = [parts(line) for line in lines if not re.search(r"\bld\.|\bcp\.", line)]
    changed = True
    while changed:
        changed = False
        for written, read in moves:
            sources = set().union(*(found.get(x, set()) for x in read))
            for x in written:
                if not sources <= found.get(x, set()):
                    found[x] = found.get(x, set()) | sources
                    changed = True
    return found


def reached_without_wait(lines):
    """The numbers of the lines to which a path leads that passes no wait."""
    labels = {m.group(1): n for n, line in enumerate(lines) if (m := LABEL.match(line))}
    seen, todo = set(), [0]
    while todo:
        n = todo.pop()
        if n in seen or n >= len(lines) or "griddepcontrol.wait" in lines[n]:
            continue
        seen.add(n)
        line = lines[n]
        if m := re.search(r"\bbra(?:\.uni)?\s+(\$\S+)", line):
            todo.append(labels[m.group(1)])
        if "brx" in line:
            todo.extend(labels.values())
        if not re.match(r"(bra|ret|exit|trap)\b", line):
            todo.append(n + 1)
    return seen


def check(name, lines, tables, step):
    """The kernel's faults."""
    found, early, later = pointers(name, lines), reached_without_wait(lines), 0
    # 64-bit numbers such as strides are no pointers: only those count from which an address comes
    addresses = {x for line in lines if "cvta" in line for x in REGISTER.findall(line)}
    known = set().union(*(found.get(x, set()) for x in addresses))
    for n, line in enumerate(lines):
        if n in early and re.match(r"(@!?%p\d+\s+)?(ret|exit)$", line):
            yield "ends without a wait"
        if not (access := ACCESS.search(line)):
            continue
        address = REGISTER.findall(line[line.rindex("[") :])[0]
        sources = found.get(address, set()) & known
        table = sources == {tables} and access.group(1).startswith("ld.")
        later += n not in early and not table
        if n in early and not (table and (not step or ".relaxed.gpu." in access.group(1))):
            yield f"before the wait: {line}"
        if ".nc" in access.group(1) and (step or not table):
            yield f"as if it were constant: {line}"
    if not later:
        yield "nothing after a wait"


def main():
    step, path = sys.argv[1] == "1", sys.argv[2]
    with open(path) as file:
        text = file.read()
    tables = int(re.search(r"tess_offset_tables = (\d+)", text).group(1))
    faults = 0
    for name, lines in kernels(text):
        for fault in check(name, lines, tables, step):
            print(f"{name}: {fault}")
            faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
