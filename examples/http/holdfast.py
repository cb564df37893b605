"""Locks of holdfast serve, for Python 3.9 and later, with the standard library alone.

    with Hold("nightly", ttl_ms=30000) as lock:
        for part in parts:
            if lock.lost.is_set():
                break
            write(part, lock.token)

Leaving the block releases the lock. It raises Lost if the lock had been lost before.
"""

import http.client
import json
import socket
import threading
import urllib.parse


class Problem(Exception):
    """The server's answer: code says what is wrong, for programs."""

    def __init__(self, problem):
        super().__init__(problem.get("detail") or problem.get("message") or problem.get("title"))
        self.code = problem.get("code")
        self.cause = problem.get("cause")


class Lost(Problem):
    """The lock was lost: somebody else may have it."""


class Hold:
    """Waits for a lock and holds it. address is host:port, or unix:PATH. The options are those of the API: fair, note..."""

    def __init__(self, name, address="127.0.0.1:7420", token=None, **options):
        self.lost = threading.Event()  # set when the lock is lost
        self._path, self._address = "/v1/locks/-/hold?name=" + urllib.parse.quote(name, safe=""), address
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = "Bearer " + token
        self._options, self._closing = options, False

    def __enter__(self):
        stream = self._send(self._path, self._options)
        self._socket, self._lines = stream.sock, stream.getresponse()
        try:
            line = self._read() if self._lines.status == 200 else json.load(self._lines)
            while line.get("event") in ("waiting", "heartbeat"):
                line = self._read()
            if line.get("event") != "acquired":
                raise Problem(line)
        except BaseException:
            self._close()
            raise
        self.token, self._hold = line["token"], line["hold"]
        threading.Thread(target=self._watch, args=(line,), daemon=True).start()
        return self

    def __exit__(self, kind, value, trace):
        self._closing = True
        try:
            self._call("release")
        except Lost:
            self.lost.set()
            if kind is None:
                raise
        except (OSError, http.client.HTTPException) as unreachable:
            if not self.lost.is_set():
                raise
            if kind is None:
                raise Lost({"code": "lost", "detail": "the connection ended"}) from unreachable
        finally:
            self._close()

    def check(self):
        """Asks the server whether the lock is held, before an act that cannot be undone. Raises Lost if it is not."""
        return self._call("check")["remaining_ms"]

    def _watch(self, line):
        """Reads lines until the lock is lost: by a line, by the end of the connection, or by silence."""
        try:
            while line.get("event") not in ("lost", "released", "detached"):
                self._socket.settimeout(line["remaining_ms"] / 1000)
                line = self._read()
        except (OSError, http.client.HTTPException):
            pass
        if not self._closing:
            self.lost.set()

    def _read(self):
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the connection to the server has ended")
        return json.loads(line)

    def _call(self, verb):
        connection = self._send("/v1/holds/" + self._hold + "/" + verb, {})
        try:
            answer = connection.getresponse()
            body = json.load(answer)
        finally:
            connection.close()
        if answer.status != 200:
            raise (Lost if body.get("code") in ("lost", "released", "not-found") else Problem)(body)
        return body

    def _send(self, path, body):
        connection = http.client.HTTPConnection("localhost" if self._address.startswith("unix:") else self._address, timeout=60)
        if self._address.startswith("unix:"):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self._address[len("unix:"):])
        connection.request("POST", path, json.dumps(body), self._headers)
        return connection

    def _close(self):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the reading, and with it the hold
        except OSError:
            pass
        self._socket.close()
