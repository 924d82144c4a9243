"""What every driver speaks with the script that leads it: see README.md beside this. For the drivers in Python."""

import base64
import json
import os
import sys
import threading

_lock = threading.Lock()


def say(**line):
    """One line of JSON to the script."""
    text = json.dumps(line)
    with _lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def bytes_of(text):
    return None if text is None else base64.b64decode(text)


def text_of(data):
    return None if data is None else base64.b64encode(bytes(data)).decode()


def record(offset, key, value, headers, time_ms, partition=0):
    say(record={"o": offset, "p": partition, "k": text_of(key), "v": text_of(value), "t": time_ms,
                "h": [[name, text_of(data)] for name, data in headers or ()]})


class Unsupported(Exception):
    """The client has no such call."""


def serve(driver):
    """Carries out commands until standard input ends: `do_NAME(**arguments)` of the driver, whose answer is a dict."""
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("do")
        try:
            if verb == "admin":
                call = getattr(driver, "admin_" + command.pop("call"), None)
                if call is None:
                    raise Unsupported
                answer = {"answer": call(**command)}
            else:
                answer = getattr(driver, "do_" + verb)(**command) or {}
            say(done=verb, **answer)
        except Unsupported:
            say(error="unsupported")
        except Exception as error:  # noqa: BLE001: whatever it is, the script is told
            say(error=f"{type(error).__name__}: {error}")
    # Threads of clients would hold the process; what ends like this is meant to end at once.
    os._exit(0)


def admin_calls(driver):
    return sorted(name.removeprefix("admin_") for name in dir(driver) if name.startswith("admin_"))
