"""Members of groups that are consumers of confluent-kafka: processes of tests/clients/group-members, which come and go by themselves and say what they do."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading

import drivers
import proc

PROGRAM = proc.TESTS / "clients" / "group-members"
CLIENT = "confluent-kafka"


class Clients:
    def __init__(self, place, broker, group, strategy, count, life_s, fired):
        self.place, self.group, self.count, self.fired = place, group, count, fired
        drivers.build(CLIENT)
        self.command = [sys.executable, PROGRAM, broker.bootstrap, place.topic, group, strategy, count, *life_s]
        self.errors = proc.scratch() / f"{group}.errors"
        self.loop = asyncio.get_running_loop()
        self.begin()

    def begin(self):
        with open(self.errors, "ab") as errors:
            self.process = proc.start(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                      env={**os.environ, **drivers.environment(CLIENT)})
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process):
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # Cut off by its death.
                return
            try:
                self.loop.call_soon_threadsafe(self._heard, said)
            except RuntimeError:  # It is all over.
                return

    def _heard(self, said):
        model = self.place.model
        if "told" in said:
            for partition, offset in said["told"]:
                model.told_to_others(self.group, partition, offset, said["asked"])
                self.fired["clients_told"] += 1
        elif "acknowledged" in said:
            for partition, serial, value in said["acknowledged"]:
                model.by_others(self.group, partition, serial, value)
                self.fired["clients_commits"] += 1
        elif "refused" in said:
            model.counts["clients_refused"] += 1
        else:
            self.fired["clients_came" if "came" in said else "clients_went"] += 1

    def stay(self):
        """From now on nobody comes or goes."""
        if self.process.poll() is not None:
            raise proc.Failed(f"the clients of {self.group} ended: {self.errors.read_text(errors='replace')[-500:]}")
        self.process.stdin.write(b"stay\n")
        self.process.stdin.flush()

    def kill(self):
        proc.end(self.process, signal.SIGKILL)
        self.fired["clients_killed"] += 1

    def end(self):
        self.process.stdin.close()
        proc.end(self.process, signal.SIGKILL)
