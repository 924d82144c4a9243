"""Stands in for the module test.service, which the source distribution of kafka-python leaves out."""


class ExternalService:
    """A broker that others start and end."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def nothing(self, *_arguments, **_named):
        return True

    start = stop = open = close = dump_logs = wait_for = nothing


class SpawnedService:
    """The tests start no broker of their own here."""

    def __init__(self, *_arguments, **_named):
        raise RuntimeError("no broker is started by the tests themselves")
