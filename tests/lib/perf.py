"""Where a broker's time goes under a load that runs already: samples of its shard threads by `perf`, and what the disk
below its data did meanwhile."""

import collections
import os
import pathlib
import re
import shutil
import time

import metrics
import proc

HZ = 499
# What a sample is put under: the first line of which some symbol on its stack has a word. From the inside out would
# name `memcpy` and `spin_lock`; a system call's purpose is what is asked for.
KINDS = (
    ("in the kernel: pages for new memory", r"^(asm_exc_page_fault|handle_mm_fault|clear_page|do_mmap|__x64_sys_m)"),
    ("in the kernel: sockets", r"^(tcp_|inet_|sock_|__sys_(send|recv)|skb_|__tcp|net_rx|napi_|ip_)"),
    ("in the kernel: the disk (ext4, block layer, flushes)", r"^(ext4_|iomap_|blk_|submit_bio|__blk|virtio_queue|"
                                                             r"virtblk|nvme_|vfs_fsync|vfs_fallocate|jbd2_|loop_)"),
    ("in the kernel: io_uring itself", r"^(io_|__do_sys_io_uring|__io_)"),
    ("in the kernel: waiting and waking (poll, scheduler)", r"^(do_sched_yield|schedule|__schedule|try_to_wake|"
                                                            r"do_epoll|ep_|futex_)"),
)
KERNEL = re.compile(r"\[(?!unknown|vdso|heap|stack)")


def available():
    return shutil.which("perf") is not None


def shard_threads(pid):
    return [task.name for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            if (task / "comm").read_text().startswith("shard-") and "helper" not in (task / "comm").read_text()]


def record(broker, seconds, folder):
    """Samples the shard threads of a Tailrace for so long; lines of text for a reader: what share of a core they took,
    what for, in which functions, and how the disk kept up."""
    threads, data = shard_threads(broker.pid()), folder / "perf.data"
    before, began = counters(broker), time.monotonic()
    proc.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", HZ, "-g", "-t", ",".join(threads), "-o", data, "--",
              "sleep", seconds], timeout=seconds + 60)
    took, after = time.monotonic() - began, counters(broker)
    script = proc.run(["perf", "script", "-i", data, "-F", "ip,sym,dso"], timeout=120).stdout.decode(errors="replace")
    data.unlink()
    stacks = [lines for block in script.split("\n\n") if (lines := parse(block))]
    if not stacks:
        return []
    delta = {name: after[name] - before[name] for name in after}
    found = [f"{len(threads)} shard thread(s), {len(stacks)} samples at {HZ} Hz: "
             f"{len(stacks) / HZ / seconds / len(threads):.0%} of a core each"]
    commits, flushes = delta["commits"] / took, delta["flushes"] / took
    found.append(f"{commits:,.0f} journal commits/s; the disk: {flushes:,.0f} flushes/s"
                 + (f" of {delta['flush_ms'] / delta['flushes']:.2f} ms on average" if delta["flushes"] else "")
                 + (f", {delta['writes'] / took:,.0f} writes/s of {delta['write_ms'] / delta['writes']:.2f} ms"
                    if delta["writes"] else ""))
    found.append(f"the machine's CPUs: {delta['idle'] / max(delta['all'], 1):.0%} idle, "
                 f"{delta['steal'] / max(delta['all'], 1):.0%} taken by its host")
    kinds = collections.defaultdict(list)
    for stack in stacks:
        kinds[kind(stack)].append(stack)
    for name, those in sorted(kinds.items(), key=lambda one: -len(one[1])):
        if len(those) * 100 > len(stacks):
            found.append(f"{len(those) / len(stacks):.0%} {name}" + called_from(those))
    tops = collections.Counter(stack[0][0] for stack in stacks)
    return found + ["functions: " + ", ".join(f"`{short(name)}` {count / len(stacks):.1%}"
                                              for name, count in tops.most_common(12))]


def parse(block):
    """[(symbol, is the kernel's)] of one sample, innermost first."""
    found = []
    for line in block.splitlines():
        match = re.match(r"\s*[0-9a-f]+ (.*) \(([^()]*)\)$", line)
        if match:
            found.append((match[1], KERNEL.match(match[2]) is not None))
    return found


def kind(stack):
    for name, pattern in KINDS:
        if any(kernel and re.match(pattern, symbol) for symbol, kernel in stack):
            return name
    return "in the kernel: the rest" if stack[0][1] else "in Tailrace's own code and its libraries"


def called_from(stacks):
    """The functions outside of the kernel that samples in it come from; frame pointers aren't needed for the first."""
    outside = collections.Counter(own for stack in stacks if stack[0][1]
                                  for own in [symbol for symbol, kernel in stack if not kernel][:1])
    return ", asked by " + ", ".join(f"`{short(name)}`" for name, _ in outside.most_common(3)) if outside else ""


def short(symbol):
    """Without the hash and the generics of a Rust name."""
    symbol = re.sub(r"::h[0-9a-f]{16}$", "", symbol)
    while re.search(r"<[^<>]*>", symbol) and len(symbol) > 60:
        symbol = re.sub(r"<[^<>]*>", "", symbol, count=1)
    return symbol if len(symbol) <= 80 else "…" + symbol[-79:]


def counters(broker):
    disk = disk_stat(broker.data_dir)
    cpu = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return {"commits": metrics.total(broker, metrics.COMMITS), "writes": disk[4], "write_ms": disk[7],
            "flushes": disk[15], "flush_ms": disk[16], "idle": cpu[3] + cpu[4], "steal": cpu[7], "all": sum(cpu)}


def disk_stat(path):
    """The fields of the `stat` of the whole disk that a path lies on; zeros where there is none."""
    device = os.stat(path).st_dev
    folder = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for place in (folder.parent, folder):
        if (place / "stat").exists() and (place / "queue").exists():
            return [int(word) for word in (place / "stat").read_text().split()]
    return [0] * 17
