"""Disks of the proofs: an ext4 on a loop device, over a plain file or over `tests/powercut`."""

import os
import pathlib
import subprocess
import time

import proc
from proc import TESTS, Failed

CRATE = TESTS / "powercut"


def mount_ext4(device, where, fresh):
    if fresh:
        proc.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device])
    where.mkdir(parents=True, exist_ok=True)
    proc.run(["mount", "-t", "ext4", device, where])


def unmount(where):
    """Waits for it; a mount that somebody still holds is taken out of the tree."""
    for _ in range(50):
        done = subprocess.run(["umount", where], capture_output=True)
        if done.returncode == 0 or b"not mounted" in done.stderr or b"no mount point" in done.stderr:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "-l", where], capture_output=True)


def attach(file):
    return proc.run(["losetup", "--show", "--find", "--direct-io=on", file]).stdout.decode().strip()


def detach(device):
    subprocess.run(["losetup", "-d", device], capture_output=True)
    for _ in range(100):
        # Detaching is lazy while a filesystem still holds the device.
        if subprocess.run(["losetup", device], capture_output=True).returncode:
            return
        time.sleep(0.1)
    raise Failed(f"{device} stays attached")


def flushes(device):
    """Flush requests that the device completed: field 16 of its stat."""
    name = os.path.basename(device)
    return int(pathlib.Path(f"/sys/block/{name}/stat").read_text().split()[15])


class LoopDisk:
    """ext4 on a loop device over a plain file."""

    def __init__(self, folder, size_mib):
        self.image = folder / "loop.img"
        self.mount = folder / "loop"
        with open(self.image, "wb") as image:
            image.truncate(size_mib << 20)
        self.device = attach(self.image)
        proc.cleanup.callback(detach, self.device)
        mount_ext4(self.device, self.mount, fresh=True)
        proc.cleanup.callback(unmount, self.mount)


class PowerCutDisk:
    """ext4 on a loop device over a FUSE file that forgets every write since the last flush when it is cut."""

    def __init__(self, folder, size_mib, flush_us=0):
        self.binary = build()
        self.image = folder / "powercut"
        self.mount = folder / "disk"
        self.image.mkdir(parents=True)
        self.process = proc.start([self.binary, self.image, size_mib, flush_us],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        proc.cleanup.callback(self._end)
        if self.process.stdout.readline().strip() != "ready":
            raise Failed("powercut does not mount")
        self.device = None
        proc.cleanup.callback(self.disconnect)
        self.connect(fresh=True)

    def connect(self, fresh=False):
        self.device = attach(self.image / "disk")
        mount_ext4(self.device, self.mount, fresh)

    def disconnect(self):
        if self.device:
            unmount(self.mount)
            detach(self.device)
            self.device = None

    def order(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise Failed(f"powercut {line}: {answer}")
        return {k: int(v) for k, v in (pair.split("=") for pair in answer.split())}

    def cut(self, percent=None, seed=0):
        return self.order("cut" if percent is None else f"cut {percent} {seed}")

    def power_on(self):
        """After `cut`, once nothing runs on the disk: what a machine's start would find is mounted again."""
        self.disconnect()
        self.order("resume")
        self.connect()

    def _end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        subprocess.run(["umount", "-l", self.image], capture_output=True)


def build():
    """The powercut program, in a target directory of its own."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target") / "powercut"
    proc.run(["cargo", "build", "--quiet", "--locked", "--release", "--manifest-path", CRATE / "Cargo.toml",
              "--target-dir", target], timeout=900)
    return target / "release" / "powercut"
