"""What of a broker is resident in memory, in MiB: now, and at most while something goes on."""

import pathlib
import threading


def rss_mib(broker):
    return int(pathlib.Path(f"/proc/{broker.pid()}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


class Watch(threading.Thread):
    """The greatest resident set from its start to `end`."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker, self.greatest, self.stop = broker, rss_mib(broker), threading.Event()
        self.start()

    def run(self):
        while not self.stop.wait(0.005):
            self.greatest = max(self.greatest, rss_mib(self.broker))

    def end(self):
        self.stop.set()
        self.join()
        return self.greatest
